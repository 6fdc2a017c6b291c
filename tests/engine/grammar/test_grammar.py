"""Grammars: what is allowed, token by token; what is refused, and how it is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import TokenType

from engine.errors import EngineError, InvalidRequest
from engine.files.gguf_file import GGUFFile
from engine.grammar.grammar import Grammar, GrammarState, lark_json
from engine.text.tokenizer import Tokenizer
from tests.vocab_gguf import write_vocab_gguf

MERGES = ["Ġ Ġ", "ĠĠ ĠĠ", "t r", "tr u", "tru e", '{ "', '" :', "1 2", "l l", "a b"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocab") / "vocab.gguf"
    special = {"<|im_end|>": TokenType.CONTROL, "<|call|>": TokenType.CONTROL}
    write_vocab_gguf(path, special | {"<tool>": TokenType.USER_DEFINED}, MERGES, eos="<|im_end|>")
    return Tokenizer.from_gguf(GGUFFile(path))


def is_allowed(state: GrammarState, token_id: int) -> bool:
    return bool(state.allowed()[token_id >> 5] >> np.uint32(token_id & 31) & 1)


def verdict(grammar: Grammar, tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text is one of the grammar's, by bytes: each must be allowed, then the end."""
    state = grammar.start()
    for byte in text.encode():
        token_id = next(i for i in range(256) if tokenizer.vocabulary.bytes_of(i) == bytes([byte]))
        # Where a text is forced the mask has only the token that spells it best: ask the parser.
        if state._matcher.validate_tokens([token_id]) != 1:
            return False
        state.accept(token_id)
    return bool(state._matcher.is_accepting())


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (
            {"type": "integer", "minimum": 3, "maximum": 120},
            ["3", "12", "120"],
            ["2", "121", "03", "007", "-5", "+5", "--4", "3.0"],
        ),
        ({"type": "integer", "minimum": -12, "maximum": -3}, ["-12", "-3"], ["-13", "-2", "3"]),
        ({"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 5}, ["3", "4"], ["2", "5"]),
        ({"type": "integer", "minimum": 7}, ["7", "1000"], ["6", "-7", "07"]),
        ({"type": "number", "minimum": 0.5, "maximum": 1}, ["0.5", "0.75", "1"], ["0.4", "1.1"]),
        ({"enum": ["a", 1, None]}, ['"a"', "1", "null"], ['"b"', "2", "true", ""]),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-13-01"', '"24-1-1"']),
        ({"type": "string", "pattern": "^[a-c]{2}$"}, ['"ab"'], ['"abc"', '"ad"']),
        ({"type": "string", "maxLength": 2}, ['"éé"', '"\\n\\n"', '""'], ['"abc"', '"é\\né"']),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            ["{}", '{"a":1}', '{"a": 1, "b": 2}'],
            ['{"a":"x"}', '{"a":1,}', "[]"],
        ),
        # Another spelling of a property's name would slip past its own schema.
        (
            {"properties": {"a": {"type": "integer"}}, "additionalProperties": True},
            ['{"a":1}', '{"b":"x"}'],
            ['{"\\u0061":"x"}', '{"a":"x"}'],
        ),
        (True, ["1", '{"a":[null]}'], ["{", "nul"]),
    ],
)  # fmt: skip
def test_schemas_allow_what_is_valid(
    schema: Any, valid: list[str], invalid: list[str], tokenizer: Tokenizer
) -> None:
    grammar = Grammar.compile("json_schema", schema, tokenizer)
    assert [text for text in valid if not verdict(grammar, tokenizer, text)] == []
    assert [text for text in invalid if verdict(grammar, tokenizer, text)] == []


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"not": {"type": "null"}}, "'not'"),
        (
            {"type": "object", "properties": {"a": {"if": {}, "then": {}}}},
            "'if' .*at #/properties/a",
        ),
        ({"type": "string", "minLenght": 3}, "'minLenght' is no known keyword"),
        ({"type": "string", "format": "isbn"}, "format 'isbn'"),
        ({"type": "string", "format": "unknown"}, "format 'unknown'"),
        ({"$ref": "#/$defs/missing"}, "/\\$defs/missing"),
        ({"$ref": "#"}, "requires itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "requires itself"),
        (
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            "requires itself",
        ),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "minItems"),
        ({"enum": []}, "nsatisfiable"),
        (False, "nsatisfiable"),
        ({"type": "banana"}, "banana"),
        ({"type": "string", "pattern": "(?=a)"}, "regex parse error: look-around, .* supported"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "use anyOf"),
        ({"type": "object", "minProperties": 2, "additionalProperties": True}, "'minProperties'"),
        ({"type": "object", "properties": {"a": 3}}, "a number, at #/properties/a"),
        ({"type": "object", "properties": {"a": None}}, "null, at #/properties/a"),
        ({"required": True, "properties": {"a": {}}}, "'required' must be an array of strings"),
        ({"properties": {"a": {}}, "required": [1]}, "'required' must be an array of strings"),
        ({"properties": {"a": {}}, "minProperties": "3"}, "'minProperties' must be a number"),
        ({"items": {"allOf": 5}}, "'allOf' must be an array, not a number, at #/items"),
        ({"anyOf": {"type": "null"}}, "'anyOf' must be an array"),
        ({"properties": [{"a": {}}]}, "'properties' must be an object"),
        ({"$ref": ["#"]}, "'\\$ref' must be a string"),
        ({"format": {}}, "'format' must be a string, not an object"),
        ({"type": {}}, "type must be a string"),
        ({"minItems": True}, "'minItems' must be a number, not a boolean"),
        ([1], "an array"),
        (None, "null"),
        ("{", "not JSON"),
        # What would turn llguidance's own checks off.
        ({"x-guidance": {"lenient": True}, "type": "array", "contains": {}}, "'contains'"),
        ({"type": "object", "x-guidance": {"coerce_one_of": True},
          "oneOf": [{"minProperties": 1}, {"maxProperties": 3}]}, "oneOf"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_by_name(
    schema: Any, named: str, tokenizer: Tokenizer
) -> None:
    with pytest.raises(InvalidRequest, match=named) as caught:
        Grammar.compile("json_schema", schema, tokenizer, param="response_format")
    assert caught.value.param == "response_format"
    assert str(caught.value).startswith("response_format: ")
    assert "\n" not in str(caught.value)


def test_annotations_are_no_obstacle(tokenizer: Tokenizer) -> None:
    schema = {"type": "integer", "title": "T", "x-order": 3, "deprecated": True, "nullable": False}
    assert verdict(Grammar.compile("json_schema", schema, tokenizer), tokenizer, "12")


def test_schemas_of_a_thousand_levels_are_refused(tokenizer: Tokenizer) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(1000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(InvalidRequest, match="deeper than 100"):
        Grammar.compile("json_schema", schema, tokenizer)
    text = '{"items":' * 5000 + "{}" + "}" * 5000
    with pytest.raises(InvalidRequest):
        Grammar.compile("json_schema", text, tokenizer)


def test_recursion_that_can_end_is_fine(tokenizer: Tokenizer) -> None:
    following = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    node = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": following},
        "required": ["v", "next"],
        "additionalProperties": False,
    }
    grammar = Grammar.compile("json_schema", node, tokenizer)
    assert verdict(grammar, tokenizer, '{"v":1,"next":{"v":2,"next":null}}')
    assert not verdict(grammar, tokenizer, '{"v":1,"next":{"v":2,"next":{}}}')


def test_references_may_be_many_and_in_circles(tokenizer: Tokenizer) -> None:
    """Neither recursion nor time runs away."""

    def chain(n: int, last: Any, step: Any) -> dict[str, Any]:
        steps = {f"x{i}": step({"$ref": f"#/$defs/x{i + 1}"}) for i in range(n)}
        return {"$ref": "#/$defs/x0", "$defs": {**steps, f"x{n}": last}}

    straight = Grammar.compile("json_schema", chain(900, {"type": "null"}, lambda r: r), tokenizer)
    assert verdict(straight, tokenizer, "null")
    twice = chain(60, {"$ref": "#/$defs/x0"}, lambda r: {"anyOf": [r, {"allOf": [r, r]}]})
    with pytest.raises(InvalidRequest, match="requires itself"):
        Grammar.compile("json_schema", twice, tokenizer)
    with pytest.raises(InvalidRequest, match="more than 1000"):
        Grammar.compile("json_schema", chain(1001, {}, lambda r: r), tokenizer)


def test_whitespace_is_limited_but_in_strings(tokenizer: Tokenizer) -> None:
    grammar = Grammar.compile("json_object", None, tokenizer)
    assert verdict(grammar, tokenizer, "{" + " " * 16 + "}")
    assert verdict(grammar, tokenizer, '{\n  "a": [\n    1,\n    2\n  ]\n}')
    assert not verdict(grammar, tokenizer, "{" + " " * 17)
    assert not verdict(grammar, tokenizer, "{}\n")
    assert not verdict(grammar, tokenizer, " {}")
    assert verdict(grammar, tokenizer, '{"a":"' + " " * 100 + '"}')


def test_end_tokens_are_allowed_exactly_where_the_text_may_end(tokenizer: Tokenizer) -> None:
    (end,) = tokenizer.eog_ids - {tokenizer.vocabulary.control["<|call|>"]}
    state = Grammar.compile("regex", "(ab)+", tokenizer).start()
    ab = tokenizer.encode("ab", add_special=False)
    assert not is_allowed(state, end)
    for token_id in ab:
        state.accept(token_id)
    assert is_allowed(state, end)
    assert not state.is_over
    with pytest.raises(EngineError, match="grammar"):
        state.accept(tokenizer.encode("c", add_special=False)[0])
    over = Grammar.compile("regex", "ab", tokenizer).start()
    for token_id in ab:
        over.accept(token_id)
    assert over.is_over


@pytest.mark.parametrize("source", ["(ab){4}[0-9]+", "true( |!)true", "12345[6-9]", "(aab|aac)"])
def test_what_is_forced_is_what_alone_is_allowed(source: str, tokenizer: Tokenizer) -> None:
    forced, one_by_one = (Grammar.compile("regex", source, tokenizer).start() for _ in range(2))
    seen: list[int] = []
    for token_id in forced.forced():
        allowed = np.unpackbits(one_by_one.allowed().view(np.uint8), bitorder="little")
        assert np.flatnonzero(allowed).tolist() == [token_id]
        one_by_one.accept(token_id)
        forced.accept(token_id)
        seen.append(token_id)
    assert seen
    assert one_by_one.is_over or np.bitwise_count(one_by_one.allowed()).sum() > 1
    assert forced.forced() == []
    text = b"".join(tokenizer.vocabulary.bytes_of(i) for i in seen).decode()
    assert seen == tokenizer.encode(text, add_special=False)


def test_two_replies_do_not_disturb_each_other(tokenizer: Tokenizer) -> None:
    grammar = Grammar.compile("regex", "ab", tokenizer)
    assert grammar is Grammar.compile("regex", "ab", tokenizer)
    one, other = grammar.start(), grammar.start()
    one.accept(ord("a"))
    assert not np.array_equal(one.allowed(), other.allowed())


def test_lark_and_gbnf(tokenizer: Tokenizer) -> None:
    lark = Grammar.compile("lark", 'start: "a" x+\nx: "b" | "c"', tokenizer)
    gbnf = Grammar.compile("gbnf", 'root ::= "a" x+\nx ::= [bc]', tokenizer)
    for grammar in (lark, gbnf):
        assert verdict(grammar, tokenizer, "abcb")
        assert not verdict(grammar, tokenizer, "a")
        assert not verdict(grammar, tokenizer, "ad")


@pytest.mark.parametrize(
    ("kind", "source", "named"),
    [
        ("lark", 'start: "a" nothing', "nothing"),
        ("lark", "start: (", "grammar"),
        ("regex", "a(", "regex"),
        ("gbnf", 'root ::= "a" missing', "missing"),
        ("gbnf", 'nothing ::= "a"', "root"),
        ("lark", "", "empty"),
        ("ebnf", 'start: "a"', "unknown kind of grammar 'ebnf'; known: json_schema"),
    ],
)
def test_wrong_grammars_are_refused(
    kind: str, source: str, named: str, tokenizer: Tokenizer
) -> None:
    with pytest.raises(InvalidRequest, match=named):
        Grammar.compile(kind, source, tokenizer)


def test_tool_calls_in_lark(tokenizer: Tokenizer) -> None:
    """A call written with a control token, an added word and a schema."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    source = f"""
        start: call
        call: <[{tokenizer.vocabulary.control["<|call|>"]}]> "<tool>\\"f\\" " args
        args: {lark_json(schema)}
    """
    state = Grammar.compile("lark", source, tokenizer).start()
    for token_id in tokenizer.encode('<|call|><tool>"f" {"n": 12}', parse_special=True):
        assert is_allowed(state, token_id), tokenizer.vocabulary.texts[token_id]
        state.accept(token_id)
    assert state.is_over
    with pytest.raises(InvalidRequest, match=r"^tools: the keyword 'not'"):
        lark_json({"not": {}})


def test_a_control_tokens_text_is_no_control_token(tokenizer: Tokenizer) -> None:
    state = Grammar.compile("json_schema", {"type": "string"}, tokenizer).start()
    state.accept(tokenizer.encode('"', add_special=False)[0])
    assert not is_allowed(state, tokenizer.vocabulary.control["<|call|>"])


def test_grammars_go_with_their_tokenizer(tmp_path: Path) -> None:
    import gc
    import weakref

    path = tmp_path / "vocab.gguf"
    write_vocab_gguf(path, {"<|im_end|>": TokenType.CONTROL}, eos="<|im_end|>")
    with GGUFFile(path) as gguf:
        tokenizer = Tokenizer.from_gguf(gguf)
        Grammar.compile("json_object", None, tokenizer)
        there = weakref.ref(tokenizer)
        del tokenizer
        gc.collect()
        assert there() is None


def test_the_order_of_properties_is_the_schemas(tokenizer: Tokenizer) -> None:
    properties = {name: {"type": "null"} for name in ("b", "a")}
    schema = {"type": "object", "properties": properties, "required": ["a", "b"]}
    assert verdict(
        Grammar.compile("json_schema", schema, tokenizer), tokenizer, '{"b":null,"a":null}'
    )
    other = json.dumps({**schema, "properties": dict(reversed(properties.items()))})
    assert verdict(
        Grammar.compile("json_schema", other, tokenizer), tokenizer, '{"a":null,"b":null}'
    )
