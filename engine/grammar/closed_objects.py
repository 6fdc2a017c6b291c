"""Objects of a JSON schema that leave open which other properties they have: they get none.

Every such reply is valid all the same, and small models come to an end: what a schema does not name
they invent without one. Most schemas that programs derive from classes are of this kind. Where
parts of a schema are laid over each other, closing one would forbid what another asks for: such a
schema stays as it is.
"""

from __future__ import annotations

import json
from typing import Any, Final

from engine.grammar.schema_shape import subschemas

_SCALARS: Final = ("string", "integer", "number", "boolean", "null")
_SAYS_WHICH: Final = ("additionalProperties", "patternProperties", "const", "enum")


def close_objects(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy of a checked schema whose objects have only the properties that are named in it."""
    closed: dict[str, Any] = json.loads(json.dumps(schema))
    parts = [part for _, part in subschemas(closed) if isinstance(part, dict)]
    if not any(map(_is_laid_over_another, parts)):
        for part in filter(_is_open, parts):
            part["additionalProperties"] = False
    return closed


def _is_laid_over_another(part: dict[str, Any]) -> bool:
    """Two schemas for one value. A `oneOf` of objects counts too: what only one of the closed ones
    allows, two of the open ones may.
    """
    others = sum(keyword in part for keyword in ("$ref", "anyOf", "allOf", "oneOf"))
    is_named = "properties" in part or "required" in part
    overlaps = not all(map(_is_scalar, part.get("oneOf", ())))
    return overlaps or len(part.get("allOf", ())) > 1 or others + is_named > 1


def _is_scalar(part: Any) -> bool:
    """Whether no object can be in it that closing would change."""
    if not isinstance(part, dict):
        return part is False
    return "const" in part or "enum" in part or part.get("type") in _SCALARS


def _is_open(part: dict[str, Any]) -> bool:
    properties = part.get("properties")
    return (
        isinstance(properties, dict)
        and bool(properties)
        and not any(keyword in part for keyword in _SAYS_WHICH)
        and set(part.get("required", ())) <= set(properties)
        and part.get("minProperties", 0) <= len(properties)
    )
