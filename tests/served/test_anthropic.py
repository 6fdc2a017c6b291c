"""Anthropic's messages on real models, through the real `anthropic` library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema
import pydantic
import pytest

pytestmark = pytest.mark.model

ASK: Any = {"role": "user", "content": "What is the weather in Paris?"}
THEN = {"type": "text", "text": "So, do I need an umbrella?"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "name": "weather",
    "description": "Gets the weather of a city",
    "input_schema": SCHEMA,
}
HISTORY: Any = {**WEATHER, "name": "history", "description": "Gets the history of a city"}


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def create(client: anthropic.Anthropic, **more: Any) -> Any:
    return client.messages.create(**{"model": "any", "max_tokens": 60, "messages": [ASK], **more})


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any"}, {"weather", "history"}),
        ({"type": "tool", "name": "history"}, {"history"}),
        ({"type": "tool", "name": "weather", "disable_parallel_tool_use": True}, {"weather"}),
    ],
)
def test_forced_calls(client: anthropic.Anthropic, choice: Any, names: set[str]) -> None:
    asked = {"tools": [WEATHER, HISTORY], "tool_choice": choice}
    whole = create(client, **asked)
    assert whole.stop_reason == "tool_use"
    assert {block.type for block in whole.content} == {"tool_use"}
    for block in whole.content:
        assert block.name in names
        jsonschema.validate(block.input, SCHEMA)
    if choice.get("disable_parallel_tool_use"):
        assert len(whole.content) == 1
    with client.messages.stream(model="any", max_tokens=60, messages=[ASK], **asked) as stream:
        streamed = stream.get_final_message()
    assert [(b.name, b.input) for b in streamed.content] == [
        (b.name, b.input) for b in whole.content
    ]
    assert streamed.stop_reason == "tool_use"


def test_a_call_as_events(client: anthropic.Anthropic) -> None:
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    events = list(create(client, tools=[WEATHER], tool_choice=choice, stream=True))
    kinds = [event.type for event in events if event.type != "ping"]
    n_deltas = kinds.count("content_block_delta")
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * n_deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    begun = next(event for event in events if event.type == "content_block_start")
    assert begun.content_block.type == "tool_use" and begun.content_block.input == {}
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    assert {delta.type for delta in deltas} == {"input_json_delta"} and n_deltas > 1
    jsonschema.validate(json.loads("".join(delta.partial_json for delta in deltas)), SCHEMA)
    assert events[-2].delta.stop_reason == "tool_use"
    assert events[-2].usage.output_tokens > 0


def test_a_call_by_itself_or_none(client: anthropic.Anthropic, is_qwen: bool) -> None:
    reply = create(client, tools=[WEATHER], tool_choice={"type": "auto"})
    calls = [block for block in reply.content if block.type == "tool_use"]
    if is_qwen:
        assert [(call.name, call.input) for call in calls] == [("weather", {"city": "Paris"})]
    assert (reply.stop_reason == "tool_use") == bool(calls)
    reply = create(client, tools=[WEATHER], tool_choice={"type": "none"})
    assert [block.type for block in reply.content] == ["text"]


@pytest.mark.parametrize("as_blocks", [False, True])
def test_results_go_back(client: anthropic.Anthropic, is_qwen: bool, as_blocks: bool) -> None:
    called = create(client, tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"})
    text = "It is sunny, 31 C."
    results = [
        {
            "type": "tool_result",
            "tool_use_id": block.id,
            "content": [{"type": "text", "text": text}] if as_blocks else text,
        }
        for block in called.content
    ]
    turns = [ASK, {"role": "assistant", "content": called.content}]
    answer = create(client, messages=[*turns, {"role": "user", "content": [*results, THEN]}])
    assert answer.stop_reason in ("end_turn", "max_tokens")
    [block] = answer.content
    assert block.type == "text" and block.text
    assert "umbrella" in block.text or not is_qwen  # right or wrong
    assert answer.usage.cache_read_input_tokens > 0


@pytest.mark.slow
def test_the_librarys_own_loop(client: anthropic.Anthropic, is_qwen: bool) -> None:
    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Gets the weather of a city"""
        return f"It is sunny in {city}, 31 C."

    runner = client.beta.messages.tool_runner(
        model="any", max_tokens=60, tools=[weather], messages=[ASK], max_iterations=3
    )
    replies = list(runner)
    assert replies[-1].content
    if is_qwen:
        assert [reply.stop_reason for reply in replies[:1]] == ["tool_use"]
        assert "31" in replies[1].content[0].text or "sunny" in replies[1].content[0].text


def test_stop_sequences(client: anthropic.Anthropic) -> None:
    forced: Any = {"format": {"type": "json_schema", "schema": {"enum": ["alpha beta gamma"]}}}
    asked = {"output_config": forced, "stop_sequences": ["nothing", "gamma"]}
    whole = create(client, **asked)
    assert whole.content[0].text == '"alpha beta '
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", "gamma")
    with client.messages.stream(model="any", max_tokens=60, messages=[ASK], **asked) as stream:
        assert "".join(stream.text_stream) == '"alpha beta '
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "gamma")
    whole = create(client, output_config=forced)
    assert (whole.stop_reason, whole.stop_sequence) == ("end_turn", None)
    assert json.loads(whole.content[0].text) == "alpha beta gamma"


def test_the_limit(client: anthropic.Anthropic) -> None:
    reply = create(client, max_tokens=3)
    assert (reply.stop_reason, reply.usage.output_tokens) == ("max_tokens", 3)


def test_system_text_and_counts(client: anthropic.Anthropic) -> None:
    blocks: Any = [
        {"type": "text", "text": "You are a pirate.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be brief."},
    ]
    replies = []
    for system in (blocks, "You are a pirate.\nBe brief."):
        asked: Any = {"system": system, "tools": [WEATHER]}
        reply = create(client, max_tokens=10, tool_choice={"type": "auto"}, **asked)
        usage = reply.usage
        n_prompt = usage.input_tokens + usage.cache_read_input_tokens
        counted = client.messages.count_tokens(model="any", messages=[ASK], **asked)
        assert counted.input_tokens == n_prompt
        replies.append((n_prompt, [block.model_dump(exclude={"id"}) for block in reply.content]))
    assert replies[0] == replies[1]
    bare = client.messages.count_tokens(model="any", messages=[ASK])
    assert bare.input_tokens < replies[0][0]


def test_a_begun_reply_goes_on(client: anthropic.Anthropic) -> None:
    ask = {"role": "user", "content": "What is the capital of France?"}
    begun = {"role": "assistant", "content": "The capital of France is"}
    assert create(client, messages=[ask, begun], max_tokens=5).content[0].text.startswith(" Paris")


def test_asked_to_think(client: anthropic.Anthropic) -> None:
    """These models do not; they answer all the same."""
    for thinking in (
        {"type": "enabled", "budget_tokens": 1024},
        {"type": "adaptive"},
        {"type": "disabled"},
    ):
        reply = create(client, thinking=thinking, max_tokens=10)
        assert [block.type for block in reply.content] == ["text"]


def test_a_class_as_format(client: anthropic.Anthropic) -> None:
    class City(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        country: str = pydantic.Field(max_length=20)

    messages: Any = [{"role": "user", "content": "Paris is in France."}]
    parsed = client.messages.parse(
        model="any", max_tokens=80, messages=messages, output_format=City
    ).parsed_output
    assert isinstance(parsed, City) and parsed.name == "Paris"


def test_refusals(client: anthropic.Anthropic) -> None:
    for more, words in (
        ({"messages": [{"role": "user", "content": "x " * 2000}]}, ["tokens", "1024"]),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, ["tools[0].type"]),
        ({"tool_choice": {"type": "any"}}, ["tool_choice"]),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, ["image"]),
    ):
        with pytest.raises(anthropic.BadRequestError) as refused:
            create(client, **more)
        body: Any = refused.value.body
        assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
        assert all(word in body["error"]["message"] for word in words)
