"""Ollama's family, through its own client library and on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest

from engine import EngineError
from tests.fake_engine import FakeEngine, Script
from tests.server.conftest import Running

HELLO = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALLS = tuple(
    f'<tool_call>{{"name": "weather", "arguments": {{"city": "{city}"}}}}</tool_call>'
    for city in ("Paris", 'Ro"me 🦙'.replace('"', '\\"'))
)


@pytest.fixture
def client(server: Running) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url) as client:
        yield client


def lines(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert reply.text.endswith("\n") and "\n\n" not in reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


def test_chat(client: ollama.Client, fake: FakeEngine) -> None:
    reply = client.chat("any", HELLO, options={"temperature": 0, "num_predict": 7, "num_ctx": 99})
    assert (reply.message.role, reply.message.content) == ("assistant", "Paris.")
    assert (reply.done, reply.done_reason, reply.model) == (True, "stop", "fake-1b")
    assert reply.eval_count == 4 and reply.prompt_eval_count
    assert reply.prompt_eval_duration == 2_000_000  # 2 ms in nanoseconds
    assert reply.total_duration and reply.eval_duration
    params = fake.submitted[-1].params
    assert (params.temperature, params.max_tokens) == (0, 7)


def test_chat_stream(client: ollama.Client) -> None:
    *pieces, last = list(client.chat("any", HELLO, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == "Paris."
    assert not any(piece.done for piece in pieces)
    assert (last.done, last.done_reason, last.eval_count) == (True, "stop", 4)
    assert last.message.content == ""


def test_streams_unless_told_otherwise(http: httpx.Client) -> None:
    objects = lines(http.post("/api/chat", json={"model": "m", "messages": HELLO}))
    assert [o["done"] for o in objects] == [False] * (len(objects) - 1) + [True]
    assert all(o["created_at"].endswith("+00:00") for o in objects)
    whole = http.post("/api/chat", json={"model": "m", "messages": HELLO, "stream": False})
    assert whole.headers["content-type"] == "application/json"
    assert whole.json()["message"] == {"role": "assistant", "content": "Paris."}
    assert whole.json()["timings"]["predicted_n"] == 4


def test_thinking(client: ollama.Client, fake: FakeEngine) -> None:
    fake.script = Script(("<think>", "hm", "</think>", "Paris"))
    reply = client.chat("any", HELLO, think=True)
    assert (reply.message.thinking, reply.message.content) == ("hm", "Paris")
    assert fake.chats[-1]["template_kwargs"] == {"enable_thinking": True}
    pieces = list(client.chat("any", HELLO, think=False, stream=True))
    assert fake.chats[-1]["template_kwargs"] == {"enable_thinking": False}
    assert "".join(piece.message.thinking or "" for piece in pieces) == "hm"
    assert "".join(piece.message.content or "" for piece in pieces) == "Paris"


def test_tools(client: ollama.Client, fake: FakeEngine) -> None:
    fake.script = Script(("Let me see.", *(c for call in CALLS for c in call)))
    reply = client.chat("any", HELLO, tools=[WEATHER])
    assert reply.message.content == "Let me see."
    calls = [call.function for call in reply.message.tool_calls or ()]
    assert [(c.name, dict(c.arguments)) for c in calls] == [
        ("weather", {"city": "Paris"}),
        ("weather", {"city": 'Ro"me 🦙'}),
    ]
    assert reply.done_reason == "stop"
    pieces = list(client.chat("any", HELLO, tools=[WEATHER], stream=True))
    streamed = [call.function for piece in pieces for call in piece.message.tool_calls or ()]
    assert streamed == calls
    assert "".join(piece.message.content or "" for piece in pieces) == "Let me see."


def test_a_call_that_the_limit_cut_is_not_told(client: ollama.Client, fake: FakeEngine) -> None:
    fake.script = Script((*CALLS[0], *CALLS[1]))
    cut = {"num_predict": len(CALLS[0]) + len(CALLS[1]) - 20}
    for stream in (False, True):
        reply: Any = client.chat("any", HELLO, tools=[WEATHER], options=cut, stream=stream)
        objects = list(reply) if stream else [reply]
        calls = [call for o in objects for call in o.message.tool_calls or ()]
        assert [dict(call.function.arguments) for call in calls] == [{"city": "Paris"}]
        assert objects[-1].done_reason == "length"


def test_a_null_is_an_absent_content(http: httpx.Client, fake: FakeEngine) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "sunny"}
    body = {"model": "m", "messages": [*HELLO, said, result], "stream": False}
    assert http.post("/api/chat", json=body).status_code == 200


def test_calls_and_results_go_back(client: ollama.Client, fake: FakeEngine) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}
    history = [
        *HELLO,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]
    assert client.chat("any", history, tools=[WEATHER]).message.content == "Paris."
    _, said, result = fake.chats[-1]["messages"]
    assert said["tool_calls"][0]["function"] == call["function"]
    assert said["reasoning_content"] == "hm"
    assert (result["name"], result["content"]) == ("weather", "sunny")
    assert result["tool_call_id"] == said["tool_calls"][0]["id"]


def test_a_begun_reply_goes_on(client: ollama.Client, fake: FakeEngine) -> None:
    client.chat("any", [*HELLO, {"role": "assistant", "content": "It is"}])
    assert fake.chats[-1]["continue_last"]


@pytest.mark.parametrize(
    ("asked", "kind", "source"),
    [
        ("json", "json_object", None),
        ({"type": "integer"}, "json_schema", {"type": "integer"}),
        ("", "", None),
        (None, "", None),
    ],
)
def test_format(
    client: ollama.Client, fake: FakeEngine, asked: Any, kind: str, source: Any
) -> None:
    client.chat("any", HELLO, format=asked)
    assert (fake.rules.kind, fake.rules.source) == (kind, source)
    client.generate("any", "Hi", format=asked)
    assert (fake.rules.kind, fake.rules.source) == (kind, source)


def test_logprobs(http: httpx.Client) -> None:
    body = {"model": "m", "messages": HELLO, "logprobs": True, "top_logprobs": 2, "stream": False}
    whole = http.post("/api/chat", json=body).json()["logprobs"]
    assert [item["logprob"] for item in whole] == [-1.0] * 3
    assert len(whole[0]["top_logprobs"]) == 2
    streamed = lines(http.post("/api/chat", json={**body, "stream": True}))
    assert [item for o in streamed for item in o.get("logprobs", ())] == whole


def test_generate(client: ollama.Client, fake: FakeEngine) -> None:
    reply = client.generate("any", "Hi", system="Be brief.", options={"stop": ["is"]})
    assert (reply.response, reply.done_reason) == ("Par", "stop")
    assert fake.chats[-1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    pieces = list(client.generate("any", "Hi", stream=True))
    assert "".join(piece.response for piece in pieces) == "Paris."
    assert [piece.done for piece in pieces][-1] and pieces[-1].eval_count == 4


def test_generate_raw_and_between(client: ollama.Client, fake: FakeEngine) -> None:
    client.generate("any", "Once", raw=True)
    assert fake.submitted[-1].prompt_ids == fake.encode_prompt("Once")
    client.generate("any", "def f(", suffix="return")
    assert fake.submitted[-1].prompt_ids == fake.encode_infill("def f(", "return")


def test_asking_for_nothing_loads(client: ollama.Client, fake: FakeEngine) -> None:
    n = len(fake.submitted)
    assert client.chat("any", []).done_reason == "load"
    assert client.generate("any", keep_alive="10m").done_reason == "load"
    [only] = client.generate("any", stream=True)
    assert (only.response, only.done, only.done_reason) == ("", True, "load")
    assert len(fake.submitted) == n


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/api/chat", {"messages": HELLO}, "model"),
        ("/api/chat", {"model": "m", "messages": "hi"}, "messages"),
        ("/api/chat", {"model": "m", "messages": [{**HELLO[0], "images": ["aa"]}]}, "images"),
        ("/api/chat", {"model": "m", "messages": HELLO, "format": "xml"}, "format"),
        ("/api/chat", {"model": "m", "messages": HELLO, "options": {"top_p": 2}}, "options.top_p"),
        (
            "/api/chat",
            {"model": "m", "messages": HELLO, "options": {"num_predict": 0}},
            "options.num_predict",
        ),
        ("/api/chat", {"model": "m", "messages": HELLO, "shift": True}, "shift"),
        ("/api/generate", {"model": "m", "prompt": "Hi", "truncate": True}, "truncate"),
        ("/api/chat", {"model": "m", "prompt": "Hi"}, "/api/generate"),
        ("/api/chat", {"model": "m", "messages": HELLO, "top_logprobs": 2}, "logprobs"),
        ("/api/generate", {"model": "m", "prompt": "Hi", "images": ["aa"]}, "images"),
        ("/api/generate", {"model": "m", "prompt": "Hi", "template": "x"}, "template"),
        ("/api/generate", {"model": "m", "prompt": "Hi", "context": [1]}, "context"),
        ("/api/generate", {"model": "m", "prompt": "x", "raw": True, "system": "y"}, "system"),
        ("/api/chat", {"model": "m", "messages": [{**HELLO[0], "content": "x" * 600}]}, "512"),
        ("/api/show", {}, "model"),
    ],
)
def test_refusals(http: httpx.Client, path: str, body: dict[str, Any], word: str) -> None:
    reply = http.post(path, json=body)
    assert reply.status_code == 400
    assert list(reply.json()) == ["error"] and word in reply.json()["error"]


def test_unknown_fields_are_named(http: httpx.Client) -> None:
    body = {"model": "m", "messages": HELLO, "xyz": 1, "options": {"abc": 1, "num_gpu": 1}}
    reply = http.post("/api/chat", json={**body, "stream": False, "keep_alive": -1})
    assert reply.headers["x-rushlight-ignored"] == "xyz, options.abc"


def test_unlimited(http: httpx.Client, fake: FakeEngine) -> None:
    for n in (-1, -2):
        body = {"model": "m", "messages": HELLO, "options": {"num_predict": n}}
        assert http.post("/api/chat", json=body).status_code == 200
        assert fake.submitted[-1].params.max_tokens is None


def test_a_failure_in_mid_stream(client: ollama.Client, fake: FakeEngine) -> None:
    fake.script = Script(fail_after=2, error=EngineError("broken"))
    with pytest.raises(ollama.ResponseError, match="internal error"):
        list(client.chat("any", HELLO, stream=True))
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat("any", HELLO)
    assert refused.value.status_code == 500


def test_a_waiting_client_hears_something(serve: Any) -> None:
    running = serve(FakeEngine(Script(prefill_s=0.6)), server={"progress_every_s": 0.1})
    with httpx.Client(base_url=running.url) as http:
        objects = lines(http.post("/api/chat", json={"model": "m", "messages": HELLO}))
    texts = [o["message"]["content"] for o in objects]
    assert texts.count("") > 3 and "".join(texts) == "Paris."


def test_models(client: ollama.Client) -> None:
    [listed] = client.list().models
    assert listed.model == "fake-1b" and listed.size == 600_000 and listed.digest
    assert listed.details and listed.details.family == "llama"
    assert listed.details.parameter_size == "1.00M"
    assert listed.details.quantization_level == "Q4_1"
    [loaded] = client.ps().models
    assert (loaded.model, loaded.size_vram, loaded.context_length) == ("fake-1b", 0, 512)
    for name in ("fake-1b", "fake-1b:latest"):
        shown = client.show(name)
        assert shown.modelinfo and shown.modelinfo["llama.context_length"] == 512
        assert shown.modelinfo["general.basename"] == "fake-1b"
        assert shown.capabilities == ["completion", "tools", "thinking", "insert"]
        assert shown.template == "{{ messages }}"
    with pytest.raises(ollama.ResponseError) as missing:
        client.show("other")
    assert missing.value.status_code == 404
    assert "not found" in str(missing.value)


def test_version(http: httpx.Client) -> None:
    major, minor, _ = http.get("/api/version").json()["version"].split(".")
    assert (int(major), int(minor)) >= (0, 6)  # what the pickiest clients ask for


def test_the_library_stays_as_it_is(client: ollama.Client, http: httpx.Client) -> None:
    assert client.pull("fake-1b:latest").status == "success"
    assert [step.status for step in client.pull("fake-1b", stream=True)] == ["success"]
    for change in (
        lambda: client.pull("llama3"),
        lambda: client.push("fake-1b"),
        lambda: client.copy("fake-1b", "other"),
        lambda: client.create("other", from_="fake-1b"),
        lambda: client.delete("fake-1b"),
    ):
        with pytest.raises(ollama.ResponseError, match="served here") as refused:
            change()
        assert refused.value.status_code == 404
    assert list(http.post("/api/blobs/sha256:0").json()) == ["error"]
    assert http.post("/api/pull", json={}).status_code == 400
