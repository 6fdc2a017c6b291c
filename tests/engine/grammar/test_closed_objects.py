from __future__ import annotations

import copy
import itertools
from typing import Any

import jsonschema
import pytest

from engine.grammar.closed_objects import close_objects

A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CLOSED_A = {**A, "additionalProperties": False}
B = {"type": "object", "properties": {"b": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        (A, CLOSED_A),
        ({"type": "array", "items": A}, {"type": "array", "items": CLOSED_A}),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": A}},
            {"$ref": "#/$defs/A", "$defs": {"A": CLOSED_A}},
        ),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [CLOSED_A, {"type": "null"}]}),
        (
            {"properties": {"x": A}},
            {"properties": {"x": CLOSED_A}, "additionalProperties": False},
        ),
        # A Rust enumeration with a comment on each value, as schemars writes it.
        (
            {
                "properties": {
                    "unit": {"oneOf": [{"const": "C"}, {"type": "string", "enum": ["F"]}]}
                }
            },
            {
                "properties": {
                    "unit": {"oneOf": [{"const": "C"}, {"type": "string", "enum": ["F"]}]}
                },
                "additionalProperties": False,
            },
        ),
        # An older pydantic's way to give a reference a title.
        ({"allOf": [A], "title": "x"}, {"allOf": [CLOSED_A], "title": "x"}),
    ],
)
def test_objects_are_closed(schema: Any, closed: Any) -> None:
    before = copy.deepcopy(schema)
    assert close_objects(schema) == closed
    assert schema == before


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        {**A, "additionalProperties": True},
        {**A, "additionalProperties": {"type": "string"}},
        {**A, "patternProperties": {"^x": {}}},
        {**A, "required": ["a", "b"]},
        {**B, "minProperties": 2},
        {"properties": {"a": {}}, "enum": [{"a": 1, "b": 2}]},
        {"properties": {"a": {}}, "const": {"c": 1}},
        {"allOf": [A, B]},
        {"allOf": [{"$ref": "#/$defs/A"}], "properties": {"c": {}}, "$defs": {"A": A}},
        {"$ref": "#/$defs/A", "properties": {"c": {}}, "$defs": {"A": A}},
        {"anyOf": [A, B], "properties": {"c": {}}},
        {"anyOf": [A, B], "required": ["c"]},
        {"oneOf": [A, B]},
        {"oneOf": [{"type": "array", "items": A}, {"type": "array", "items": B}]},
        {"oneOf": [{"type": "null"}, True], "$defs": {"A": A}},
    ],
)
def test_what_says_otherwise_or_would_lose_its_sense_stays(schema: Any) -> None:
    assert close_objects(schema) == schema


def test_what_a_closed_schema_takes_the_open_one_takes() -> None:
    names = ("a", "b", "c")
    values = [
        dict.fromkeys(chosen, 1) for n in range(4) for chosen in itertools.combinations(names, n)
    ]
    for schema in (A, B, {"anyOf": [A, B]}, {"oneOf": [A, B]}, {"allOf": [A, B]}):
        closed = jsonschema.Draft202012Validator(close_objects(schema))
        taken = [value for value in values if closed.is_valid(value)]
        assert taken
        for value in taken:
            jsonschema.validate(value, schema)
