"""Which JSON types a tool's schema allows an argument, where a format does not tell 5 from "5".

Knows as much of JSON Schema as that takes: what it cannot tell may be anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from engine.tool_formats.python_literal import to_json

ALL: Final = frozenset({"string", "number", "boolean", "object", "array", "null"})
TEXT: Final = frozenset({"string"})
_MAX_DEPTH: Final = 32  # of references; a schema may refer to itself


def allowed_types(schema: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """Of `ALL`; integers are numbers. root: the schema that local references are into."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return ALL
    allowed = ALL
    if isinstance(reference := schema.get("$ref"), str):
        allowed &= allowed_types(_referred(reference, root), root, depth + 1)
    if "type" in schema:
        named = schema["type"]
        names = [named] if isinstance(named, str) else named if isinstance(named, list) else ALL
        allowed &= {"number" if name == "integer" else name for name in names}
    if isinstance(values := schema.get("enum"), list):
        allowed &= set(map(type_of, values))
    if "const" in schema:
        allowed &= {type_of(schema["const"])}
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list):
            allowed &= ALL.intersection(
                name for choice in choices for name in allowed_types(choice, root, depth + 1)
            )
    if isinstance(parts := schema.get("allOf"), list):
        for part in parts:
            allowed &= allowed_types(part, root, depth + 1)
    return allowed


def read_bare(text: str, allowed: frozenset[str]) -> str:
    """The value that a bare text stands for, as JSON: one of an allowed type, if it can be."""
    value = to_json(text)
    if value and (type_of(json.loads(value)) in allowed or "string" not in allowed):
        return value
    return json.dumps(text, ensure_ascii=False)


def _referred(reference: str, root: Any) -> Any:
    """What a local reference is to; None when it is to nothing here."""
    found = root
    for part in reference.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if reference.startswith("#") else None


def type_of(value: Any) -> str:
    """The type of a value, as `ALL` names it."""
    match value:
        case str():
            return "string"
        case None:
            return "null"
        case bool():
            return "boolean"
        case list():
            return "array"
        case dict():
            return "object"
    return "number"
