"""Errors as clients see them: one envelope, the right status, nothing given away."""

from __future__ import annotations

import functools
import logging
from typing import Any

import httpx
import pytest

from engine import (
    ContextLengthExceeded,
    EngineClosed,
    EngineFailed,
    InvalidRequest,
    OutOfMemory,
    QueueFull,
    Replaced,
    TimedOut,
)
from server.errors import ApiError, api_error
from tests.fake_engine import FakeEngine, Script
from tests.server.conftest import Running
from tests.server.wire import RawConnection, wait_until

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize(
    ("error", "status", "type_", "code"),
    [
        (ContextLengthExceeded(5, 4), 400, "invalid_request_error", "context_length_exceeded"),
        (InvalidRequest("no", "stop"), 400, "invalid_request_error", None),
        (QueueFull(32), 429, "rate_limit_error", "queue_full"),
        (Replaced(), 409, "invalid_request_error", "replaced"),
        (TimedOut(2.0, 5, 9), 504, "server_error", "timeout"),
        (OutOfMemory("too little"), 503, "server_error", "out_of_memory"),
        (EngineClosed("bye"), 503, "server_error", "server_closing"),
        (EngineFailed("broken"), 500, "server_error", "engine_failed"),
        (ValueError("inner detail"), 500, "server_error", "internal_error"),
        (ApiError(418, "tea"), 418, "invalid_request_error", None),
    ],
)
def test_table(error: Exception, status: int, type_: str, code: str | None) -> None:
    told = api_error(error, "req_1")
    assert (told.status, told.type, told.code) == (status, type_, code)
    assert told.param == getattr(error, "param", None)
    if status == 500 and code == "internal_error":
        assert "inner detail" not in told.message and "req_1" in told.message
    else:
        assert told.message == str(error)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [512, 513, 20_000])
def test_prompt_longer_than_the_context(http: httpx.Client, n: int, stream: bool) -> None:
    reply = http.post(TEXT, json={"prompt": [65] * n, "max_tokens": 10, "stream": stream})
    assert reply.status_code == 400
    assert reply.headers["content-type"] == "application/json"
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "prompt"
    assert str(n) in error["message"] and "512" in error["message"]
    assert http.post(TEXT, json={"prompt": [65] * 511}).status_code == 200
    long = {"messages": [{"role": "user", "content": "x" * 600}], "stream": stream}
    assert http.post(CHAT, json=long).json()["error"]["param"] == "messages"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/images", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
def test_routes(http: httpx.Client, method: str, path: str, status: int, code: str) -> None:
    reply = http.request(method, path)
    assert reply.status_code == status
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert path.split("/")[-1] in error["message"]
    if status == 405:
        assert reply.headers["allow"] in ("GET", "POST")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", CHAT),
        ("/embeddings", "/v1/embeddings"),
        ("/v1/v1/chat/completions", CHAT),
        ("/v1/nothing", None),
    ],
)
def test_a_base_url_with_another_number_of_v1(
    http: httpx.Client, path: str, meant: str | None
) -> None:
    """Clients differ in whether /v1 belongs to it: the message says what is missing."""
    reply = http.post(path, json={})
    assert reply.status_code == 404
    message = reply.json()["error"]["message"]
    assert message.endswith(f"; there is {meant}" if meant else "there is no such route")


@pytest.mark.parametrize("path", ["/v1/models/", "//v1/models", "/v1//models//"])
def test_slashes_of_a_base_url_do_not_matter(http: httpx.Client, path: str) -> None:
    """Nor is it a redirect, which preflights and many POSTs do not follow."""
    url = httpx.URL(str(http.base_url), raw_path=path.encode())
    reply = httpx.get(url)
    assert (reply.status_code, reply.json()["object"]) == (200, "list")
    reply = httpx.post(url.copy_with(raw_path=f"/{CHAT}/".encode()), json={"messages": "x"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "messages")


def test_when_to_come_again() -> None:
    assert api_error(QueueFull(3, 7.2), "id").headers == {"Retry-After": "8"}
    assert int(api_error(OutOfMemory("no"), "id").headers["Retry-After"]) > 0
    assert api_error(TimedOut(2.0, 5, 9), "id").headers == {}


def test_full_queue(serve: Any) -> None:
    engine = FakeEngine(Script(prefill_s=30), max_waiting=1)
    running: Running = serve(engine)
    with RawConnection(running.port) as first, RawConnection(running.port) as second:
        for connection in (first, second):
            connection.post(CHAT, {**HELLO, "stream": True})
            connection.head()
            wait_until(lambda: engine.is_busy)
        reply = httpx.post(running.url + CHAT, json={**HELLO, "stream": True})
        assert reply.status_code == 429
        assert int(reply.headers["retry-after"]) > 0
        assert reply.json()["error"]["code"] == "queue_full"
        assert httpx.get(running.url + "/health").status_code == 200


def test_some_prompts_of_a_request_do_not_fit_in_the_queue(serve: Any) -> None:
    engine = FakeEngine(Script(prefill_s=30), max_waiting=3)
    running: Running = serve(engine)
    with RawConnection(running.port) as busy:
        busy.post(TEXT, {"prompt": ["a", "b"], "stream": True})
        wait_until(lambda: engine.is_busy and engine.n_waiting == 1)
        reply = httpx.post(running.url + TEXT, json={"prompt": ["c", "d", "e"]})
        assert reply.status_code == 429
        assert [generation.cancelled for generation in engine.submitted] == [False] * 2 + [True] * 2


def test_broken_engine_reaches_every_request(serve: Any) -> None:
    engine = FakeEngine(Script(prefill_s=30))
    running: Running = serve(engine)
    assert httpx.get(running.url + "/health").status_code == 200
    with RawConnection(running.port) as waiting:
        waiting.post(CHAT, HELLO)
        wait_until(lambda: engine.is_busy)
        engine.crash()
        assert waiting.reply().status == 500
    for stream in (False, True):
        reply = httpx.post(running.url + CHAT, json={**HELLO, "stream": stream})
        assert reply.status_code == 500
        assert reply.json()["error"]["code"] == "engine_failed"
    health = httpx.get(running.url + "/health")
    assert health.status_code == 503
    assert health.json() == {"status": "failed", "message": "the engine thread stopped"}


def test_bug_is_logged_and_not_told(
    http: httpx.Client,
    fake: FakeEngine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("inner detail")

    monkeypatch.setattr(fake, "render_chat", broken)
    reply = http.post(CHAT, json=HELLO)
    assert reply.status_code == 500
    assert "inner detail" not in reply.text
    assert reply.headers["x-request-id"] in reply.json()["error"]["message"]
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info and reply.headers["x-request-id"] in record.getMessage()


def lines(caplog: pytest.LogCaptureFixture, request_id: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if request_id in record.getMessage()]


def test_one_log_line_per_request(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for stream in (False, True):
        caplog.clear()
        reply = http.post(CHAT, json={**HELLO, "stream": stream, "xyz": 1})
        mine = reply.headers["x-request-id"]
        wait_until(functools.partial(lines, caplog, mine))
        [record] = lines(caplog, mine)
        words = record.getMessage().split()
        assert words[:4] == [mine, "POST", CHAT, "200"]
        n_prompt = len("<user>Hello<assistant>") + 1
        assert words[4] == f"prompt={n_prompt}"
        assert words[5].startswith("cached=")
        assert words[6] == "tokens=4"
        assert words[7].endswith("s")
        assert words[8:] == ["ignored:", "xyz"]


def test_request_ids_differ(http: httpx.Client) -> None:
    ids = {http.get("/health").headers["x-request-id"] for _ in range(5)}
    assert len(ids) == 5
