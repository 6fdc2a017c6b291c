"""Forced calls: what a format writes is what its grammar allows, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from engine.grammar.call_grammar import call_rules, form_of, thinking_rules
from engine.replies.thinking import MARKS, THINK, ThinkingMarks
from engine.text.special_tokens import SpecialTokens
from engine.tool_formats import TABLE, find_tool_format
from engine.tool_formats.base import Call, ToolFormat
from engine.tool_formats.json_calls import PLAIN

llguidance = pytest.importorskip("llguidance")

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {"s": {"$ref": "#/$defs/S"}, "n": {"type": "integer"}},
                "required": ["s"],
                "additionalProperties": False,
                "$defs": {"S": {"type": "string"}},
            },
        },
    },
    {"type": "function", "function": {"name": "get_time"}},
]
FIRST, SECOND = Call("f", {"s": 'a "b"\n', "n": 3}), Call("get_time", {})
END = 256


class Bytes:
    """A vocabulary of bytes, an end token and the format's control tokens, for llguidance."""

    eos_token_id = END
    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(self, control: dict[str, int]) -> None:
        self.tokens = [bytes([i]) for i in range(256)] + [b"<end>"] + [t.encode() for t in control]
        self.special_token_ids = list(range(END, len(self.tokens)))

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


class Matcher:
    """Steps through a grammar by text."""

    def __init__(
        self, tool_format: ToolFormat, parallel: bool, thinking: ThinkingMarks | None = None
    ) -> None:
        marks = [*tool_format.marks, *(m for marks in MARKS for m in marks.all)]
        marks += ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"]
        texts = dict.fromkeys(mark for mark in marks if mark[:2] in ("<|", "<｜", "[T", "[A"))
        self.control = {text: END + 1 + i for i, text in enumerate(texts)}
        form = form_of(tool_format)
        first = thinking_rules(form, self.control, thinking)
        calls = call_rules(form, TOOLS, parallel, self.control)
        start = "start: first calls" if first else "start: calls"
        grammar = "\n".join([start, *first, *calls])
        wrapper: Any = Bytes(self.control)
        tokenizer = llguidance.LLTokenizer(wrapper, eos_token=[END])
        source = llguidance.LLMatcher.grammar_from_lark(grammar)
        self._matcher = llguidance.LLMatcher(tokenizer, source, log_level=0)
        assert not self._matcher.is_error(), self._matcher.get_error()

    def takes(self, text: str) -> bool:
        """Whether the whole text is allowed, and no less of it."""
        matcher = self._matcher.deep_copy()
        for piece in SpecialTokens(self.control).split(text):
            ids = [piece] if isinstance(piece, int) else list(piece.encode())
            if matcher.validate_tokens(ids) < len(ids):
                return False
            matcher.consume_tokens(ids)
        return bool(matcher.is_accepting())


@pytest.mark.parametrize("tool_format", [*TABLE, PLAIN], ids=lambda f: str(f.openers[:1]))
def test_what_a_format_writes_is_allowed(tool_format: ToolFormat) -> None:
    form = tool_format.form or PLAIN.form
    one, several = Matcher(tool_format, False), Matcher(tool_format, True)
    assert one.takes(form.write([FIRST]))
    assert one.takes(form.write([SECOND]))
    assert several.takes(form.write([SECOND]))
    assert not one.takes(form.write([Call("g", {})]))
    assert not one.takes(form.write([Call("f", {"n": 3})]))
    assert not one.takes(form.write([Call("get_time", {"zone": "UTC"})]))
    assert not one.takes("I would rather not.")
    if form.separator is not None:
        assert several.takes(form.write([FIRST, SECOND, SECOND]))
        assert not one.takes(form.write([FIRST, SECOND]))


@pytest.mark.parametrize("marks", MARKS, ids=lambda marks: marks.open)
def test_open_thinking_comes_first(marks: ThinkingMarks) -> None:
    hermes = find_tool_format("<tool_call>")
    matcher = Matcher(hermes, False, marks)
    call = hermes.write([FIRST])
    assert matcher.takes(f"5 < 6, so:\n{marks.close}\n\n{call}")
    assert matcher.takes(f"{marks.close}{call}")
    assert not matcher.takes(call)
    assert not Matcher(hermes, False).takes(f"{THINK.close}{call}")


def test_properties_that_the_schema_does_not_name_are_not_invented() -> None:
    tool = {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}
    rules = "\n".join(call_rules(PLAIN.form, [tool], False, {}))
    assert '"additionalProperties": false' in rules
    inside = {"type": "object", "properties": {"b": tool["parameters"]}}
    rules = "\n".join(call_rules(PLAIN.form, [{**tool, "parameters": inside}], False, {}))
    assert rules.count('"additionalProperties": false') == 2
    tool = {"name": "f", "parameters": {"type": "object"}}
    assert "additionalProperties" not in "\n".join(call_rules(PLAIN.form, [tool], False, {}))


def test_gpt_oss_may_think_first() -> None:
    channels = TABLE[0]
    call = channels.write([FIRST])
    matcher = Matcher(channels, True)
    assert matcher.takes(call)
    assert matcher.takes(f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{call}")
