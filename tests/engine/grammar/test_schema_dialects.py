"""Schemas of older drafts, OpenAPI and zod: what they mean there, said as JSON Schema 2020-12."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from engine.grammar.json_schema import check_schema
from engine.grammar.schema_dialects import plain_schema

TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
# zod 4's z.email()
ZOD_EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+"
    r"[A-Za-z]{2,}$"
)


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        # zod 4's z.record
        ({**TEXTS, "propertyNames": {"type": "string"}}, TEXTS),
        ({"type": "array", "uniqueItems": False}, {"type": "array"}),
        ({"type": "object", "unevaluatedProperties": {}}, {"type": "object"}),
        ({"type": "object", "required": [], "dependentRequired": {}}, {"type": "object"}),
        ({"type": "integer", "not": False, "then": {"const": 1}}, {"type": "integer"}),
        ({"type": "integer", "if": {"const": 1}}, {"type": "integer"}),
        # nulls, as programs write a field that they leave empty
        (
            {"type": "object", "properties": None, "required": None},
            {"type": "object", "properties": {}},  # as of a tool without arguments
        ),
        ({"type": "array", "items": None, "format": None}, {"type": "array"}),
        ({"const": None, "default": None}, {"const": None, "default": None}),
        # draft 4, OpenAPI 3.0
        ({"minimum": 3, "exclusiveMinimum": True}, {"exclusiveMinimum": 3}),
        ({"maximum": 3, "exclusiveMaximum": False}, {"maximum": 3}),
        # formats: of numbers, and of texts that have a pattern or none
        ({"type": "number", "format": "double"}, {"type": "number"}),
        (
            {"type": "integer", "format": "int32"},
            {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
        ),
        (
            {"type": ["integer", "null"], "format": "uint8", "minimum": -5, "exclusiveMaximum": 9},
            {"type": ["integer", "null"], "minimum": 0, "exclusiveMaximum": 9},
        ),
        ({"type": "string", "format": "password"}, {"type": "string"}),
        (
            {"type": "string", "format": "ulid", "pattern": "^[0-9A-Z]{26}$"},
            {"type": "string", "pattern": "^[0-9A-Z]{26}$"},
        ),
        ({"type": "string", "format": "uuid"}, {"type": "string", "format": "uuid"}),
        ({"type": "integer", "format": "date"}, {"type": "integer"}),  # it is of texts only
        # in every place where a schema stands, and in no other
        (
            {"$defs": {"a": {"anyOf": [{"items": {"uniqueItems": False}}]}}},
            {"$defs": {"a": {"anyOf": [{"items": {}}]}}},
        ),
        ({"const": {"uniqueItems": False}}, {"const": {"uniqueItems": False}}),
        (
            {"properties": {"uniqueItems": {"type": "integer"}}},
            {"properties": {"uniqueItems": {"type": "integer"}}},
        ),
    ],
)
def test_plain_words(schema: dict[str, Any], plain: dict[str, Any]) -> None:
    before = repr(schema)
    assert plain_schema(schema) == plain
    assert plain_schema(plain) == plain
    assert repr(schema) == before
    assert check_schema(schema, "x") == plain


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": True},
        {"propertyNames": {"pattern": "^a"}},
        {"type": "string", "format": "int32"},
        {"type": "string", "format": "iri", "pattern": "^a"},
        {"if": {"const": 1}, "else": {"const": 2}},
        {"uniqueItems": 0},  # no boolean
    ],
)
def test_what_says_something_stays(schema: dict[str, Any]) -> None:
    assert plain_schema(schema) == schema


def test_zods_mail_addresses_stay_the_same_without_look_aheads() -> None:
    plain = plain_schema({"type": "string", "format": "email", "pattern": ZOD_EMAIL})["pattern"]
    assert "(?!" not in plain
    before = ["".join(letters) for n in range(6) for letters in itertools.product("a.'-", repeat=n)]
    for address in [f"{text}@b.co" for text in before] + [f"a@{text}.co" for text in before]:
        assert bool(re.search(plain, address)) == bool(re.search(ZOD_EMAIL, address)), address
