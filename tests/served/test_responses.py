"""OpenAI's Responses on real models, through the real `openai` library."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pydantic
import pytest

pytestmark = pytest.mark.model

ASK = "What is the weather in Paris?"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Gets the weather of a city",
    "parameters": PARAMETERS,
    "strict": True,
}
HISTORY: Any = {**WEATHER, "name": "history", "description": "Gets the history of a city"}


def create(client: openai.OpenAI, **more: Any) -> Any:
    asked = {"model": "any", "input": ASK, "max_output_tokens": 60, **more}
    return client.responses.create(**asked)


def text_of(value: str) -> Any:
    """Forces a reply: the JSON string."""
    return {"format": {"type": "json_schema", "name": "x", "schema": {"enum": [value]}}}


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "history"}),
        ({"type": "function", "name": "history"}, {"history"}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "history"}],
            },
            {"history"},
        ),
    ],
)
def test_forced_calls(client: openai.OpenAI, choice: Any, names: set[str]) -> None:
    asked: Any = {"tools": [WEATHER, HISTORY], "tool_choice": choice}
    reply = create(client, parallel_tool_calls=False, **asked)
    [call] = reply.output
    assert (reply.status, call.type, call.status) == ("completed", "function_call", "completed")
    assert call.name in names
    jsonschema.validate(json.loads(call.arguments), PARAMETERS)
    with client.responses.stream(
        model="any", input=ASK, max_output_tokens=60, parallel_tool_calls=False, **asked
    ) as stream:
        [streamed] = stream.get_final_response().output
    assert streamed.type == "function_call"
    assert (streamed.name, streamed.arguments) == (call.name, call.arguments)


def test_a_call_by_itself_or_none(client: openai.OpenAI, is_qwen: bool) -> None:
    reply = create(client, tools=[WEATHER])
    calls = [item for item in reply.output if item.type == "function_call"]
    if is_qwen:
        assert [(c.name, json.loads(c.arguments)) for c in calls] == [
            ("weather", {"city": "Paris"})
        ]
    reply = create(client, tools=[WEATHER], tool_choice="none")
    assert [item.type for item in reply.output] == ["message"]


def test_a_conversation_that_the_server_keeps(client: openai.OpenAI, is_qwen: bool) -> None:
    first = create(client, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    [call] = first.output
    told: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 31 C."}
    then: Any = {"role": "user", "content": "So, do I need an umbrella?"}
    second = create(client, previous_response_id=first.id, input=[told, then])
    assert second.previous_response_id == first.id
    assert "umbrella" in second.output_text or not is_qwen  # right or wrong
    assert second.usage.input_tokens_details.cached_tokens > 0
    # The same without the server's memory.
    call_item = call.model_dump(include={"type", "call_id", "name", "arguments"})
    ask: Any = {"role": "user", "content": ASK}
    again = create(client, input=[ask, call_item, told, then], store=False)
    assert again.output_text == second.output_text
    assert client.responses.retrieve(first.id).output == first.output
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(again.id)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        create(client, previous_response_id=first.id)


def test_the_events_of_a_text(client: openai.OpenAI) -> None:
    events = list(create(client, text=text_of("alpha beta gamma"), stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    n_deltas = kinds.count("output_text.delta")
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * n_deltas,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    joined = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert json.loads(joined) == "alpha beta gamma" and n_deltas > 1
    assert events[-1].response.output_text == joined
    assert events[-1].response.usage.output_tokens >= n_deltas


def test_the_events_of_a_call(client: openai.OpenAI) -> None:
    asked = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    events = list(create(client, stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    n_deltas = kinds.count("function_call_arguments.delta")
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        *["function_call_arguments.delta"] * n_deltas,
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    [done] = [e for e in events if e.type == "response.function_call_arguments.done"]
    jsonschema.validate(json.loads(done.arguments), PARAMETERS)
    pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(pieces) == done.arguments and n_deltas > 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_reply_is_incomplete(client: openai.OpenAI, stream: bool) -> None:
    reply = create(client, max_output_tokens=3, stream=stream)
    if stream:
        last = list(reply)[-1]
        assert last.type == "response.incomplete"
        reply = last.response
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (reply.usage.output_tokens, reply.output[-1].status) == (3, "incomplete")


def test_instructions_and_roles(client: openai.OpenAI) -> None:
    """Instructions are system text, and so is what a developer says."""
    counted = client.responses.input_tokens.count
    ask: Any = {"role": "user", "content": [{"type": "input_text", "text": ASK}]}
    rule = "Answer in capital letters."
    n_instructed = counted(model="any", input=ASK, instructions=rule).input_tokens
    for role in ("system", "developer"):
        said: Any = {"role": role, "content": rule}
        assert counted(model="any", input=[said, ask]).input_tokens == n_instructed
    reply = create(client, instructions=rule, max_output_tokens=10)
    assert reply.usage.input_tokens == n_instructed and reply.instructions == rule
    assert create(client, max_output_tokens=10).usage.input_tokens != n_instructed


def test_formats(client: openai.OpenAI) -> None:
    class City(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        country: str = pydantic.Field(max_length=20)

    parsed = client.responses.parse(
        model="any", input="Paris is in France.", text_format=City, max_output_tokens=80
    ).output_parsed
    assert parsed and parsed.name == "Paris"
    reply = create(client, text={"format": {"type": "json_object"}}, max_output_tokens=200)
    if reply.status == "completed":
        assert isinstance(json.loads(reply.output_text), dict)
    assert reply.output_text.startswith("{")


def test_logprobs(client: openai.OpenAI) -> None:
    reply = create(client, max_output_tokens=5, top_logprobs=2)
    part = reply.output[0].content[0]
    assert "".join(item.token for item in part.logprobs) == part.text
    assert all(len(item.top_logprobs) == 2 for item in part.logprobs)
    assert all(item.token == item.top_logprobs[0].token for item in part.logprobs)


def test_what_is_asked_is_echoed(client: openai.OpenAI) -> None:
    asked: Any = {"reasoning": {"effort": "low"}, "metadata": {"a": "b"}, "truncation": "auto"}
    reply = create(client, max_output_tokens=4, temperature=0.5, top_p=0.9, **asked)
    assert (reply.max_output_tokens, reply.temperature, reply.top_p) == (4, 0.5, 0.9)
    assert (reply.reasoning.effort, reply.metadata) == ("low", {"a": "b"})
    assert reply.truncation == "auto"
    assert reply.to_dict()["timings"]["predicted_n"] == 4


def test_refusals(client: openai.OpenAI) -> None:
    for more, param in (
        ({"input": "x " * 2000}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"background": True}, "background"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            create(client, **more)
        assert refused.value.param and refused.value.param.startswith(param)
