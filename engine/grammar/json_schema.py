"""Whether a JSON schema can be enforced to the letter; what cannot is refused by name.

llguidance compiles schemas (grammar.py) and refuses some of what it cannot enforce. This finds the
rest, which it would ignore: unknown keywords and formats, schemas that no finite text satisfies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from engine.errors import InvalidRequest
from engine.grammar.schema_dialects import NAMED, ONE, SEVERAL, plain_schema
from engine.grammar.schema_shape import check_shape, subschemas

Schema = Mapping[str, Any] | bool

_MAX_DEPTH: Final = 100  # nested values; a compiler's stack is not endless
_MAX_REFS: Final = 1000  # the time to check them grows with their square

_ENFORCED: Final = ONE | SEVERAL | NAMED | {
    "$ref", "const", "enum", "type", "minItems", "maxItems", "required", "minProperties",
    "maxProperties", "minLength", "maxLength", "pattern", "format", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
}  # fmt: skip

# These say nothing about which values are valid; extensions named x-... neither.
_ANNOTATIONS: Final = frozenset({
    "$anchor", "$comment", "$id", "$schema", "id", "title", "description", "default", "example",
    "examples", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType",
    "contentSchema", "deprecationMessage", "discriminator", "enumDescriptions", "enumNames",
    "errorMessage", "externalDocs", "markdownDescription", "markdownEnumDescriptions", "nullable",
    "propertyOrder", "propertyOrdering", "xml",
})  # fmt: skip

# In JSON Schema, but nothing that a grammar here enforces.
_REFUSED: Final = frozenset({
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems",
    "propertyNames", "dependentRequired", "dependentSchemas", "dependencies",
    "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$dynamicAnchor", "$recursiveRef",
    "$recursiveAnchor", "$vocabulary",
})  # fmt: skip

_FORMATS: Final = frozenset({
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid",
})  # fmt: skip


def check_schema(schema: Any, param: str) -> dict[str, Any]:
    """The schema as an object in plain words, when every reply can be made to satisfy it.

    Raises InvalidRequest, for the request's field `param`, naming the keyword and its place.
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    _check_depth(schema, param)
    check_shape(schema, param)
    plain = plain_schema(schema)
    _check_keywords(plain, param)
    return plain


def _check_keywords(schema: dict[str, Any], param: str) -> None:
    """Raises InvalidRequest."""
    for path, subschema in subschemas(schema):
        if isinstance(subschema, dict) and (problem := _problem(subschema)):
            raise InvalidRequest(f"{param}: {problem}, at {path}", param)
    if sum("$ref" in s for _, s in subschemas(schema) if isinstance(s, dict)) > _MAX_REFS:
        raise InvalidRequest(f"{param}: more than {_MAX_REFS} '$ref' in one schema", param)
    if _is_endless(schema):
        raise InvalidRequest(
            f"{param}: the schema requires itself, so that no finite text satisfies it", param
        )


def _problem(schema: dict[str, Any]) -> str | None:
    for keyword in schema:
        if keyword in _ENFORCED or keyword in _ANNOTATIONS or keyword.startswith("x-"):
            continue
        if keyword in _REFUSED:
            return f"the keyword '{keyword}' cannot be enforced here; leave it out"
        return f"'{keyword}' is no known keyword, so it cannot be enforced; leave it out"
    name = schema.get("format")
    if name is not None and name not in _FORMATS:
        return (
            f"the format {name!r} cannot be enforced here; leave it out, or use 'pattern' or one "
            f"of {', '.join(sorted(_FORMATS))}"
        )
    # A grammar does not see that a name comes twice, so of the others it can demand only one.
    n_required = len(set(schema.get("required", ())))
    at_least = schema.get("minProperties", 0)
    if at_least > n_required + 1:
        return (
            f"'minProperties': {at_least} cannot be enforced with {n_required} names in 'required'"
        )
    return None


def _is_endless(root: dict[str, Any]) -> bool:
    """Whether only an endless value would satisfy a schema, because it requires itself."""
    targets = {}
    for _, schema in subschemas(root):
        if isinstance(schema, dict) and isinstance(ref := schema.get("$ref"), str):
            targets[ref] = _resolve(root, ref)
    # References are taken for endless until what they point to is found to end without them.
    endless = {ref for ref, target in targets.items() if target is not None}
    while ended := {ref for ref in endless if not _demands(targets[ref], endless)}:
        endless -= ended
    return _demands(root, endless)


def _demands(schema: Any, refs: set[str]) -> bool:
    """Whether every value of a schema has a part that one of these references stands for."""
    if not isinstance(schema, dict) or "enum" in schema or "const" in schema:
        return False
    return (
        schema.get("$ref") in refs
        or any(_demands(part, refs) for part in _necessary_parts(schema))
        or any(
            bool(options) and all(_demands(option, refs) for option in options)
            for options in (_list(schema.get("anyOf")), _list(schema.get("oneOf")))
        )
    )


def _necessary_parts(schema: dict[str, Any]) -> Iterator[Any]:
    """Schemas that every value must satisfy, itself or in a part that it must have."""
    yield from _list(schema.get("allOf"))
    if schema.get("type") == "object" and isinstance(properties := schema.get("properties"), dict):
        required = _list(schema.get("required"))
        yield from (properties[name] for name in properties if name in required)
    if schema.get("type") == "array" and isinstance(at_least := schema.get("minItems"), int):
        first = _list(schema.get("prefixItems"))
        yield from first[:at_least]
        if at_least > len(first):
            yield schema.get("items")


def _resolve(root: Any, ref: Any) -> Any:
    """What a reference within the document points to; None when it is not such a one."""
    if ref != "#" and not (isinstance(ref, str) and ref.startswith("#/")):
        return None
    target = root
    for step in ref.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(name)
        elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return target


def _check_depth(value: Any, param: str) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            raise InvalidRequest(f"{param}: nested deeper than {_MAX_DEPTH} levels", param)
        inner: list[Any] = []
        for item in level:
            inner += item.values() if isinstance(item, dict) else _list(item)
        level = inner


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
