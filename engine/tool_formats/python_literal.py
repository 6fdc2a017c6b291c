"""Values as models write them, JSON or Python, made JSON. Evaluates literals and nothing else."""

from __future__ import annotations

import ast
import json
from typing import NoReturn


def to_json(text: str) -> str:
    """The value of the text as JSON; '' when it is neither JSON nor a Python literal that JSON can
    hold. A text may hold bare newlines.
    """
    text = text.strip()
    try:
        json.loads(text, parse_constant=_refuse)
        return text
    except (ValueError, RecursionError):
        pass
    try:
        value = ast.literal_eval(text.replace("\n", "\\n"))
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
