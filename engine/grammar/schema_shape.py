"""What kind of value each keyword of a JSON schema has, so that all who read schemas may trust it.

Knows kinds only: not what a keyword means, nor whether it can be enforced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from engine.errors import InvalidRequest
from engine.grammar.schema_dialects import NAMED, ONE, SEVERAL

_LISTS: Final = SEVERAL | {"enum"}
_TEXTS: Final = frozenset({"$ref", "format", "pattern"})
_NUMBERS: Final = frozenset({
    "minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength", "minimum",
    "maximum", "multipleOf",
})  # fmt: skip


def check_shape(schema: Any, param: str) -> None:
    """A keyword whose value is null is as good as absent.

    Raises InvalidRequest, for the request's field `param`, naming the keyword and its place.
    """
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{param}: a JSON schema is an object, not {_kind(schema)}", param)
    for path, part in subschemas(schema):
        if isinstance(part, dict):
            for keyword, value in part.items():
                needed = None if value is None else _misses(keyword, value)
                if needed:
                    raise InvalidRequest(
                        f"{param}: '{keyword}' must be {needed}, not {_kind(value)}, at {path}",
                        param,
                    )
        elif not isinstance(part, bool):
            raise InvalidRequest(
                f"{param}: a JSON schema is an object or a boolean, not {_kind(part)}, at {path}",
                param,
            )


def subschemas(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every schema in a schema, itself first, with its place as a JSON pointer."""
    todo = [("#", schema)]
    while todo:
        path, schema = todo.pop()
        yield path, schema
        if not isinstance(schema, dict):
            continue
        for keyword, value in schema.items():
            here = f"{path}/{keyword}"
            if keyword in NAMED and isinstance(value, dict):
                todo += [(f"{here}/{name}", inner) for name, inner in value.items()]
            elif isinstance(value, list) and (keyword in SEVERAL or keyword == "items"):
                todo += [(f"{here}/{i}", inner) for i, inner in enumerate(value)]
            elif keyword in ONE and value is not None:
                todo.append((here, value))


def _misses(keyword: str, value: Any) -> str | None:
    """What kind of value the keyword needs, where this is none."""
    if keyword in NAMED:
        return None if isinstance(value, dict) else "an object"
    if keyword in _LISTS:
        return None if isinstance(value, list) else "an array"
    if keyword in _TEXTS:
        return None if isinstance(value, str) else "a string"
    if keyword in _NUMBERS:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if is_number else "a number"
    if keyword == "required":
        is_names = isinstance(value, list) and all(isinstance(name, str) for name in value)
        return None if is_names else "an array of strings"
    return None


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {list: "an array", dict: "an object", str: "a string", bool: "a boolean"}
    return names.get(type(value), "a number")
