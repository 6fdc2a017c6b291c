"""Some two hundred JSON schemas of the kinds that people ask replies to follow."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
SHORT: Schema = {"type": "string", "maxLength": 24}
SMALL: Schema = {"type": "integer", "minimum": 0, "maximum": 99}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}


def obj(required: bool = True, more: Any = False, /, **properties: Any) -> Schema:
    """An object; its properties are all required, or none; `more` is additionalProperties."""
    names = list(properties) if required else []
    return {
        "type": "object", "properties": properties, "required": names, "additionalProperties": more,
    }  # fmt: skip


def array(items: Any, least: int = 0, most: int = 3, **more: Any) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most, **more}


def ref(name: str, **definitions: Any) -> Schema:
    schema: Schema = {"$ref": f"#/$defs/{name}"}
    return {**schema, "$defs": definitions} if definitions else schema


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, NULL]}


def one_of_kinds(**kinds: Schema) -> list[Schema]:
    """Objects told apart by their property "kind"."""
    return [obj(kind={"const": name}, value=schema) for name, schema in kinds.items()]


def chain(n: int) -> Schema:
    """Objects within objects."""
    schema = obj(leaf=BOOLEAN)
    for i in range(n):
        schema = obj(**{f"level_{i}": schema})
    return schema


ADDRESS = obj(street=SHORT, city=SHORT, zip={"type": "string", "pattern": "^[0-9]{5}$"})
PERSON = obj(name=SHORT, age=SMALL, email={"type": "string", "format": "email", "maxLength": 30})
POINT = obj(x=NUMBER, y=NUMBER)
COLOURS = {"enum": ["red", "green", "blue"]}

STRINGS: list[Schema] = [
    SHORT,
    {"type": "string", "minLength": 3, "maxLength": 8},
    {"type": "string", "minLength": 5, "maxLength": 5},
    {"type": "string", "maxLength": 0},
    *({"type": "string", "pattern": pattern} for pattern in (
        "^[a-z]+$", "^[A-Z][a-z]{2,8}$", r"^\d{3}-\d{4}$", r"^\(\d{3}\) \d{3}-\d{4}$",
        "^(yes|no|maybe)$", "^#[0-9a-fA-F]{6}$", r"^v\d+\.\d+\.\d+$", "^[A-Z]{2}[0-9]{2}$",
        "^.{1,10}$", r"^\w{4,12}$", "^(0|[1-9][0-9]{0,3})$", r"^[^\s]{1,12}$", "^a{3}b?c*$",
        "^x|y$", r"^/[a-z/]{1,20}$", r"^[\w.]{1,10}@[a-z]{2,8}\.com$", "^é{1,3}$", r"^\$\d+$",
        "^[a-z]+(-[a-z]+){0,3}$", r"^[\d ]{4}$", '^"[a-z]+"$', r"^\\[a-z]$",
    )),
    *({"type": "string", "format": name} for name in (
        "date", "time", "date-time", "duration", "ipv4", "ipv6", "uuid", "hostname", "email",
    )),
    {"type": "string", "format": "uri", "maxLength": 40},
    {"type": "string", "pattern": "^[a-z]*$", "minLength": 2, "maxLength": 6},
    {"type": "string", "contentEncoding": "base64", "maxLength": 12},
]  # fmt: skip

NUMBERS: list[Schema] = [
    SMALL,
    {"type": "integer", "minimum": 3, "maximum": 120},
    {"type": "integer", "minimum": -12, "maximum": -3},
    {"type": "integer", "minimum": -5, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    {"type": "integer", "minimum": 1000},
    {"type": "integer", "maximum": -1},
    {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 1000},
    {"type": "integer", "minimum": 7, "maximum": 7},
    {"type": "integer", "minimum": 99999, "maximum": 1000001},
    {"type": "integer", "minimum": 1.5, "maximum": 9.5},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "minimum": -1.5, "maximum": 1.5},
    {"type": "number", "exclusiveMinimum": 0},
    {"type": "number", "exclusiveMaximum": 0},
    {"type": "number", "minimum": 36.5, "maximum": 41.25},
    {"type": "number", "minimum": 0.001, "maximum": 0.002},
    {"type": "number", "exclusiveMinimum": 2, "exclusiveMaximum": 3},
    {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 50},
    {"type": "number", "minimum": -180, "maximum": 180},
]

CHOICES: list[Schema] = [
    COLOURS,
    {"enum": [1, 2, 3]},
    {"enum": ["a", 1, None, True, 2.5]},
    {"enum": [{"a": 1}, {"a": 2, "b": [1, 2]}]},
    {"enum": [[1, 2], [3]]},
    {"enum": ["with \"quotes\"", "and\nlines", "é€😀", "back\\slash", "a/b"]},
    {"type": "string", "enum": ["", " ", "  "]},
    {"type": "integer", "enum": [-1, 0, 1]},
    {"type": ["string", "null"], "enum": ["x", None]},
    {"const": "fixed"},
    {"const": 42},
    {"const": None},
    {"const": {"a": [True, {"b": "c"}]}},
    {"const": -0.5},
    {"const": []},
    {"enum": [f"OPTION_{i}" for i in range(60)]},
    {"enum": ["true", True]},
    {"type": "string", "const": "é"},
]  # fmt: skip

OBJECTS: list[Schema] = [
    obj(),
    obj(a=BOOLEAN),
    obj(a=SHORT, b=SMALL, c=BOOLEAN, d=NULL),
    obj(False, False, a=SHORT, b=SMALL),
    obj(True, SMALL, a=SHORT),
    {"type": "object", "properties": {"a": SMALL, "b": SMALL, "c": SMALL}, "required": ["b"],
     "additionalProperties": False},
    {"type": "object", "additionalProperties": SMALL, "maxProperties": 3},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "properties": {"a": SMALL}, "required": ["a"]},
    {"type": "object", "required": ["name", "value"], "additionalProperties": SMALL},
    {"type": "object", "patternProperties": {"^x_[a-z]{1,4}$": SMALL},
     "additionalProperties": False},
    {"type": "object", "patternProperties": {"^[a-z]{2}$": SHORT}, "additionalProperties": False,
     "minProperties": 1, "maxProperties": 2},
    obj(**{"with space": SMALL, "with-dash": SMALL, "ünï": SMALL, "with\"quote": SMALL, "": SMALL}),
    obj(**{"$ref": SMALL, "type": SHORT, "properties": BOOLEAN}),
    obj(**{f"field_{i}": BOOLEAN for i in range(20)}),
    obj(False, False, **{f"maybe_{i}": SMALL for i in range(12)}),
    PERSON,
    ADDRESS,
    obj(person=PERSON, address=ADDRESS),
    obj(a=obj(b=obj(c=obj(d=SMALL)))),
    chain(8),
    chain(20),
    obj(point=POINT, label=nullable(SHORT)),
    obj(id={"type": "string", "format": "uuid"}, at={"type": "string", "format": "date-time"}),
    obj(title=SHORT, tags=array(SHORT, 1, 4), published=BOOLEAN,
        rating={**NUMBER, "minimum": 0, "maximum": 5}),
    {"title": "Described", "description": "With annotations", "$schema":
     "https://json-schema.org/draft/2020-12/schema", **obj(a={**SMALL, "title": "A", "default": 3,
     "examples": [1, 2], "deprecated": True})},
    {"$schema": "http://json-schema.org/draft-07/schema#", **obj(a=SHORT)},
    obj(count={"type": ["integer", "null"], "minimum": 0, "maximum": 9}),
    obj(any={}, other=True),
    {"properties": {"a": SMALL}, "type": "object", "required": ["a"],
     "additionalProperties": SHORT},
]  # fmt: skip

ARRAYS: list[Schema] = [
    array(SMALL),
    array(SMALL, 3, 3),
    array(SHORT, 2, 5),
    array(BOOLEAN, 1, 10),
    array(COLOURS, 2, 4),
    array(array(SMALL, 1, 2), 1, 3),
    array(array(array(NULL))),
    array(POINT, 1, 2),
    array(obj(id=SMALL, tags=array(COLOURS)), 2, 2),
    array({"anyOf": [SMALL, SHORT, NULL]}, 2, 4),
    {"type": "array", "prefixItems": [SHORT, SMALL], "items": False, "minItems": 2},
    {"type": "array", "prefixItems": [SHORT, SMALL], "items": BOOLEAN, "minItems": 2,
     "maxItems": 4},
    {"type": "array", "prefixItems": [COLOURS, SMALL, POINT], "items": False},
    {"type": "array", "items": False},
    {"type": "array", "maxItems": 0},
    {"type": "array", "items": {"const": 1}, "minItems": 10, "maxItems": 10},
    {"type": "array", "items": SMALL, "maxItems": 6},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
     "items": [SHORT, SMALL], "additionalItems": False, "minItems": 2},
    {"type": "array", "minItems": 1, "maxItems": 2},
    array({"type": "string", "format": "date"}, 2, 3),
]  # fmt: skip

COMBINATIONS: list[Schema] = [
    {"anyOf": [SMALL, SHORT]},
    {"anyOf": [PERSON, ADDRESS]},
    {"anyOf": one_of_kinds(number=SMALL, text=SHORT, flag=BOOLEAN)},
    {"oneOf": one_of_kinds(number=SMALL, text=SHORT)},
    {"oneOf": [BOOLEAN, NULL, SMALL]},
    {"oneOf": [{"const": "a"}, {"const": "b"}, {"type": "object", "maxProperties": 0}]},
    obj(shape={"oneOf": one_of_kinds(circle=NUMBER, square=SMALL, polygon=array(POINT, 1, 2))}),
    {"allOf": [obj(True, True, a=SMALL), obj(True, True, b=SHORT)]},
    {"allOf": [{"type": "integer"}, {"minimum": 10}, {"maximum": 20}]},
    {"allOf": [{"type": "string", "minLength": 2}, {"pattern": "^[a-f]*$"}, {"maxLength": 5}]},
    {"allOf": [ref("base"), {"required": ["a"]}], "$defs": {"base": obj(False, False, a=SMALL)}},
    {"type": "object", "properties": {"a": SMALL}, "required": ["a"], "additionalProperties": False,
     "anyOf": [{"properties": {"a": {"minimum": 50}}}, {"properties": {"a": {"maximum": 10}}}]},
    {"type": ["integer", "string"], "maxLength": 10, "minimum": 0},
    {"type": ["object", "array"], "maxItems": 2, "items": SMALL, "additionalProperties": SMALL,
     "maxProperties": 2},
    {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "string", "pattern": "^x+$"}]},
    nullable(PERSON),
    nullable(array(SMALL)),
    obj(a=nullable(SHORT), b=nullable(SMALL), c=nullable(POINT)),
    {"anyOf": [{"anyOf": [NULL, {"anyOf": [BOOLEAN]}]}, {"const": 3}]},
    {"anyOf": [array(SMALL, 1), obj(more=array(SHORT, 1))]},
]  # fmt: skip

NODE = obj(value=SMALL, next=nullable(ref("node")))
TREE = obj(name=SHORT, children=array(ref("tree"), 0, 2))
EXPRESSION = {"anyOf": [SMALL, obj(op={"enum": ["+", "*"]}, left=ref("e"), right=ref("e"))]}

REFERENCES: list[Schema] = [
    ref("colour", colour=COLOURS),
    {**obj(c=ref("C")), "$defs": {"C": {"enum": ["Alice", "Biff"]}}},
    {**obj(home=ref("address"), work=ref("address")), "$defs": {"address": ADDRESS}},
    {**obj(a=ref("x")), "$defs": {"x": ref("y"), "y": ref("z"), "z": SMALL}},
    {**obj(a={"$ref": "#/definitions/x"}), "definitions": {"x": SHORT}},
    {**obj(a={"$ref": "#/properties/b"}, b=SMALL)},
    {**obj(a={"$ref": "#/$defs/a~1b"}, b={"$ref": "#/$defs/m~0n"}),
     "$defs": {"a/b": SMALL, "m~n": BOOLEAN}},
    ref("node", node=NODE),
    ref("tree", tree=TREE),
    ref("e", e=EXPRESSION),
    {**obj(v=SMALL, next=nullable({"$ref": "#"}))},
    {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    {**obj(even=nullable(ref("odd"))), "$defs": {"odd": obj(odd=nullable({"$ref": "#"}))}},
    {**array({"anyOf": [ref("leaf"), ref("branch")]}, 1, 2),
     "$defs": {"leaf": SMALL, "branch": obj(items=array(ref("leaf"), 1, 2))}},
    {**obj(a={"$ref": "#/$defs/s", "description": "described"}), "$defs": {"s": SHORT}},
    {"$id": "https://example.com/s", **obj(a=ref("s")), "$defs": {"s": SMALL}},
    {**obj(a={"$ref": "#anchored"}), "$defs": {"s": {"$anchor": "anchored", **SMALL}}},
    {**obj(lists=array(ref("list"), 1, 2)),
     "$defs": {"list": array(ref("item"), 1, 2), "item": COLOURS}},
    {**obj(menu=array(ref("dish"), 1, 3)), "$defs": {"dish": obj(
        name=SHORT, price={"type": "number", "minimum": 0, "maximum": 100},
        diet=array({"enum": ["vegan", "halal"]}, 0, 2))}},
    {"$defs": {"unused": {"type": "string"}}, **SMALL},
]  # fmt: skip

# As users of APIs write them.
REALISTIC: list[Schema] = [
    obj(location=SHORT, unit={"enum": ["celsius", "fahrenheit"]}),
    obj(
        sentiment={"enum": ["positive", "negative", "neutral"]},
        confidence={"type": "number", "minimum": 0, "maximum": 1},
    ),
    obj(steps=array(obj(explanation=SHORT, output=SHORT), 1, 3), final_answer=SHORT),
    obj(name=SHORT, date={"type": "string", "format": "date"}, participants=array(SHORT, 1, 3)),
    obj(
        invoice=obj(
            number={"type": "string", "pattern": "^INV-[0-9]{4}$"},
            lines=array(
                obj(
                    item=SHORT,
                    quantity={"type": "integer", "minimum": 1, "maximum": 50},
                    price={"type": "number", "minimum": 0},
                ),
                1,
                2,
            ),
            total={"type": "number", "minimum": 0},
        )
    ),
    obj(
        entities=array(
            obj(
                text=SHORT, type={"enum": ["PERSON", "ORG", "GPE", "DATE"]}, start=SMALL, end=SMALL
            ),
            0,
            3,
        )
    ),
    obj(
        query=SHORT,
        filters=obj(
            False,
            False,
            year={"type": "integer", "minimum": 1900, "maximum": 2100},
            language={"type": "string", "pattern": "^[a-z]{2}$"},
        ),
        limit={"type": "integer", "minimum": 1, "maximum": 100},
    ),
    obj(tool={"const": "search"}, arguments=obj(q=SHORT, page=nullable(SMALL))),
    obj(is_spam=BOOLEAN, reason=nullable(SHORT)),
    obj(
        title=SHORT,
        ingredients=array(obj(name=SHORT, amount=NUMBER, unit={"enum": ["g", "ml", "cup"]}), 1, 3),
        minutes=SMALL,
    ),
    obj(sql={"type": "string", "pattern": "^SELECT [a-z_, ]{1,20} FROM [a-z_]{1,12};$"}),
    obj(answer={"enum": ["A", "B", "C", "D"]}),
    obj(
        host={"type": "string", "format": "hostname"},
        ip={"type": "string", "format": "ipv4"},
        port={"type": "integer", "minimum": 1, "maximum": 65535},
    ),
    obj(
        rows=array(
            {
                "type": "array",
                "prefixItems": [SHORT, SMALL, BOOLEAN],
                "items": False,
                "minItems": 3,
            },
            1,
            2,
        )
    ),
    obj(
        user=obj(
            id={"type": "string", "format": "uuid"},
            roles=array({"enum": ["admin", "user"]}, 1, 2),
            profile=nullable(obj(bio=SHORT, links=array(SHORT, 0, 2))),
        )
    ),
    obj(events=array({"anyOf": one_of_kinds(click=POINT, key=SHORT, scroll=SMALL)}, 1, 3)),
    {
        "type": "object",
        "properties": {
            "translations": {
                "type": "object",
                "patternProperties": {"^[a-z]{2}$": SHORT},
                "additionalProperties": False,
                "maxProperties": 3,
            }
        },
        "required": ["translations"],
        "additionalProperties": False,
    },
    obj(
        bounding_box={
            "type": "array",
            "items": {"type": "number", "minimum": 0, "maximum": 1},
            "minItems": 4,
            "maxItems": 4,
        },
        label=COLOURS,
    ),
    obj(cron={"type": "string", "pattern": r"^(\*|[0-9]{1,2}) (\*|[0-9]{1,2}) \* \* (\*|[0-6])$"}),
    obj(
        grade={"type": "integer", "multipleOf": 10, "minimum": 0, "maximum": 100},
        comment=SHORT,
        passed=BOOLEAN,
    ),
]

# Each also inside an object and inside an array, as most are in practice.
SIMPLE = STRINGS[2:8] + NUMBERS[:8] + CHOICES[:6]
NESTED = [obj(result=schema) for schema in SIMPLE] + [array(schema, 1, 2) for schema in SIMPLE]

ALL: dict[str, list[Schema]] = {
    "string": STRINGS,
    "number": NUMBERS,
    "choice": CHOICES,
    "object": OBJECTS,
    "array": ARRAYS,
    "combination": COMBINATIONS,
    "reference": REFERENCES,
    "realistic": REALISTIC,
    "nested": NESTED,
}
