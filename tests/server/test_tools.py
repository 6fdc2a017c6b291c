"""Tools and thinking on the chat route: what reaches the engine, and what comes back. Whether
replies are constrained rightly is tests/engine/grammar/test_reply_grammar.py's.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.fake_engine import FakeEngine, Script
from tests.server.wire import chunks_of

CHAT = "/v1/chat/completions"
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a"],
}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS, **more}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]},
    }


BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Add."}],
    "tools": [tool("add"), tool("say")],
}
ARGUMENTS = [{"a": 1, "b": 'quo"te'}, {"a": 2, "b": "🦙"}]
CALLS = "".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}'
    "\n</tool_call>\n"
    for name, arguments in zip(("add", "say"), ARGUMENTS, strict=True)
)


def post(http: httpx.Client, **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The choice of a whole reply, and the choices of a streamed one."""
    whole = http.post(CHAT, json={**BODY, **more})
    assert whole.status_code == 200, whole.text
    chunks = chunks_of(http.post(CHAT, json={**BODY, **more, "stream": True}).text)
    return whole.json()["choices"][0], [chunk["choices"][0] for chunk in chunks]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_in_a_stream(http: httpx.Client, fake: FakeEngine, size: int) -> None:
    fake.script = Script(tuple(CALLS[i : i + size] for i in range(0, len(CALLS), size)))
    whole, chunks = post(http)
    message = whole["message"]
    assert whole["finish_reason"] == chunks[-1]["finish_reason"] == "tool_calls"
    assert message["content"] is None
    calls = message["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["add", "say"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == ARGUMENTS
    assert all(call["type"] == "function" for call in calls)
    assert len({call["id"] for call in calls} - {""}) == 2

    deltas = [chunk["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert not any(delta.get("content") for delta in deltas)
    joined = ["", ""]
    begun: list[int] = []
    for delta in (call for d in deltas for call in d.get("tool_calls", [])):
        index = delta["index"]
        if index not in begun:
            begun.append(index)
            assert delta["id"] and delta["type"] == "function"
            assert delta["function"]["name"] == ("add", "say")[index]
        else:
            assert set(delta) == {"index", "function"}
            assert set(delta["function"]) == {"arguments"}
        joined[index] += delta["function"]["arguments"]
    assert begun == [0, 1]
    assert joined == [call["function"]["arguments"] for call in calls]


def test_text_before_a_call_is_content(http: httpx.Client, fake: FakeEngine) -> None:
    fake.script = Script(("Let me see.\n", CALLS))
    whole, chunks = post(http)
    assert whole["message"]["content"] == "Let me see."
    assert "".join(chunk["delta"].get("content") or "" for chunk in chunks) == "Let me see."
    assert len(whole["message"]["tool_calls"]) == 2


def test_a_call_that_the_limit_cuts(http: httpx.Client, fake: FakeEngine) -> None:
    fake.script = Script((CALLS[:50], CALLS[50:]))
    whole, chunks = post(http, max_tokens=1)
    assert whole["finish_reason"] == chunks[-1]["finish_reason"] == "length"
    arguments = whole["message"]["tool_calls"][0]["function"]["arguments"]
    assert json.dumps(ARGUMENTS[0]).startswith(arguments)


def test_one_call_only(http: httpx.Client, fake: FakeEngine) -> None:
    fake.script = Script((*CALLS, *("more",) * 100), delay_s=0.0005)
    whole, chunks = post(http, parallel_tool_calls=False)
    assert [call["function"]["name"] for call in whole["message"]["tool_calls"]] == ["add"]
    assert json.loads(whole["message"]["tool_calls"][0]["function"]["arguments"]) == ARGUMENTS[0]
    assert whole["finish_reason"] == chunks[-1]["finish_reason"] == "tool_calls"
    assert not fake.rules.parallel
    assert fake.submitted[-1].cancelled


@pytest.mark.parametrize(
    ("choice", "shown", "rules"),
    [
        (None, ["add", "say"], (["add", "say"], False)),
        ("auto", ["add", "say"], (["add", "say"], False)),
        ("none", [], ([], False)),
        ("required", ["add", "say"], (["add", "say"], True)),
        (named("say"), ["add", "say"], (["say"], True)),
        (allowed("auto", "say"), ["say"], (["say"], False)),
        (allowed("required", "say", "add"), ["add", "say"], (["add", "say"], True)),
    ],
)
def test_tool_choice(
    http: httpx.Client, fake: FakeEngine, choice: Any, shown: Any, rules: Any
) -> None:
    assert http.post(CHAT, json={**BODY, "tool_choice": choice}).status_code == 200
    tools = fake.chats[-1]["tools"]
    assert shown == [tool["function"]["name"] for tool in tools]
    names = [tool["function"]["name"] for tool in fake.rules.tools]
    assert (names, fake.rules.must_call) == rules


def test_without_tools_nothing_is_a_call(http: httpx.Client, fake: FakeEngine) -> None:
    fake.script = Script((CALLS,))
    for more in ({"tools": None}, {"tool_choice": "none"}):
        whole, _ = post(http, **more)
        assert "tool_calls" not in whole["message"]
        assert whole["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tool_choice": named("other")}, "tool_choice"),
        ({"tool_choice": allowed("auto", "other")}, "tool_choice"),
        ({"tool_choice": "banana"}, "tool_choice"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tool_choice": {"type": ["function"]}}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": named("add"), "tools": None}, "tool_choice"),
        ({"tools": [tool("add"), tool("add")]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [tool("")]}, "tools[0].function.name"),
        ({"tools": [tool("x", parameters=5)]}, "tools[0].function.parameters"),
        ({"tools": [tool("x", parameters={"type": "array"})]}, "tools[0].function.parameters"),
        ({"tools": [tool("x", parameters={"type": ["null"]})]}, "tools[0].function.parameters"),
        ({"tools": {}}, "tools"),
        ({"tools": [tool(f"t{i}") for i in range(129)]}, "tools"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_tools(http: httpx.Client, more: dict[str, Any], param: str, stream: bool) -> None:
    reply = http.post(CHAT, json={**BODY, **more, "stream": stream})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_nulls_in_a_tools_schema_are_absent(http: httpx.Client) -> None:
    empty = {"type": None, "properties": None, "required": None}
    reply = http.post(CHAT, json={**BODY, "tools": [tool("x", parameters=empty)]})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("pieces", [("<think>abc", " def"), ("<thi", "nk>\nab", "c def")])
def test_thinking_that_the_limit_cuts(
    http: httpx.Client, fake: FakeEngine, pieces: tuple[str, ...]
) -> None:
    fake.script = Script(pieces)
    whole, chunks = post(http, max_tokens=len(pieces))
    assert whole["message"]["reasoning_content"] == "abc def"
    assert not whole["message"]["content"]
    assert whole["finish_reason"] == chunks[-1]["finish_reason"] == "length"
    deltas = [chunk["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "abc def"
    assert not any(delta.get("content") for delta in deltas)


def test_thinking_that_the_prompt_has_opened(http: httpx.Client, fake: FakeEngine) -> None:
    fake.script = Script(("abc", " def", "</think>", "\n\nHi"))
    last = {"role": "assistant", "content": "<think>"}
    messages = [*BODY["messages"], last]
    reply = http.post(CHAT, json={"messages": messages}).json()
    message = reply["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("abc def", "Hi")
    assert reply["usage"]["completion_tokens"] == 5
    # Of the tokens that made reasoning; the mark's is told with what follows it.
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2


@pytest.mark.parametrize(
    ("sent", "given"),
    [
        ({}, {}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"reasoning_effort": "high"}, {"enable_thinking": True}),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
            {"enable_thinking": False},
        ),
    ],
)
def test_effort_is_the_templates_switch(
    http: httpx.Client, fake: FakeEngine, sent: dict[str, Any], given: dict[str, Any]
) -> None:
    assert http.post(CHAT, json={**BODY, **sent}).status_code == 200
    assert fake.chats[-1]["template_kwargs"] == given
