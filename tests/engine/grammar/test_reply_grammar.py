"""Whole replies under a grammar: forced calls, strict tools while the model is free, text or calls,
and thinking before either. What is allowed must be what the reply parser reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError, InvalidRequest
from engine.files.gguf_file import GGUFFile
from engine.grammar.call_grammar import form_of
from engine.grammar.grammar import Grammar
from engine.grammar.reply_grammar import reply_grammar
from engine.replies.reply_parser import ReplyParser
from engine.replies.reply_rules import ReplyRules
from engine.replies.thinking import THINK, ThinkingMarks
from engine.text.tokenizer import Tokenizer
from engine.tool_formats import TABLE, find_tool_format
from engine.tool_formats.base import Call, ToolFormat
from engine.tool_formats.deltas import ContentDelta, ToolCallDelta, ToolCallStart
from engine.tool_formats.json_calls import PLAIN

VOCABULARY = Path(__file__).resolve().parents[4] / "shared/vocab/ggml-vocab-qwen2.gguf"
pytestmark = pytest.mark.skipif(not VOCABULARY.exists(), reason="needs the shared vocabularies")

PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
HERMES = find_tool_format("<tool_call>")
PLAIN_CALLS = (
    '{{"name": "f", "arguments": {}}}',
    '```json\n{{\n  "name": "f",\n  "arguments": {}\n}}\n```',
)
FORMATS = [*TABLE[1:], PLAIN]  # the first one's replies have channels, and a parser of their own


def tools(strict: bool = False) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS, "strict": strict}}
        for name in ("f", "g")
    ]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile(VOCABULARY), "")


class Format:
    """A ChatFormat, as far as grammars ask it."""

    def __init__(self, tool_format: ToolFormat, thinking: ThinkingMarks | None = None) -> None:
        self.tool_format, self.open_thinking = tool_format, thinking

    def parser(self, prompt_tail: str) -> Format:
        return self

    def written(self, prompt_tail: str) -> str:
        return prompt_tail


class Checker:
    """Says which replies are allowed."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        rules: ReplyRules,
        tool_format: ToolFormat = HERMES,
        thinking: ThinkingMarks | None = None,
        written: str = "",
    ) -> None:
        self._tokenizer = tokenizer
        chat_format: Any = Format(tool_format, thinking)
        grammar = reply_grammar(rules, chat_format, tokenizer, written)
        assert isinstance(grammar, Grammar)
        self._grammar = grammar

    def begins(self, text: str) -> bool:
        """Whether a reply may begin so."""
        return self._read(text) is not None

    def takes(self, text: str) -> bool:
        """Whether this is a whole reply."""
        return bool(self._read(text))

    def _read(self, text: str) -> bool | None:
        state = self._grammar.start()
        for token_id in self._tokenizer.encode(text, add_special=False, parse_special=True):
            try:
                state.accept(token_id)
            except EngineError:
                return None
        return bool(state._matcher.is_accepting())


def read(tool_format: ToolFormat, text: str, offered: Sequence[Any]) -> tuple[list[str], str, str]:
    """What the parser makes of a reply: names, arguments and content."""
    parser = ReplyParser(tool_format=tool_format, tools=offered)
    deltas = [*parser.push(text), *parser.finish()]
    return (
        [delta.name for delta in deltas if isinstance(delta, ToolCallStart)],
        "".join(delta.arguments for delta in deltas if isinstance(delta, ToolCallDelta)),
        "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta)),
    )


def ids(value: ToolFormat) -> str:
    return str(value.openers[:1])


def test_what_needs_no_grammar(tokenizer: Tokenizer) -> None:
    chat_format: Any = Format(HERMES)
    for rules in (ReplyRules(), ReplyRules(tools=tools()), ReplyRules(parallel=False)):
        assert reply_grammar(rules, chat_format, tokenizer, "") is None


@pytest.mark.parametrize("tool_format", FORMATS, ids=ids)
def test_forced_calls(tokenizer: Tokenizer, tool_format: ToolFormat) -> None:
    rules = ReplyRules(tools=tools(), must_call=True)
    checker = Checker(tokenizer, rules, tool_format)
    reply = form_of(tool_format).write([Call("g", {"a": "x"})])
    assert checker.takes(reply)
    assert read(tool_format, reply, tools()) == (["g"], '{"a": "x"}', "")
    assert not checker.begins("I would rather not.")
    assert not checker.begins(form_of(tool_format).write([Call("g", {"b": 1})]))


@pytest.mark.parametrize("tool_format", FORMATS, ids=ids)
def test_strict_tools_while_the_model_is_free(
    tokenizer: Tokenizer, tool_format: ToolFormat
) -> None:
    """It may answer, or call by the schema; in no other way that the parser would understand."""
    checker = Checker(tokenizer, ReplyRules(tools=tools(strict=True)), tool_format)
    right = form_of(tool_format).write([Call("f", {"a": "x"})])
    wrong = form_of(tool_format).write([Call("f", {"b": 1})])
    assert checker.takes("Hello there. 1 < 2 [3] {4}")
    assert checker.takes("Code:\n```python\nprint(f)\n```\nDone.")
    assert checker.takes(right)
    assert not checker.begins(wrong)
    assert not checker.begins("```python\nf(b=1)\n```")
    for plain in PLAIN_CALLS:
        assert checker.takes(plain.format('{"a": "x"}'))
        assert read(tool_format, plain.format('{"a": "x"}'), tools())[:2] == (["f"], '{"a": "x"}')
        assert not checker.begins(plain.format('{"b": 1}'))
    assert not checker.begins('```json\n{"name": "h"')
    if tool_format.form and any(right.startswith(opener) for opener in tool_format.openers):
        assert checker.takes(f"Well. {right}")
        assert not checker.begins(f"Well. {wrong}")


def test_the_prompt_holds_the_beginning_of_a_call(tokenizer: Tokenizer) -> None:
    """Functionary 3.2's does, whatever comes: `all` is text, any other name a call."""
    functionary = find_tool_format(">>>all")
    forced = ReplyRules(tools=tools(), must_call=True)
    free = ReplyRules(tools=tools(strict=True))
    for rules in (forced, free):
        checker = Checker(tokenizer, rules, functionary, written=">>>")
        assert checker.takes('f\n{"a": "x"}')
        assert checker.takes('f\n{"a": "x"}>>>g\n{"a": "y"}')
        assert not checker.begins('f\n{"b": 1}')
        assert not checker.begins(">>>f")
        assert checker.takes("all\nHello.") is (rules is free)
    asked = ReplyRules("json_schema", {"type": "integer"}, "response_format")
    checker = Checker(tokenizer, asked, functionary, written=">>>")
    assert checker.takes("all\n12")
    assert not checker.begins("12")


def test_text_or_calls(tokenizer: Tokenizer) -> None:
    rules = ReplyRules("json_schema", {"type": "integer"}, "response_format", tools())
    checker = Checker(tokenizer, rules)
    assert checker.takes("12")
    assert checker.takes(HERMES.write([Call("f", {"a": "x"})]))
    assert not checker.begins("Hello")
    assert not checker.takes(HERMES.write([Call("f", {"a": "x"})]) + "12")


@pytest.mark.parametrize(
    ("kind", "source", "reply"),
    [
        ("json_schema", {"type": "integer"}, "12"),
        ("json_object", None, '{"a": 1}'),
        ("regex", r"a/b\/c", "a/b/c"),
    ],
)
def test_text_after_thinking(tokenizer: Tokenizer, kind: str, source: Any, reply: str) -> None:
    checker = Checker(tokenizer, ReplyRules(kind, source, "grammar"), thinking=THINK)
    assert checker.takes(f"hm, 5 < 6\n</think>\n\n{reply}")
    assert not checker.takes(reply)
    assert not checker.begins("hm</think>\n\nno")


def test_gpt_oss_answers_in_its_channel(tokenizer: Tokenizer) -> None:
    checker = Checker(tokenizer, ReplyRules("json_schema", {"enum": ["yes"]}, "x"), TABLE[0])
    assert checker.takes('<|channel|>final<|message|>"yes"')
    assert not checker.begins('"yes"')


def test_a_grammar_of_its_own_stands_alone(tokenizer: Tokenizer) -> None:
    rules = ReplyRules("lark", 'start: "a"', "grammar")
    assert Checker(tokenizer, rules).takes("a")
    with pytest.raises(InvalidRequest, match="cannot be combined") as refused:
        Checker(tokenizer, rules, thinking=THINK)
    assert refused.value.param == "grammar"


def test_a_schema_that_cannot_be_enforced_is_named_by_its_tool(tokenizer: Tokenizer) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}
    with pytest.raises(InvalidRequest, match=r"tools: f: .*not") as refused:
        Checker(tokenizer, ReplyRules(tools=[tool], must_call=True))
    assert refused.value.param == "tools"
