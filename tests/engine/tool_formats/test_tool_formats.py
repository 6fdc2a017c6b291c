"""Tool calls as the models write them are read, however they are cut, and written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.replies.channel_parser import ChannelParser
from engine.replies.reply_parser import ReplyParser
from engine.replies.thinking import find_marks
from engine.tool_formats import TABLE, find_tool_format
from engine.tool_formats.base import Call
from engine.tool_formats.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStart,
)
from engine.tool_formats.json_calls import PLAIN
from tests.tool_replies import ONE, REPLIES, SIGNS

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "s": {"type": "string"},
                    "n": {"type": "integer"},
                    "o": {"type": "object"},
                    "a": {"type": "array"},
                    "maybe": {"type": ["string", "null"]},
                    "street": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "get_time", "parameters": None}},
    {
        "type": "function",
        "function": {
            "name": "sum",
            "parameters": {"properties": {"values": {"type": "array"}}, "required": ["values"]},
        },
    },
    {
        "type": "function",
        "function": {"name": "echo", "parameters": {"properties": {"text": {"type": "string"}}}},
    },
]
Read = tuple[str, str, list[tuple[str, Any]]]


def joined(deltas: Iterable[Delta]) -> tuple[str, str, list[tuple[str, str]]]:
    """(reasoning, content, (name, arguments as text) of each call)."""
    reasoning = content = ""
    calls: list[tuple[str, str]] = []
    ids = set()
    for delta in deltas:
        match delta:
            case ReasoningDelta(text):
                reasoning += text
            case ContentDelta(text):
                content += text
            case ToolCallStart(index, call_id, name):
                assert index == len(calls)
                assert call_id
                ids.add(call_id)
                calls.append((name, ""))
            case ToolCallDelta(index, arguments):
                assert index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + arguments)
    assert len(ids) == len(calls)
    return reasoning, content, calls


def parser(signs: str, tools: Sequence[Any] | None = TOOLS) -> ReplyParser:
    kind = ChannelParser if "<|message|>" in signs else ReplyParser
    return kind(find_marks(signs), find_tool_format(signs), tools)


def read(reply: str, signs: str = "", n: int = 1, tools: Sequence[Any] | None = TOOLS) -> Read:
    """signs: what the template holds, if not just what is in the reply."""
    reader = parser(signs or reply, tools)
    pieces = [reply[i : i + n] for i in range(0, len(reply), n)]
    deltas = [delta for piece in pieces for delta in reader.push(piece)]
    reasoning, content, calls = joined([*deltas, *reader.finish()])
    return reasoning, content, [(name, json.loads(text)) for name, text in calls]


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize("n", [1, 4, 10_000])
def test_calls(name: str, n: int) -> None:
    reply, calls = REPLIES[name]
    assert read(reply, SIGNS.get(name, ""), n) == ("", "", calls)


@pytest.mark.parametrize("name", REPLIES)
def test_calls_behind_text(name: str) -> None:
    reply, calls = REPLIES[name]
    starts_bare = reply.startswith(("{", "[")) and not reply.startswith("[TOOL")
    if starts_bare or name.startswith(("gpt-oss", "gigachat")):
        pytest.skip("such calls stand alone")
    assert read(f"Let me see.\n\n{reply}\n", SIGNS.get(name, ""), 3) == ("", "Let me see.", calls)


@pytest.mark.parametrize("name", REPLIES)
def test_a_call_that_is_cut_loses_no_text(name: str) -> None:
    """Wherever the limit cuts: no exception, and whole calls stay as they were."""
    reply, calls = REPLIES[name]
    for end in range(len(reply)):
        reader = parser(SIGNS.get(name, reply))
        _, content, found = joined([*reader.push(reply[:end]), *reader.finish()])
        assert [called for called, _ in found] == [called for called, _ in calls][: len(found)]
        if found:
            assert content == ""
            assert all(
                json.loads(text) == given
                for (_, text), (_, given) in zip(found[:-1], calls, strict=False)
            )
            assert found[-1][1] != "{}" or calls[len(found) - 1][1] == {}
        elif not name.startswith("gpt-oss"):
            assert content == reply[:end].strip() or content == reply[:end]


def test_names_come_before_arguments() -> None:
    reader = parser("<tool_call>")
    assert reader.push('<tool_call>\n{"name": "f') == []
    [start] = reader.push('",')
    assert isinstance(start, ToolCallStart)
    assert (start.index, start.name) == (0, "f")
    assert reader.push(' "arguments": {"s": "x') == [ToolCallDelta(0, '{"s": "x')]
    assert reader.push('y"}') == [ToolCallDelta(0, 'y"}')]
    assert reader.push("}\n</tool_call>") == []


def test_texts_in_tags_stream() -> None:
    reader = parser("<function= <parameter=")
    reader.push("<tool_call>\n<function=f>\n<parameter=s>\n")
    assert reader.push('a "b') == [ToolCallDelta(0, 'a \\"b')]


def test_the_models_own_ids_are_kept() -> None:
    for reply, call_id in (
        (REPLIES["mistral nemo"][0], "123456789"),
        (REPLIES["mistral small 3.2"][0], "123456789"),
        (REPLIES["kimi k2"][0], "functions.f:0"),
    ):
        starts = [d for d in parser(reply).push(reply) if isinstance(d, ToolCallStart)]
        id_before_name = "[TOOL_CALLS][" not in reply
        assert (starts[0].id == call_id) is id_before_name


@pytest.mark.parametrize(
    "reply",
    [
        '{"name": "Ann", "age": 5}',
        '{"answer": 1}',
        "[1, 2]",
        "[f]",
        "[see](https://example.org)",
        "{",
        '```json\n{"name": "Ann"}\n```',
        "```json\n[1]",
        "```python\nprint(1)\n```",
        "<tool_call>no</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>",
        "<tool_cal",
        'Write `<tool_call>` and "<tool_call>".',
        "f(n=1)",
        " {x} ",
    ],
)
@pytest.mark.parametrize("n", [1, 5, 1000])
def test_what_is_no_call_is_text(reply: str, n: int) -> None:
    assert read(reply, "<tool_call>", n) == ("", reply, [])


def test_text_around_calls() -> None:
    reply = 'A\n<tool_call>{"name": "f", "arguments": {"n": 1}}</tool_call>\nB <tool_call>x'
    assert read(reply) == ("", "A\nB <tool_call>x", ONE)


def test_a_broken_second_call_is_text() -> None:
    reply = '[TOOL_CALLS][{"name": "f", "arguments": {"n": 1}}, {"x": 2}]'
    assert read(reply) == ("", ', {"x": 2}]', ONE)


def test_thinking_and_calls() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"n": 1}}</tool_call>'
    signs = "<think></think><tool_call>"
    reply = f"<think>\nI call <tool_call>\n</think>\n\nSo:\n{call}<think>more</think>{call}"
    assert read(reply, signs, 2) == ("I call <tool_call>more", "So:", ONE * 2)


def test_harmony() -> None:
    signs = "<|start|><|channel|>commentary<|message|>"
    reply = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "I will look.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"n": 1}'
    )
    assert read(reply, signs, 1) == ("Hm.", "I will look.", ONE)
    final = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi"
    assert read(final, signs, 3) == ("Hm", "Hi", [])
    assert read("<|channel|>analysis<|message|>Hm", signs, 3) == ("Hm", "", [])
    assert read("Hi", signs) == ("", "Hi", [])


def test_unknown_tools_are_called_in_the_models_own_format_only() -> None:
    own = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
    assert read(own) == ("", "", [("g", {})])
    plain = '{"name": "g", "arguments": {}}'
    assert read(plain, "<tool_call>") == ("", plain, [])
    assert read(plain, "<tool_call>", tools=None) == ("", "", [("g", {})])


# --- every format ---------------------------------------------------------------------------------

texts = st.text("ab \"'\\é🦙{}[]", max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("kq_", min_size=1), inner),
    max_leaves=6,
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "s": st.text("ab \n\"'\\é🦙<>{}", max_size=12),
        "n": st.integers(-(10**9), 10**9),
        "o": st.dictionaries(st.text("kq_", min_size=1), json_values, max_size=3),
        "a": st.lists(json_values, max_size=3),
    },
)
FORMATS = [f for f in (*TABLE, PLAIN) if f.openers or f is PLAIN]


@settings(max_examples=150)
@given(st.data())
def test_what_a_format_writes_it_reads(data: st.DataObject) -> None:
    """And in any pieces."""
    tool_format = data.draw(st.sampled_from(FORMATS))
    calls = data.draw(
        st.lists(st.tuples(st.sampled_from(["f", "get_time"]), arguments), min_size=1)
    )
    calls = [(name, values if name == "f" else {}) for name, values in calls]
    text = tool_format.write([Call(name, values) for name, values in calls])
    reader = ReplyParser((), tool_format, TOOLS)
    deltas: list[Delta] = []
    while text:
        n = data.draw(st.integers(1, len(text)))
        deltas += reader.push(text[:n])
        text = text[n:]
    _, content, found = joined([*deltas, *reader.finish()])
    assert content == ""
    assert [(name, json.loads(text)) for name, text in found] == calls


@settings(max_examples=150)
@given(st.data())
def test_pieces_do_not_matter(data: st.DataObject) -> None:
    tool_format = data.draw(st.sampled_from(FORMATS))
    parts = [*tool_format.marks, *'{}"[]\n()', "f", '{"name": "f"', ": ", ", "]
    parts += ["s", "=", "'", "`", "<", ">", "```json", "<think>", "</think>", "function", "call:"]
    text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=30)))
    marks = find_marks("<think>")
    whole, cut = (ReplyParser(marks, tool_format, TOOLS) for _ in range(2))
    expected = joined([*whole.push(text), *whole.finish()])
    deltas: list[Delta] = []
    while text:
        n = data.draw(st.integers(1, len(text)))
        deltas += cut.push(text[:n])
        text = text[n:]
    assert joined([*deltas, *cut.finish()]) == expected


def test_no_format_hides_another() -> None:
    """The signs of each lead to it and not to one before it."""
    for tool_format in TABLE:
        assert find_tool_format(" ".join(tool_format.signs)) == tool_format
