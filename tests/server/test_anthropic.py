"""Anthropic's family, through its own client library and on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from engine import EngineError
from tests.fake_engine import FakeEngine, Script
from tests.server.conftest import Running

HELLO: Any = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: Any = {
    "name": "weather",
    "description": "of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALLS = tuple(
    f'<tool_call>{{"name": "weather", "arguments": {{"city": "{city}"}}}}</tool_call>'
    for city in ("Paris", 'Ro\\"me 🦙')
)
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture
def client(server: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def create(client: anthropic.Anthropic, **more: Any) -> Any:
    return client.messages.create(**{"model": "any", "max_tokens": 100, "messages": HELLO, **more})


def streamed(client: anthropic.Anthropic, **more: Any) -> Any:
    asked = {"model": "any", "max_tokens": 100, "messages": HELLO, **more}
    with client.messages.stream(**asked) as stream:
        return stream.get_final_message()


def events(http: httpx.Client, **more: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose names are those of their types."""
    body = {"model": "any", "max_tokens": 100, "messages": HELLO, "stream": True, **more}
    reply = http.post("/v1/messages", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in reply.text.removesuffix("\n\n").split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_message(client: anthropic.Anthropic, fake: FakeEngine) -> None:
    reply = create(client, system="Be brief.", extra_body={"temperature": 0.5, "top_k": 3})
    [block] = reply.content
    assert (block.type, block.text) == ("text", "Paris.")
    assert (reply.role, reply.type, reply.model) == ("assistant", "message", "fake-1b")
    assert (reply.stop_reason, reply.stop_sequence) == ("end_turn", None)
    n_prompt = len(fake.submitted[-1].prompt_ids)
    usage = reply.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == n_prompt
    assert usage.output_tokens == 4
    params = fake.submitted[-1].params
    assert (params.max_tokens, params.temperature, params.top_k) == (100, 0.5, 3)
    assert fake.chats[-1]["messages"][0] == {"role": "system", "content": "Be brief."}


def test_the_events_come_in_their_order(http: httpx.Client) -> None:
    found = events(http)
    assert [event["type"] for event in found] == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start, _, block, *_, delta, _ = found
    message = start["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    assert message["usage"]["input_tokens"] > 0
    assert block["content_block"] == {"type": "text", "text": ""}
    assert delta["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == 4


@pytest.mark.parametrize("run", [create, streamed])
def test_stop_reasons(client: anthropic.Anthropic, fake: FakeEngine, run: Any) -> None:
    reply = run(client, stop_sequences=["ris", "zzz"])
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "ris")
    assert reply.content[0].text == "Pa"
    cut = run(client, max_tokens=2)
    assert (cut.stop_reason, cut.stop_sequence) == ("max_tokens", None)
    assert cut.content[0].text == "Paris" and cut.usage.output_tokens == 2


@pytest.mark.parametrize("run", [create, streamed])
def test_thinking(client: anthropic.Anthropic, fake: FakeEngine, run: Any) -> None:
    fake.script = Script(("<think>", "h", "m", "</think>", "Paris"))
    reply = run(client, thinking=THINKING, max_tokens=2000)
    thought, said = reply.content
    assert (thought.type, thought.thinking, said.text) == ("thinking", "hm", "Paris")
    assert thought.signature
    assert fake.chats[-1]["template_kwargs"] == {"enable_thinking": True}
    history = [*HELLO, {"role": "assistant", "content": reply.content}, *HELLO]
    run(client, messages=history)
    assert fake.chats[-1]["messages"][1]["reasoning_content"] == "hm"
    assert fake.chats[-1]["template_kwargs"] == {"enable_thinking": False}  # nobody asked for it


@pytest.mark.parametrize("run", [create, streamed])
def test_thinking_that_the_limit_cut_is_no_answer(
    client: anthropic.Anthropic, fake: FakeEngine, run: Any
) -> None:
    fake.script = Script(("<think>", "abc ", "def"), endless=True)
    reply = run(client, max_tokens=3)
    assert [(b.type, b.thinking) for b in reply.content] == [("thinking", "abc def")]
    assert (reply.stop_reason, reply.usage.output_tokens) == ("max_tokens", 3)


@pytest.mark.parametrize("run", [create, streamed])
def test_tools(client: anthropic.Anthropic, fake: FakeEngine, run: Any) -> None:
    fake.script = Script(("Let me see.", *(c for call in CALLS for c in call)))
    reply = run(client, tools=[WEATHER], max_tokens=300)
    said, first, second = reply.content
    assert said.text == "Let me see."
    assert (first.type, first.name, first.input) == ("tool_use", "weather", {"city": "Paris"})
    assert second.input == {"city": 'Ro"me 🦙'}
    assert first.id and second.id and first.id != second.id
    assert reply.stop_reason == "tool_use"


def test_calls_and_results_go_back(client: anthropic.Anthropic, fake: FakeEngine) -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "is_error": True}
    create(
        client,
        tools=[WEATHER],
        messages=[
            *HELLO,
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {**result, "content": [{"type": "text", "text": "no such city"}]},
                    {"type": "text", "text": "Go on."},
                ],
            },
            {"role": "user", "content": "Please."},  # the same turn
        ],
    )
    _, said, told, user = fake.chats[-1]["messages"]
    assert said["content"] == "I look."
    assert said["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
    assert (told["role"], told["tool_call_id"]) == ("tool", "t1")
    assert told["content"] == "Error: no such city"
    assert user["content"] == "Go on.\nPlease."


@pytest.mark.parametrize(
    ("choice", "must_call", "names", "parallel"),
    [
        ({"type": "auto"}, False, {"weather", "history"}, True),
        ({"type": "any"}, True, {"weather", "history"}, True),
        ({"type": "any", "disable_parallel_tool_use": True}, True, {"weather", "history"}, False),
        ({"type": "tool", "name": "history"}, True, {"history"}, True),
        ({"type": "none"}, False, set(), True),
    ],
)
def test_tool_choice(
    client: anthropic.Anthropic,
    fake: FakeEngine,
    choice: Any,
    must_call: bool,
    names: set[str],
    parallel: bool,
) -> None:
    create(client, tools=[WEATHER, {**WEATHER, "name": "history"}], tool_choice=choice)
    assert fake.rules.must_call == must_call and fake.rules.parallel == parallel
    assert {tool["function"]["name"] for tool in fake.rules.tools} == names


def test_a_begun_reply_goes_on(client: anthropic.Anthropic, fake: FakeEngine) -> None:
    create(client, messages=[*HELLO, {"role": "assistant", "content": "It is"}])
    assert fake.chats[-1]["continue_last"]


def test_formats(client: anthropic.Anthropic, fake: FakeEngine) -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    create(client, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert (fake.rules.kind, fake.rules.source) == ("json_schema", schema)


def test_counting(client: anthropic.Anthropic, fake: FakeEngine) -> None:
    counted = client.messages.count_tokens(model="any", messages=HELLO, system="Be brief.")
    reply = create(client, system="Be brief.")
    usage = reply.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "developer", "content": "x"}]}, "role"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "document",
                                "source": {
                                    "type": "base64",
                                    "media_type": "application/pdf",
                                    "data": "AA",
                                },
                            }
                        ],
                    }
                ]
            },
            "source.type",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": ["x"]}]}]}, "content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_result"}]}]}, "assistant"),
        ({"tool_choice": {"type": "any"}}, "tool"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": 3}, "stop_sequences"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_m"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "512"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals(http: httpx.Client, body: dict[str, Any], word: str, stream: bool) -> None:
    asked = {"model": "any", "max_tokens": 10, "messages": HELLO, "stream": stream, **body}
    reply = http.post("/v1/messages", json=asked)
    assert reply.status_code == 400
    told = reply.json()
    assert told["type"] == "error" and told["error"]["type"] == "invalid_request_error"
    assert word in told["error"]["message"]


def test_what_changes_no_reply_is_accepted(http: httpx.Client) -> None:
    block = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    body = {
        "model": "any",
        "max_tokens": 10,
        "messages": [{"role": "user", "content": [block]}],
        "system": [block],
        "metadata": {"user_id": "u"},
        # Claude Code's: keep what would be kept.
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "tools": [{**WEATHER, "cache_control": {"type": "ephemeral"}}],
        "xyz": 1,
    }
    reply = http.post("/v1/messages?beta=true", json=body)
    assert reply.status_code == 200
    assert reply.headers["x-rushlight-ignored"] == "xyz"


def test_system_text_on_the_way(client: anthropic.Anthropic, fake: FakeEngine) -> None:
    rule = {"type": "text", "text": "Be brief."}
    create(client, messages=[*HELLO, {"role": "system", "content": [rule, rule]}, *HELLO])
    said = [(message["role"], message["content"]) for message in fake.chats[-1]["messages"]]
    question = HELLO[0]["content"]
    assert said == [("user", question), ("system", "Be brief.\nBe brief."), ("user", question)]


def test_documents_are_text(client: anthropic.Anthropic, fake: FakeEngine) -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "It rains."}
    parts = {"type": "content", "content": [{"type": "text", "text": "It snows."}]}
    asked = [
        {"type": "document", "source": plain, "title": "Today", "context": "Paris"},
        {"type": "document", "source": parts, "citations": {"enabled": False}},
        {"type": "text", "text": "Why?"},
    ]
    create(client, messages=[{"role": "user", "content": asked}])
    assert fake.chats[-1]["messages"][0]["content"] == "Today\nParis\nIt rains.\nIt snows.\nWhy?"


def test_models(client: anthropic.Anthropic) -> None:
    [model] = client.models.list()
    assert model == client.models.retrieve(model.id)
    assert (model.id, model.display_name, model.type) == ("fake-1b", "fake-1b", "model")
    assert model.created_at.tzinfo and model.max_input_tokens == 512


def test_errors(client: anthropic.Anthropic, fake: FakeEngine, http: httpx.Client) -> None:
    with pytest.raises(anthropic.BadRequestError):
        create(client, messages=[{"role": "user", "content": "REFUSE"}])
    fake.script = Script(fail_after=2, error=EngineError("broken"))
    with pytest.raises(anthropic.InternalServerError):
        create(client)
    last = events(http)[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    with pytest.raises(anthropic.APIStatusError, match="internal error"):
        streamed(client)


def test_pings_while_it_waits(serve: Any) -> None:
    running = serve(FakeEngine(Script(prefill_s=0.6)), server={"progress_every_s": 0.1})
    with httpx.Client(base_url=running.url) as http:
        found = [event["type"] for event in events(http)]
    assert found[0] == "message_start" and found.count("ping") >= 3
    assert found.count("message_start") == 1
