"""Streams: the shape of the chunks, comments while a client waits, failures."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from engine import EngineError, Phase, Progress
from server.framing import ServerSentEvents
from server.progress import Watch
from server.wire_object import WireObject
from tests.fake_engine import FakeEngine, Script
from tests.server.conftest import Running
from tests.server.wire import RawConnection, chunks_of, parse_sse, wait_until

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hello"}], "stream": True},
    TEXT: {"prompt": "Hello", "stream": True},
}


def test_bytes_of_sse() -> None:
    class Named(WireObject):
        type: str

    value = Named(type="ping")
    assert ServerSentEvents().object(value) == b'data: {"type":"ping"}\n\n'
    named = ServerSentEvents(named=True).object(value)
    assert named == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert ServerSentEvents().comment("queued, 2 ahead") == b": queued, 2 ahead\n\n"


@pytest.mark.parametrize("options", [None, {"include_usage": False}])
def test_chat_chunks(http: httpx.Client, options: Any) -> None:
    reply = http.post(CHAT, json={**BODIES[CHAT], "stream_options": options})
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.headers["cache-control"] == "no-cache"
    chunks = chunks_of(reply.text)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        for delta, reason in [
            ({"role": "assistant", "content": ""}, None),
            ({"content": "Par"}, None),
            ({"content": "is"}, None),
            ({"content": "."}, None),
            ({}, "stop"),
        ]
    ]
    assert_common(chunks, "chat.completion.chunk")
    assert not any("usage" in chunk for chunk in chunks)
    assert "timings" in chunks[-1]


def test_text_chunks(http: httpx.Client) -> None:
    chunks = chunks_of(http.post(TEXT, json=BODIES[TEXT]).text)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"text": text, "index": 0, "logprobs": None, "finish_reason": reason}]
        for text, reason in [("Par", None), ("is", None), (".", None), ("", "stop")]
    ]
    assert_common(chunks, "text_completion")
    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_usage_when_asked_for(http: httpx.Client, path: str) -> None:
    body = {**BODIES[path], "stream_options": {"include_usage": True}}
    *chunks, last = chunks_of(http.post(path, json=body).text)
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 4
    assert_common([*chunks, last], "text_completion" if path == TEXT else "chat.completion.chunk")


def assert_common(chunks: list[dict[str, Any]], kind: str) -> None:
    heads = {(c["id"], c["object"], c["created"], c["model"]) for c in chunks}
    assert len(heads) == 1
    [(_, object_, created, model)] = heads
    assert (object_, model) == (kind, "fake-1b")
    assert isinstance(created, int) and abs(created - time.time()) < 60
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert reasons.count(None) == len(reasons) - 1


def test_characters_pass_as_they_are(http: httpx.Client, fake: FakeEngine) -> None:
    text = ' 🦙 歪 👩‍👧 "quoted" \\ \u2028 line\r\nbreak\n\ndata: [DONE]\n\n'
    fake.script = Script(tuple(text))
    chunks = chunks_of(http.post(TEXT, json={**BODIES[TEXT], "max_tokens": 100}).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text


def test_the_first_comment_comes_at_once(serve: Any) -> None:
    engine = FakeEngine(Script(prefill_s=600))
    running: Running = serve(engine, server={"progress_every_s": 15})
    with RawConnection(running.port) as first, RawConnection(running.port) as second:
        first.post(TEXT, BODIES[TEXT])
        assert first.head()[0] == 200
        wait_until(lambda: engine.submitted and not engine.n_waiting)
        began = time.monotonic()
        second.post(CHAT, BODIES[CHAT])
        assert second.head()[0] == 200
        assert second.chunk() == b": queued, 1 ahead\n\n"
        assert time.monotonic() - began < 5


def test_comments_come_while_waiting(serve: Any) -> None:
    engine = FakeEngine(Script(prefill_s=0.8))
    running: Running = serve(engine, server={"progress_every_s": 0.1})
    with RawConnection(running.port) as first, RawConnection(running.port) as second:
        first.post(TEXT, {**BODIES[TEXT], "prompt": "something else"})
        assert first.head()[0] == 200
        wait_until(lambda: engine.submitted and not engine.n_waiting)
        second.post(CHAT, BODIES[CHAT])
        assert second.head()[0] == 200
        stream = b""
        while chunk := second.chunk():
            stream += chunk
    data, comments = parse_sse(stream.decode())
    assert comments.count("queued, 1 ahead") >= 2  # 8 on an idle machine
    prefill = [comment for comment in comments if comment.startswith("prefill")]
    assert len(prefill) >= 3
    done = [int(comment.split()[1].split("/")[0]) for comment in prefill]
    assert done == sorted(done) and done[-1] > done[0]
    assert prefill[-1].endswith("s left")
    assert json.loads(data[0])["choices"][0]["delta"]["role"] == "assistant"


def test_comments_go_on_while_text_is_held_back(serve: Any) -> None:
    engine = FakeEngine(Script(("",) * 30 + ("x",), delay_s=0.02))
    running: Running = serve(engine, server={"progress_every_s": 0.1})
    stream = httpx.post(running.url + CHAT, json=BODIES[CHAT]).text
    _, comments = parse_sse(stream)
    assert sum(comment.startswith("decode, ") for comment in comments) >= 3


@pytest.mark.parametrize("asked", [{"return_progress": True}, {"stream_options": None}])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_progress_as_chunks(serve: Any, path: str, asked: dict[str, Any]) -> None:
    engine = FakeEngine(Script(prefill_s=0.5))
    running: Running = serve(engine, server={"progress_every_s": 0.1})
    if "stream_options" in asked:
        asked = {"stream_options": {"include_progress": True, "include_usage": True}}
    chunks = chunks_of(httpx.post(running.url + path, json={**BODIES[path], **asked}).text)
    waiting = [chunk for chunk in chunks if "prompt_progress" in chunk]
    assert len(waiting) >= 3 and waiting == chunks[: len(waiting)]
    assert all(chunk["choices"] == [] for chunk in waiting)
    assert all(("usage" in chunk) == ("stream_options" in asked) for chunk in waiting)
    progress = [chunk["prompt_progress"] for chunk in waiting]
    assert {p["total"] for p in progress[1:]} == {len(engine.submitted[0].prompt_ids)}
    done = [p["processed"] for p in progress]
    assert done == sorted(done) and done[-1] > 0
    left = [p["seconds_left"] for p in progress if p["seconds_left"] is not None]
    assert left and max(left) < 5
    assert_common(chunks, "chat.completion.chunk" if path == CHAT else "text_completion")


@pytest.mark.parametrize("path", [CHAT, TEXT, "/completion"])
def test_every_piece_has_timings_where_they_are_asked_for(
    http: httpx.Client, fake: FakeEngine, path: str
) -> None:
    fake.script = Script(("a", "b", "c"), delay_s=0.03)
    body = {**BODIES.get(path, BODIES[TEXT]), "timings_per_token": True}
    data = parse_sse(http.post(path, json=body).text)[0]
    events = [json.loads(item) for item in data if item != "[DONE]"]
    timings = [event["timings"] for event in events if "timings" in event]
    assert len(timings) == 4
    assert all(n <= t["predicted_n"] <= 4 for n, t in enumerate(timings, 1))
    n_prompt = len(fake.submitted[-1].prompt_ids)
    assert {t["cache_n"] + t["prompt_n"] for t in timings} == {n_prompt}
    took = [t["predicted_ms"] for t in timings]
    assert took == sorted(took) and took[0] < took[2] < 1000
    assert all(t.keys() == timings[-1].keys() for t in timings)
    data = parse_sse(http.post(path, json={**body, "timings_per_token": False}).text)[0]
    assert sum('"timings"' in item for item in data) == 1


def test_time_left_does_not_count_the_cache() -> None:
    looks = (
        Progress(Phase.QUEUED, 2, 1000, 0, 0, 1.0),
        Progress(Phase.QUEUED, 1, 1000, 0, 0, 2.0, queue_s=30.0, prefill_s=12.0),
        Progress(Phase.PREFILL, 0, 1000, 500, 0, 0.0),  # half came from the cache, in no time
        Progress(Phase.PREFILL, 0, 1000, 600, 0, 2.0),
        Progress(Phase.DECODE, 0, 1000, 1000, 7, 2.0),
    )
    seen = iter(looks)
    watch = Watch(lambda: (0, next(seen)))
    assert [watch.now().words() for _ in range(5)] == [
        "queued, 2 ahead",
        "queued, 1 ahead, about 42 s left",
        "prefill 500/1000",
        "prefill 600/1000, about 8 s left",
        "decode, 7 tokens",
    ]


@pytest.mark.parametrize("fail_after", [0, 3])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_failure_in_mid_stream(
    http: httpx.Client,
    fake: FakeEngine,
    path: str,
    fail_after: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    fake.script = Script(fail_after=fail_after, error=EngineError("secret detail"))
    reply = http.post(path, json=BODIES[path])
    data, _ = parse_sse(reply.text)
    error = json.loads(data[-1])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "server_error"
    assert reply.headers["x-request-id"] in error["message"]
    assert "secret" not in reply.text and "Traceback" not in reply.text
    for chunk in map(json.loads, data[:-1]):
        assert chunk["choices"][0]["finish_reason"] is None
    assert len(data) == (1 if fail_after == 0 else 4 + (path == CHAT))
    wait_until(lambda: 'error: "internal error' in caplog.text)
    fake.script = Script()
    assert http.post(path, json=BODIES[path]).status_code == 200


@pytest.mark.parametrize("fail_after", [0, 3])
def test_failure_without_a_stream(http: httpx.Client, fake: FakeEngine, fail_after: int) -> None:
    fake.script = Script(fail_after=fail_after)
    reply = http.post(CHAT, json={**BODIES[CHAT], "stream": False})
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"
