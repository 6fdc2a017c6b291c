"""`rushlight tokenize`: texts as lines of JSON in, their token ids as lines of JSON out.

The tokenizer alone is read here, from any GGUF file that has one: neither weights nor kernels nor
settings. How text becomes ids is the engine's matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from clients.errors import UserError

FIELDS: Final[Mapping[str, type]] = {"text": str, "add_special": bool, "parse_special": bool}


class LineError(UserError):
    """A line that cannot be obeyed; the message names it."""


def token_lines(model: Path, lines: Iterable[bytes], pre: str = "") -> Iterator[str]:
    """A JSON list of token ids for each line.

    lines: JSON objects with "text" and, where they differ from these, "add_special": true (BOS and
           EOS where the model wants them) and "parse_special": false (control tokens stay text).
    pre:   pre-tokenizer to use when the file names one that is not known.
    Raises UserError: the file cannot be used; LineError: a line cannot.
    """
    from engine import EngineError  # here, because these bring NumPy, which takes a moment
    from engine.files.gguf_file import GGUFFile
    from engine.text.tokenizer import Tokenizer

    try:
        with GGUFFile(model) as gguf:
            tokenizer = Tokenizer.from_gguf(gguf, pre)
            for number, line in enumerate(lines, 1):
                asked = parse_line(number, line)
                try:
                    yield json.dumps(tokenizer.encode(**asked), separators=(",", ":"))
                except EngineError as error:
                    raise LineError(f"line {number}: {error}") from error
    except EngineError as error:
        raise UserError(str(error)) from error


def parse_line(number: int, line: bytes) -> dict[str, Any]:
    """The fields of one line. Raises LineError."""
    try:
        asked = json.loads(line)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, too deep
        raise LineError(f"line {number} is not JSON: {error}") from error
    if not isinstance(asked, dict):
        raise LineError(f'line {number} is not a JSON object like {{"text": "..."}}')
    for name, value in asked.items():
        if name not in FIELDS:
            raise LineError(f"line {number}: unknown field {name!r}; known: {', '.join(FIELDS)}")
        if not isinstance(value, FIELDS[name]):
            kind = "a string" if FIELDS[name] is str else "true or false"
            raise LineError(f"line {number}: {name!r} must be {kind}")
    if "text" not in asked:
        raise LineError(f"line {number} has no 'text'")
    return asked
