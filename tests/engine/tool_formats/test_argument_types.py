"""Which types a schema allows, by JSON Schema; what a bare text stands for among them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.tool_formats.argument_types import ALL, allowed_types, read_bare

ROOT = {
    "$defs": {
        "Colour": {"enum": ["red", "5"]},
        "Size": {"$ref": "#/$defs/Whole"},
        "Whole": {"type": "integer"},
        "Loop": {"$ref": "#/$defs/Loop"},
        "a/b": {"type": "null"},
    }
}


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ({"type": "string"}, "string"),
        ({"type": "integer"}, "number"),
        ({"type": ["string", "null"]}, "string null"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, "string null"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "number"),
        ({"allOf": [{"type": ["string", "number"]}, {"type": "string"}]}, "string"),
        ({"enum": ["a", "b"]}, "string"),
        ({"enum": [1, True, None]}, "number boolean null"),
        ({"const": [1]}, "array"),
        ({"$ref": "#/$defs/Colour"}, "string"),
        ({"$ref": "#/$defs/Size"}, "number"),
        ({"$ref": "#/$defs/a~1b"}, "null"),
    ],
)
def test_types(schema: dict[str, Any], names: str) -> None:
    assert allowed_types(schema, ROOT) == set(names.split())


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {},
        True,
        {"$ref": "#/$defs/Loop"},
        {"$ref": "x.json#/a"},
        {"$ref": "#/no"},
        {"type": 1},
    ],
)
def test_what_is_not_told_may_be_anything(schema: Any) -> None:
    assert allowed_types(schema, ROOT) == ALL


@pytest.mark.parametrize(
    ("text", "names", "value"),
    [
        ("5", "string null", "5"),  # a house number
        ("null", "string null", None),
        ("true", "string null", "true"),
        ("5", "number string", 5),
        ("5", "number", 5),
        ("None", "string null", None),
        ("{'a': 1}", "object string", {"a": 1}),
        ('{"a": 1}', "string", '{"a": 1}'),
        ("five", "number", "five"),  # the model is wrong: what it said is passed on
        ("5", "boolean", 5),
        (" 5 ", "string null", " 5 "),
    ],
)
def test_bare_texts(text: str, names: str, value: Any) -> None:
    assert json.loads(read_bare(text, frozenset(names.split()))) == value
