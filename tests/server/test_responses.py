"""OpenAI's Responses, through the official client and on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from engine import EngineError
from server.errors import ApiError
from server.responses.store import KeptResponse, ResponseStore
from tests.fake_engine import FakeEngine, Script
from tests.server.conftest import Running

HELLO = "What is the capital of France?"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALLS = tuple(
    f'<tool_call>{{"name": "weather", "arguments": {{"city": "{city}"}}}}</tool_call>'
    for city in ("Paris", 'Ro\\"me 🦙')
)


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def create(client: openai.OpenAI, **more: Any) -> Any:
    return client.responses.create(**{"model": "any", "input": HELLO, **more})


def streamed(client: openai.OpenAI, **more: Any) -> Any:
    """The response at the end of a stream, which the deltas before it add up to."""
    texts: dict[Any, str] = {}
    stream = create(client, stream=True, **more)
    for number, event in enumerate(stream):
        assert event.sequence_number == number
        if event.type.endswith(".delta"):
            place = event.item_id, event.type
            texts[place] = texts.get(place, "") + event.delta
        last = event
    assert last.type == f"response.{last.response.status}"
    for item in last.response.output:
        kind = {"message": "output_text", "reasoning": "reasoning_text"}
        name = kind.get(item.type, "function_call_arguments")
        whole = item.arguments if item.type == "function_call" else item.content[0].text
        assert texts.pop((item.id, f"response.{name}.delta"), "") == whole
    assert not texts
    return last.response


both = pytest.mark.parametrize("run", [create, streamed])


@both
def test_response(client: openai.OpenAI, fake: FakeEngine, run: Any) -> None:
    reply = run(client, instructions="Be brief.", temperature=0.5, max_output_tokens=9)
    assert reply.output_text == "Paris."
    [item] = reply.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert (reply.object, reply.status, reply.error) == ("response", "completed", None)
    assert reply.incomplete_details is None
    assert reply.usage.output_tokens == 4
    assert reply.usage.input_tokens == len(fake.submitted[-1].prompt_ids)
    assert reply.usage.total_tokens == reply.usage.input_tokens + 4
    assert (reply.instructions, reply.temperature) == ("Be brief.", 0.5)
    assert (reply.max_output_tokens, reply.tool_choice, reply.tools) == (9, "auto", [])
    params = fake.submitted[-1].params
    assert (params.temperature, params.max_tokens) == (0.5, 9)
    assert fake.chats[-1]["messages"][0] == {"role": "system", "content": "Be brief."}


def test_the_events_come_in_their_order(http: httpx.Client, fake: FakeEngine) -> None:
    fake.script = Script(("<think>", "hm", "</think>", "Paris", "."))
    text = http.post("/v1/responses", json={"input": HELLO, "stream": True}).text
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if not block.startswith(":"):
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [e["output_index"] for e in events if "output_index" in e] == [0] * 6 + [1] * 7
    assert events[0]["response"]["output"] == [] and events[0]["response"]["usage"] is None
    added = [e["item"] for e in events if e["type"] == "response.output_item.added"]
    assert [item["content"] for item in added] == [[], []]
    assert {item["status"] for item in added} == {"in_progress"}


@both
def test_a_cut_reply_is_incomplete(client: openai.OpenAI, fake: FakeEngine, run: Any) -> None:
    reply = run(client, max_output_tokens=2)
    assert (reply.status, reply.output_text) == ("incomplete", "Paris")
    assert reply.incomplete_details.reason == "max_output_tokens"
    assert reply.output[-1].status == "incomplete"
    fake.script = Script(("<think>", "abc ", "def"), endless=True)
    cut = run(client, max_output_tokens=3)
    [thought] = cut.output
    assert (thought.type, thought.content[0].text) == ("reasoning", "abc def")
    assert cut.output_text == "" and cut.usage.output_tokens == 3


@both
def test_thinking(client: openai.OpenAI, fake: FakeEngine, run: Any) -> None:
    fake.script = Script(("<think>", "h", "m", "</think>", "Paris"))
    style = {"verbosity": "low"}  # has no effect, as the wish for a summary
    reply = run(client, reasoning={"effort": "low", "summary": "detailed"}, text=style)
    thought, said = reply.output
    assert (thought.type, thought.content[0].text, thought.summary) == ("reasoning", "hm", [])
    assert said.content[0].text == "Paris"
    assert reply.usage.output_tokens_details.reasoning_tokens > 0
    assert fake.chats[-1]["template_kwargs"] == {"enable_thinking": True}
    run(client, reasoning={"effort": "none"})
    assert fake.chats[-1]["template_kwargs"] == {"enable_thinking": False}


@both
def test_tools_and_their_results(client: openai.OpenAI, fake: FakeEngine, run: Any) -> None:
    fake.script = Script(("Let me see.", *(c for call in CALLS for c in call)))
    reply = run(client, tools=[WEATHER])
    said, first, second = reply.output
    assert (said.content[0].text, first.type, first.name) == (
        "Let me see.",
        "function_call",
        "weather",
    )
    assert json.loads(first.arguments) == {"city": "Paris"}
    assert json.loads(second.arguments) == {"city": 'Ro"me 🦙'}
    assert first.call_id != second.call_id and first.id != second.id
    fake.script = Script()
    results = [
        {"type": "function_call_output", "call_id": first.call_id, "output": "sunny"},
        {
            "type": "function_call_output",
            "call_id": second.call_id,
            "output": [{"type": "input_text", "text": "rain"}],
        },
    ]
    history = [{"role": "user", "content": HELLO}, *reply.output, *results]
    for asked in (
        {"input": history},  # by the client
        {"input": results, "previous_response_id": reply.id},  # by the server
    ):
        assert run(client, tools=[WEATHER], **asked).output_text == "Paris."
        user, turn, sunny, rain = fake.chats[-1]["messages"]
        assert user == {"role": "user", "content": HELLO}
        assert turn["content"] == "Let me see."
        assert [c["function"]["arguments"] for c in turn["tool_calls"]] == [
            {"city": "Paris"},
            {"city": 'Ro"me 🦙'},
        ]
        assert (sunny["content"], rain["content"]) == ("sunny", "rain")
        assert (sunny["role"], sunny["tool_call_id"]) == ("tool", first.call_id)


@pytest.mark.parametrize(
    ("choice", "must_call", "names"),
    [
        ("none", False, set()),
        ("required", True, {"weather", "history"}),
        ({"type": "function", "name": "history"}, True, {"history"}),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "weather"}],
            },
            False,
            {"weather"},
        ),
    ],
)
def test_tool_choice(
    client: openai.OpenAI, fake: FakeEngine, choice: Any, must_call: bool, names: set[str]
) -> None:
    tools = [WEATHER, {**WEATHER, "name": "history"}]
    reply = create(client, tools=tools, tool_choice=choice, parallel_tool_calls=False)
    assert fake.rules.must_call == must_call and not fake.rules.parallel
    assert {tool["function"]["name"] for tool in fake.rules.tools} == names
    assert not reply.parallel_tool_calls and len(reply.tools) == 2


def test_a_conversation_that_the_server_keeps(client: openai.OpenAI, fake: FakeEngine) -> None:
    fake.script = Script(("<think>", "hm", "</think>", "Paris"))
    first = create(client, instructions="Be brief.")
    second = create(client, input="And of Spain?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    messages = fake.chats[-1]["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]  # no old instructions
    assert (messages[1]["reasoning_content"], messages[1]["content"]) == ("hm", "Paris")
    third = create(client, input="And of Italy?", previous_response_id=first.id)  # another branch
    assert fake.chats[-1]["messages"][-1]["content"] == "And of Italy?"
    assert len(fake.chats[-1]["messages"]) == 3
    assert client.responses.retrieve(third.id).output_text == "Paris"
    items = client.responses.input_items.list(second.id).data
    assert [item.type for item in items] == ["message", "reasoning", "message", "message"]
    client.responses.delete(first.id)
    for missing in (first.id, create(client, store=False).id):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(missing)
        with pytest.raises(openai.NotFoundError) as refused:
            create(client, previous_response_id=missing)
        assert refused.value.param == "previous_response_id"


def test_the_store_is_bounded() -> None:
    def kept(n: int) -> KeptResponse:
        return KeptResponse("x" * n, [], 0)

    store = ResponseStore(max_bytes=1000, max_responses=3)
    for name in "abc":
        store.keep(name, kept(100))
    store.get("a")
    store.keep("d", kept(100))  # the fourth: the longest unused goes
    with pytest.raises(ApiError):
        store.get("b")
    store.keep("e", kept(850))
    assert store.get("e") and store.get("d")
    for gone in "ac":
        with pytest.raises(ApiError):
            store.get(gone)
    store.keep("f", kept(1001))  # alone too large
    with pytest.raises(ApiError):
        store.get("f")
    store.drop("e")
    store.keep("g", kept(900))
    assert store.get("g") and store.get("d")


def test_formats(client: openai.OpenAI, fake: FakeEngine) -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    wanted: Any = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    reply = create(client, text={"format": wanted})
    assert (fake.rules.kind, fake.rules.source) == ("json_schema", schema)
    assert reply.text.format.type == "json_schema"
    create(client, text={"format": {"type": "json_object"}})
    assert fake.rules.kind == "json_object"


@both
def test_logprobs(client: openai.OpenAI, run: Any) -> None:
    reply = run(client, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = reply.output[0].content[0].logprobs
    assert [item.logprob for item in logprobs] == [-1.0] * 3
    assert len(logprobs[0].top_logprobs) == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "b"}]}, "input[0].arguments"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "banana"}, "tool_choice"),
        ({"tool_choice": {"type": {}}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"verbosity": "mute"}}, "text.verbosity"),
        ({"reasoning": {"summary": "rhymed"}}, "reasoning.summary"),
        ({"reasoning": {"effort": "a lot"}}, "reasoning.effort"),
        ({"truncation": "left"}, "truncation"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"messages": []}, "messages"),
        ({"input": "x" * 600}, "input"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals(http: httpx.Client, body: Any, param: str | None, stream: bool) -> None:
    reply = http.post("/v1/responses", json={"input": "Hi", "stream": stream, **body})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == (param or "input[0].content[0].type")


def test_unknown_keys_are_named(http: httpx.Client) -> None:
    item = {"role": "user", "content": "Hi", "abc": 1}
    reply = http.post("/v1/responses", json={"input": [item], "xyz": 1, "user": "u"})
    assert reply.headers["x-rushlight-ignored"] == "xyz, input[].abc"


def test_counting(http: httpx.Client) -> None:
    counted = http.post("/v1/responses/input_tokens", json={"input": HELLO}).json()
    reply = http.post("/v1/responses", json={"input": HELLO}).json()
    assert counted["input_tokens"] == reply["usage"]["input_tokens"]


def test_a_failure_in_mid_stream(client: openai.OpenAI, fake: FakeEngine) -> None:
    fake.script = Script(fail_after=2, error=EngineError("broken"))
    stream = create(client, stream=True)
    with pytest.raises(openai.APIError, match="internal error"):
        list(stream)
    with pytest.raises(openai.InternalServerError):
        create(client)


def test_the_clients_own_accumulator(client: openai.OpenAI) -> None:
    with client.responses.stream(model="any", input=HELLO) as stream:
        final = stream.get_final_response()
    assert final.output_text == "Paris."
