"""Tool calls as the models write them: texts from model cards and from llama.cpp's own tests."""

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


ONE = [("f", {"n": 1})]
QUOTED = {"s": 'a "b"\n🦙'}
TEXT = json.dumps(QUOTED, ensure_ascii=False)
TWO = [("f", QUOTED), ("get_time", {})]

REPLIES = {
    "llama 3": ('{"name": "f", "parameters": {"n": 1}}', ONE),
    "llama 3.1, type first": ('{"type": "function", "name": "f", "parameters": {"n": 1}}', ONE),
    "llama 3.1, tag": ('<|python_tag|>{"name": "f", "parameters": {"n": 1}}', ONE),
    "llama 3.1, built in": ('<|python_tag|>f.call(s="x y")', [("f", {"s": "x y"})]),
    "llama 3.2, several": (
        f'{{"name": "f", "parameters": {TEXT}}}; {{"name": "get_time", "parameters": {{}}}}',
        TWO,
    ),
    "pythonic": ('[f(s="a, b)", n=1), get_time()]', [("f", {"s": "a, b)", "n": 1}), TWO[1]]),
    "pythonic, as Python binds arguments without names": (
        '[f("a=b, (c)", 5), f(s = "x == y")]',
        [("f", {"s": "a=b, (c)", "n": 5}), ("f", {"s": "x == y"})],
    ),
    "hermes": ('<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>', ONE),
    "hermes, compact": ('<tool_call>{"arguments":{"n":1},"name":"f"}</tool_call>', ONE),
    "qwen 2.5, two": (
        f'<tool_call>\n{{"name": "f", "arguments": {TEXT}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        TWO,
    ),
    "qwen 3 coder": (
        "<tool_call>\n<function=f>\n<parameter=s>\nline 1\n\n  <b>2</b>\n</parameter>\n"
        "<parameter=n>\n5\n</parameter>\n<parameter=o>\n{'a': True}\n</parameter>\n"
        "<parameter=maybe>\nnull\n</parameter>\n</function>\n</tool_call>",
        [("f", {"s": "line 1\n\n  <b>2</b>", "n": 5, "o": {"a": True}, "maybe": None})],
    ),
    "qwen 3 coder, without its opener": (
        "<function=f>\n<parameter=s>\n5\n</parameter>\n</function>",
        [("f", {"s": "5"})],
    ),
    "qwen 3 coder, two ends of values forgotten": (
        "<tool_call>\n<function=f>\n<parameter=s>\na </function> b\n<parameter=n>\n5\n</function>\n"
        "</tool_call>",
        [("f", {"s": "a </function> b", "n": 5})],
    ),
    "qwen 3 coder, an end without its opener": (
        "<function=get_time>\n</function>\n</tool_call>",
        [("get_time", {})],
    ),
    "nemotron 3": (
        "<tool_call>\n<function=get_time>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
        [("get_time", {}), *ONE],
    ),
    "mistral nemo": (
        '[TOOL_CALLS][{"name": "f", "arguments": {"n": 1}, "id": "123456789"}]',
        ONE,
    ),
    "mistral small 3.2": (
        f"[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{TEXT}[TOOL_CALLS]get_time[CALL_ID]x12345678[ARGS]{{}}",
        TWO,
    ),
    "devstral": ('[TOOL_CALLS]f[ARGS]{"n": 1}', ONE),
    "deepseek r1": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"n": 1}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ONE,
    ),
    "deepseek v3.1": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{TEXT}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        TWO,
    ),
    "deepseek v3.2": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="s" string="true">5</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="a" string="false">[1, "x"]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        [("f", {"s": "5", "a": [1, "x"]})],
    ),
    "gigachat 3.5": (
        '<｜GCML｜tool_calls>\n<｜GCML｜invoke name="f">\n'
        '<｜GCML｜parameter name="s" string="true">a\nb</｜GCML｜parameter>\n'
        '<｜GCML｜parameter name="n" string="false">1</｜GCML｜parameter>\n'
        '</｜GCML｜invoke>\n<｜GCML｜invoke name="get_time">\n</｜GCML｜invoke>\n'
        "</｜GCML｜tool_calls>",
        [("f", {"s": "a\nb", "n": 1}), TWO[1]],
    ),
    "granite 3.3": ('<|tool_call|>[{"name": "f", "arguments": {"n": 1}}]', ONE),
    "phi 4 mini": ('<|tool_call|>[{"name": "f", "arguments": {"n": 1}}]<|/tool_call|>', ONE),
    "command r7b": (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", "parameters": {"n": 1}},\n'
        '    {"tool_call_id": "1", "tool_name": "get_time", "parameters": {}}\n]<|END_ACTION|>',
        [*ONE, TWO[1]],
    ),
    "firefunction": (' functools[{"name": "f", "arguments":{"n": 1}}]', ONE),
    "functionary 3.1": (f"<function=f>{TEXT}</function><function=get_time>{{}}</function>", TWO),
    "glm 4.5": (
        "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>5 < 6</arg_value>\n"
        "<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
        [("f", {"s": "5 < 6", "n": 5})],
    ),
    "glm 4.5, a text that looks like a number": (
        "<tool_call>f\n<arg_key>street</arg_key>\n<arg_value>5</arg_value>\n"
        "<arg_key>maybe</arg_key>\n<arg_value>null</arg_value>\n</tool_call>",
        [("f", {"street": "5", "maybe": None})],
    ),
    "glm 4.7": (
        "<tool_call>f<arg_key>o</arg_key><arg_value>{}</arg_value></tool_call>"
        "<tool_call>get_time<arg_key>zone</arg_key><arg_value>UTC</arg_value></tool_call>",
        [("f", {"o": {}}), ("get_time", {"zone": "UTC"})],
    ),
    "kimi k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"n": 1}<|tool_call_end|><|tool_calls_section_end|>',
        ONE,
    ),
    "minimax m1": (
        f'<tool_calls>\n{{"name": "f", "arguments": {TEXT}}}\n'
        '{"name": "get_time", "arguments": {}}\n</tool_calls>',
        TWO,
    ),
    "minimax m2": (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="s">"x"</parameter>\n'
        '<parameter name="n">1</parameter>\n</invoke>\n</minimax:tool_call>',
        [("f", {"s": '"x"', "n": 1})],
    ),
    "minimax m3": (
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<s>5]<]minimax[>[</s>'
        "]<]minimax[>[<o>]<]minimax[>[<k>true]<]minimax[>[</k>]<]minimax[>[<q>]<]minimax[>[<item>x"
        "]<]minimax[>[</item>]<]minimax[>[</q>]<]minimax[>[</o>]<]minimax[>[</invoke>\n"
        "]<]minimax[>[</tool_call>",
        [("f", {"s": "5", "o": {"k": True, "q": ["x"]}})],
    ),
    "seed oss": (
        "<seed:tool_call>\n<function=f>\n<parameter=n>1</parameter>\n</function>\n</seed:tool_call>",
        ONE,
    ),
    "nemotron nano 2": ('<TOOLCALL>[{"name": "f", "arguments": {"n": 1}}]</TOOLCALL>', ONE),
    "lfm 2": (
        "<|tool_call_start|>[f(s='it\\'s', n=-1, a=[1, (2)]), get_time()]<|tool_call_end|>",
        [("f", {"s": "it's", "n": -1, "a": [1, 2]}), TWO[1]],
    ),
    "lfm 2, json": (
        '<|tool_call_start|>[{"name": "f", "arguments": {"n": 1}}]<|tool_call_end|>',
        ONE,
    ),
    "olmo 3": ("<function_calls>\nf(n=1)\nget_time()\n</function_calls>", [*ONE, TWO[1]]),
    "gemma 4": (
        '<|tool_call>call:f{s:<|"|>a "b"\n🦙<|"|>}<tool_call|>'
        "<|tool_call>call:get_time{}<tool_call|>",
        TWO,
    ),
    "gemma 4, nested": (
        '<|tool_call>call:f{a:[<|"|>x<|"|>,{k:true,<|"|>q<|"|>:null}],n:-1.5}<tool_call|>',
        [("f", {"a": ["x", {"k": True, "q": None}], "n": -1.5})],
    ),
    "gemma 3, prompted": ('```json\n{"name": "f", "parameters": {"n": 1}}\n```', ONE),
    "gemma 3, in its own words": ("```tool_code\nf(n=1)\n```", ONE),
    "internlm": (
        '<|action_start|><|plugin|>\n{"name": "f", "parameters": {"n": 1}}<|action_end|>',
        ONE,
    ),
    "gigachat 3": ('function call<|role_sep|>\n{"name": "f", "arguments": {"n": 1}}', ONE),
    "gpt-oss": (
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>" + TEXT,
        [TWO[0]],
    ),
    "gpt-oss, in the header's first half": (
        ' to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"n": 1}',
        ONE,
    ),
    "functiongemma": (
        '<start_function_call>call:f{s:<escape>a "b"\n🦙<escape>}<end_function_call>'
        "<start_function_call>call:get_time{}<end_function_call>",
        TWO,
    ),
    "functiongemma, nested": (
        "<start_function_call>call:f{o:{k:[1,<escape>}<escape>],q:true}}<end_function_call>",
        [("f", {"o": {"k": [1, "}"], "q": True}})],
    ),
    "apertus": (
        f'<|tools_prefix|>[{{"f": {TEXT}}}, {{"get_time": {{}}}}]<|tools_suffix|>',
        TWO,
    ),
    "minicpm 3": (
        "<|tool_call_start|>\n```python\nf(s=\"a 'b', c\",n=1)\nget_time()\n```\n<|tool_call_end|>",
        [("f", {"s": "a 'b', c", "n": 1}), TWO[1]],
    ),
    "minicpm 5": (
        '<function name="f"><param name="s"><![CDATA[a "b"\n🦙]]></param></function>\n'
        '<function name="get_time"></function>',
        TWO,
    ),
    "minicpm 5, markup": (
        '<function name="f"><param name="s"><![CDATA[</param> & </function>]]></param>'
        '<param name="n">1</param></function>',
        [("f", {"s": "</param> & </function>", "n": 1})],
    ),
    "granite 20b": ('<function_call> {"name": "f", "arguments": {"n": 1}}', ONE),
    "functionary 3.2": (f">>>f\n{TEXT}>>>get_time\n{{}}", TWO),
    "command r+": (
        'Action:\n```json\n[\n    {\n        "tool_name": "f",\n        "parameters": {\n'
        '            "n": 1\n        }\n    },\n    {\n        "tool_name": "get_time",\n'
        '        "parameters": {}\n    }\n]```',
        [*ONE, TWO[1]],
    ),
    "hyperclova x": (' -> tool/function_call\n[{"name": "f", "arguments": {"n": 1}}]', ONE),
    "longcat": (
        "<longcat_tool_call>f\n<longcat_arg_key>s</longcat_arg_key>\n"
        "<longcat_arg_value>5</longcat_arg_value>\n</longcat_tool_call>",
        [("f", {"s": "5"})],
    ),
    "nemotron mini": ('<toolcall> {"name": "f", "arguments": {"n": 1}} </toolcall>', ONE),
    "qwen 2.5 coder": ('<tools>\n{"name": "f", "arguments": {"n": 1}}\n</tools>', ONE),
    "deepseek v3, all in json": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{"name": "f", "arguments": {"n": 1}}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ONE,
    ),
    "llama 4": ("<|python_start|>[f(n=1)]<|python_end|>", ONE),
    "llama 4, as its template has it": (
        '<|python_start|><|python_end|>{"name": "f", "parameters": {"n": 1}}',
        ONE,
    ),
    "hermes, where the template shows none": (
        '<tool_call>{"name": "f", "arguments": {"n": 1}}</tool_call>',
        ONE,
    ),
    "as in OpenAI's API": (
        '<tool_call>{"type": "function", "function": {"name": "f", "arguments": "{\\"n\\": 1}"}}'
        "</tool_call>",
        ONE,
    ),
    "without arguments": ('<tool_call>{"name": "get_time"}</tool_call>', [TWO[1]]),
    "null for none": ('<tool_call>{"name": "get_time", "arguments": null}</tool_call>', [TWO[1]]),
    "an only parameter's bare value": (
        '<tool_call>{"name": "sum", "arguments": [1, 2]}</tool_call>'
        '<tool_call>{"name": "echo", "arguments": "ä"}</tool_call>',
        [("sum", {"values": [1, 2]}), ("echo", {"text": "ä"})],
    ),
    "a bare value that the only parameter cannot have": (
        '<tool_call>{"name": "echo", "arguments": [1]}</tool_call>',
        [("echo", [1])],
    ),
    "a bare value where there are several": (
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        [("f", [1])],
    ),
    "a brace short": ('<tool_call>{"name": "f", "arguments": {"n": 1}</tool_call>', ONE),
    "a bare newline": (
        '<tool_call>{"name": "f", "arguments": {"s": "a\nb"}}</tool_call>',
        [("f", {"s": "a\nb"})],
    ),
}
SIGNS = {
    "minicpm 3": "<|tool_call_start|> ```python",
    "functionary 3.2": ">>>all",
    "qwen 2.5 coder": "<tool_call>",
    "hermes, where the template shows none": "user",
    "deepseek r1": "<｜tool▁calls▁begin｜> ```json",
    "qwen 3 coder, without its opener": "<tool_call> <function= <parameter=",
    "qwen 3 coder, an end without its opener": "<tool_call> <function= <parameter=",
    "functionary 3.1": "<function= </function>",
    "gpt-oss": "<|start|><|channel|>commentary<|message|>",
    "gpt-oss, in the header's first half": "<|start|><|channel|>commentary<|message|>",
    "nemotron 3": "<tool_call> <function= <parameter=",
}


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
