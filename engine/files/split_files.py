"""Split models: which files are the parts of one, and that they belong together.

    NAME-00001-of-00003.gguf    metadata, split.no 0, split.count 3, split.tensors.count; tensors
    NAME-00002-of-00003.gguf    split.no 1, the same counts; tensors
    NAME-00003-of-00003.gguf    split.no 2, the same counts; tensors

The keys say that a file is a part, its name where the others are.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from engine.errors import GGUFError
from engine.files.gguf_part import GGUFPart

MAX_PARTS: Final = 99999  # that a name has room for
_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def open_parts(path: Path) -> tuple[GGUFPart, ...]:
    """The file, or all parts of the model that it is a part of, in order.

    Raises GGUFError, naming the part that is missing, damaged or of another model, and what
    GGUFPart raises.
    """
    with ExitStack() as undo:

        def opened(path: Path) -> GGUFPart:
            part = GGUFPart(path)
            undo.callback(part.close)
            return part

        given = opened(path)
        n_parts = given.get_int("split.count", 1)
        if n_parts <= 1:
            undo.pop_all()
            return (given,)
        names = _names(given, n_parts)
        number = names.index(path.name)
        parts = tuple(
            given if i == number else opened(_present(path.with_name(name), i, n_parts))
            for i, name in enumerate(names)
        )
        for i, part in enumerate(parts):
            _check_part(part, i, parts[0], n_parts)
        _check_tensors(parts)
        undo.pop_all()
        return parts


def model_name(path: Path) -> str:
    """A file's name without its ending, and without a part's number."""
    found = _NAME.fullmatch(path.name)
    return found["stem"] if found else path.stem


def _names(part: GGUFPart, n_parts: int) -> list[str]:
    """What the files of all parts are called."""
    number = part.get_int("split.no") + 1
    if not 0 < number <= n_parts <= MAX_PARTS:
        raise GGUFError(part.path, f"it says that it is part {number} of {n_parts}")
    found = _NAME.fullmatch(part.path.name)
    if not found or (int(found["number"]), int(found["count"])) != (number, n_parts):
        stem = found["stem"] if found else part.path.stem
        raise GGUFError(
            part.path,
            f"it is part {number} of {n_parts} of a split model, so it must be called "
            f"{_name(stem, number, n_parts)}, and the others like it, beside it",
        )
    return [_name(found["stem"], i + 1, n_parts) for i in range(n_parts)]


def _name(stem: str, number: int, n_parts: int) -> str:
    return f"{stem}-{number:05d}-of-{n_parts:05d}.gguf"


def _present(path: Path, i: int, n_parts: int) -> Path:
    if not path.exists():
        raise GGUFError(path, f"part {i + 1} of {n_parts} is missing; all must be in one folder")
    return path


def _check_part(part: GGUFPart, i: int, first: GGUFPart, n_parts: int) -> None:
    """That a file is the i-th part of the model that `first` begins."""
    found = part.get_int("split.no", -1) + 1, part.get_int("split.count", 1)
    if found != (i + 1, n_parts):
        said = f"part {found[0]} of {found[1]}" if found[0] else "no part of a split model"
        raise GGUFError(part.path, f"it is {said}, not part {i + 1} of {n_parts} as its name says")
    key = "general.architecture"
    ours, architecture = part.get_str(key, None), first.get_str(key)
    if ours not in (None, architecture):  # usually the first part alone says it
        raise GGUFError(
            part.path,
            f"it is part of another model: of {ours!r}, {first.path.name} of {architecture!r}",
        )


def _check_tensors(parts: tuple[GGUFPart, ...]) -> None:
    """That all tensors are there, each once."""
    owners: dict[str, GGUFPart] = {}
    for part in parts:
        for name in part.tensors:
            if name in owners:
                raise GGUFError(part.path, f"tensor {name!r} is in {owners[name].path.name} too")
            owners[name] = part
    for part in parts:
        n_tensors = part.get_int("split.tensors.count", len(owners))
        if n_tensors != len(owners):
            raise GGUFError(
                part.path,
                f"its model has {n_tensors} tensors, but the {len(parts)} parts hold "
                f"{len(owners)}: they do not belong together",
            )
