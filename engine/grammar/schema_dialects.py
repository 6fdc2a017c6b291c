"""Schemas of older drafts, of OpenAPI and of common libraries, in the words that grammars know.

Leaves out what allows every value, and says the same otherwise. Does not judge what remains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# Where schemas stand in a schema.
ONE: Final = frozenset({"additionalProperties", "additionalItems", "items"})
SEVERAL: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})

# keyword -> its values that allow everything.
_IDLE: Final[Mapping[str, tuple[Any, ...]]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),  # zod writes the last one; names are texts
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "not": (False,),
    "exclusiveMinimum": (False,),  # draft 4
    "exclusiveMaximum": (False,),
    "required": ([],),
}
# keyword -> those without which it means nothing.
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "then": ("if",),
    "else": ("if",),
    "if": ("then", "else"),
    "minContains": ("contains",),
    "maxContains": ("contains",),
}
# The formats that JSON Schema names; all others are notes.
STANDARD_FORMATS: Final = frozenset({
    "date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4",
    "ipv6", "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer", "time", "uri",
    "uri-reference", "uri-template", "uuid",
})  # fmt: skip
# OpenAPI's formats of whole numbers. Up to 2^53, where floats are exact, as readers take them.
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**53), 2**53),
    "uint8": (0, 2**8 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**53),
}
# zod's pattern of mail addresses, in two spellings, holds look-aheads (no dot first, no two in a
# row), which grammars do not know -> the same without.
_PATTERNS: Final[Mapping[str, str]] = {
    rf"^(?!\.)(?!.*\.\.)([{az}0-9_'+\-\.]*)[{az}0-9_+-]@([{az}0-9][{az}0-9\-]*\.)+[{az}]{{2,}}$": (
        rf"^([{az}0-9_'+\-]+\.?)*[{az}0-9_+-]@([{az}0-9][{az}0-9\-]*\.)+[{az}]{{2,}}$"
    )
    for az in ("A-Za-z", "a-zA-Z")
}
_NOTES: Final = frozenset({"password", "binary", "float", "double", "decimal"})


def plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in plain words. Values that stand in it (`enum`, `const`, `default`) stay as they are.

    It must be no deeper than Python's stack.
    """
    plain = {}
    for keyword, value in schema.items():
        if keyword in NAMED and isinstance(value, dict | None):
            value = {name: _plain(inner) for name, inner in (value or {}).items()}
        elif isinstance(value, list) and (keyword in SEVERAL or keyword == "items"):
            value = [_plain(inner) for inner in value]
        elif keyword in ONE:
            value = _plain(value)
        elif keyword == "pattern":
            value = _PATTERNS.get(value, value)
        if not _is_idle(keyword, value, schema):
            plain[keyword] = value
    return _with_numeric_format(_with_exclusive_bounds(plain))


def _plain(value: Any) -> Any:
    """What stands in a schema's place may be a boolean, or a mistake that is told later."""
    return plain_schema(value) if isinstance(value, dict) else value


def _is_idle(keyword: str, value: Any, schema: Mapping[str, Any]) -> bool:
    if value is None and keyword not in ("const", "default"):  # as programs write what they lack
        return True
    if keyword == "format":
        return _is_note(value, schema)
    if needed := _NEEDED.get(keyword):
        return not any(name in schema for name in needed)
    return any(value == idle and type(value) is type(idle) for idle in _IDLE.get(keyword, ()))


def _is_note(name: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a format says nothing of what is valid: of texts it is not, or its pattern does."""
    if name in _NOTES or ("pattern" in schema and name not in STANDARD_FORMATS):
        return True
    return "string" not in _types(schema) and name not in _RANGES


def _types(schema: Mapping[str, Any]) -> list[Any]:
    kinds = schema.get("type", ["string"])
    return kinds if isinstance(kinds, list) else [kinds]


def _with_exclusive_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """Draft 4's and OpenAPI's `"minimum": 3, "exclusiveMinimum": true` as one bound."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True and bound in schema:
            schema[exclusive] = schema.pop(bound)
    return schema


def _with_numeric_format(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI's format of a whole number as its bounds."""
    name = schema.get("format")
    kinds = _types(schema)
    if not isinstance(name, str) or name not in _RANGES:
        return schema
    if "integer" not in kinds or "number" in kinds or "string" in kinds:
        return schema
    least, most = _RANGES[name]
    del schema["format"]
    for bound, exclusive, value, narrower in (
        ("minimum", "exclusiveMinimum", least, max),
        ("maximum", "exclusiveMaximum", most, min),
    ):
        given = schema.get(bound, value)
        if exclusive not in schema and isinstance(given, int | float):
            schema[bound] = narrower(given, value)
    return schema
