"""What a reply tells beside its text: where the cache could not go on, and what was dropped."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from engine import Difference
from server import notes
from tests.fake_engine import FakeEngine, Script
from tests.server.conftest import Running
from tests.server.wire import RawConnection, chunks_of, wait_until

CHAT = "/v1/chat/completions"
OLLAMA = {"model": "m", "stream": False}
LONG = "See how the quick brown fox jumps over the dog"
EDITED = "See how the quick brown fox leaps over\r\nthe dog"
N_EQUAL = len("<user>See how the quick brown fox ") + 1
# The last token of what is told is the eighth behind the difference.
CACHED, PROMPT = "own fox jumps ov", "own fox leaps ov"


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def talk(n_turns: int) -> list[dict[str, str]]:
    """Turns of about a hundred tokens each, behind a system text."""
    chat = [{"role": "system", "content": "Be brief."}]
    for i in range(n_turns):
        chat += [
            {"role": "user", "content": f"question {i} ".ljust(40, "q")},
            {"role": "assistant", "content": f"answer {i} ".ljust(40, "a")},
        ]
    return [*chat, {"role": "user", "content": "And now?"}]


@pytest.fixture
def own(serve: Any) -> Iterator[tuple[httpx.Client, FakeEngine, Running]]:
    """A server of this test's own, whose engine has read nothing yet."""
    engine = FakeEngine()
    running = serve(engine)
    with httpx.Client(base_url=running.url, timeout=10) as client:
        yield client, engine, running


Own = tuple[httpx.Client, FakeEngine, Running]


def test_headers_are_ascii_and_bounded() -> None:
    told = notes.headers(1, 0, Difference(7, "é\r\n: 'x;", "\U0001f600" * 1000))
    assert told["X-Rushlight-Dropped"] == "1 message"
    at, cached, prompt = told["X-Rushlight-Cache"].split("; ")
    assert at == "differs at token 7"
    assert unquote(cached.removeprefix("cached=")) == "é\r\n: 'x;"
    assert set(unquote(prompt.removeprefix("prompt="))) == {"\U0001f600"}
    header = told["X-Rushlight-Cache"]
    assert header.isascii() and header.isprintable() and len(header) < 4096
    assert notes.headers(0, 0, None) == {}
    assert notes.headers(0, 7, None) == {"X-Rushlight-Dropped": "7 tokens"}


@pytest.mark.parametrize("stream", [False, True])
def test_where_the_cache_could_not_go_on(
    own: Own, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    http, _, _ = own
    first = http.post(CHAT, json=user(LONG, stream=stream))
    assert "x-rushlight-cache" not in first.headers and "rushlight" not in first.text
    with caplog.at_level(logging.INFO, "rushlight.server"):
        reply = http.post(CHAT, json=user(EDITED, stream=stream))
        wait_until(lambda: "cache:" in caplog.text)
    assert reply.headers["x-rushlight-cache"] == (
        f"differs at token {N_EQUAL}; cached={CACHED.replace(' ', '%20')}; "
        f"prompt={PROMPT.replace(' ', '%20')}"
    )
    assert f"cache: differs at token {N_EQUAL}: cached {CACHED!r}, now {PROMPT!r}" in caplog.text
    last = chunks_of(reply.text)[-1] if stream else reply.json()
    assert last["rushlight"] == {
        "cache_difference": {"token": N_EQUAL, "cached": CACHED, "prompt": PROMPT}
    }
    again = http.post(CHAT, json=user(EDITED + " and more", stream=stream))
    assert "x-rushlight-cache" in again.headers, "the template's end stands where text does now"


def test_a_stream_that_waits_tells_it_at_its_end(own: Own) -> None:
    http, engine, running = own
    http.post(CHAT, json=user(LONG))
    engine.script = Script(delay_s=0.2)
    with RawConnection(running.port) as busy, RawConnection(running.port) as waiting:
        busy.post(CHAT, user(LONG))
        wait_until(lambda: engine.is_busy)
        waiting.post(CHAT, user(EDITED, stream=True))
        status, headers = waiting.head()  # at once
        assert status == 200 and engine.is_busy and engine.n_waiting == 1
        assert "x-rushlight-cache" not in headers
        text = b""
        while chunk := waiting.chunk():
            text += chunk
        found = json.loads(text.split(b"data: ")[-2])["rushlight"]["cache_difference"]
        assert found["token"] == N_EQUAL


@pytest.mark.parametrize("stream", [False, True])
def test_a_long_chat_slides_where_that_is_asked_for(own: Own, stream: bool) -> None:
    http, engine, _ = own
    chat = talk(6)
    refused = http.post(CHAT, json={"messages": chat, "stream": stream})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    body = {"messages": chat, "stream": stream, "context_policy": "slide"}
    reply = http.post(CHAT, json=body)
    assert reply.status_code == 200
    wait_until(lambda: engine.next_turns)
    seen = engine.next_turns[-1]["messages"][:-1]
    assert seen[0] == chat[0] and seen[1]["role"] == "user" and seen[-1] == chat[-1]
    assert seen[1:] == chat[-len(seen) + 1 :], "whole turns, the oldest"
    n_dropped = len(chat) - len(seen)
    assert n_dropped >= 2 and n_dropped % 2 == 0
    assert reply.headers["x-rushlight-dropped"] == f"{n_dropped} messages"
    last = chunks_of(reply.text)[-1] if stream else reply.json()
    assert last["rushlight"]["dropped_messages"] == n_dropped
    prompt_ids = engine.submitted[-1].prompt_ids
    assert len(prompt_ids) <= engine.model.n_ctx * 3 / 4, "a quarter is left for the reply"


def test_what_fits_loses_nothing(own: Own) -> None:
    http, _, _ = own
    reply = http.post(CHAT, json={"messages": talk(2), "context_policy": "slide"})
    assert reply.status_code == 200
    assert "x-rushlight-dropped" not in reply.headers and "rushlight" not in reply.json()


def test_the_last_turn_is_never_dropped(own: Own) -> None:
    http, _, _ = own
    chat = [*talk(2), {"role": "assistant", "content": "."}, {"role": "user", "content": "x" * 600}]
    reply = http.post(CHAT, json={"messages": chat, "context_policy": "slide"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == "messages"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"max_tokens": 20, "messages": talk(6)[1:], "context_policy": "slide"}),
        ("/v1/responses", {"input": talk(6), "truncation": "auto"}),
        ("/v1/responses", {"input": talk(6), "context_policy": "slide"}),
        ("/api/chat", {**OLLAMA, "messages": talk(6), "context_policy": "slide"}),
        ("/api/chat", {**OLLAMA, "messages": talk(6), "truncate": True}),
    ],
)
def test_every_family_slides(own: Own, path: str, body: dict[str, Any]) -> None:
    http, _, _ = own
    refused = http.post(path, json={**body, "context_policy": "error"})
    assert refused.status_code == 400
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    n_dropped = reply.json()["rushlight"]["dropped_messages"]
    assert n_dropped >= 2
    assert reply.headers["x-rushlight-dropped"] == f"{n_dropped} messages"
    if path == "/v1/responses" and "truncation" in body:
        assert reply.json()["truncation"] == "auto"


def test_the_engines_setting_holds_where_a_request_says_nothing(serve: Any) -> None:
    engine = FakeEngine(context_policy="slide")
    with httpx.Client(base_url=serve(engine).url, timeout=10) as http:
        assert "x-rushlight-dropped" in http.post(CHAT, json={"messages": talk(6)}).headers
        strict = {"messages": talk(6), "context_policy": "error"}
        assert http.post(CHAT, json=strict).status_code == 400
        ollama = {**OLLAMA, "messages": talk(6)}
        assert http.post("/api/chat", json=ollama).status_code == 200
        assert http.post("/api/chat", json={**ollama, "truncate": False}).status_code == 400
        for truncation in ("auto", "disabled"):  # a Response says what was in force
            asked = {} if truncation == "auto" else {"truncation": truncation}
            reply = http.post("/v1/responses", json={"input": "Hi", **asked})
            assert reply.json()["truncation"] == truncation
        text = http.post("/v1/completions", json={"prompt": "x" * 600})
        assert text.status_code == 400, "a text has no turns"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "Hi", "context_policy": "slide"}, "context_policy"),
        (CHAT, user("Hi", context_policy="shrink"), "context_policy"),
    ],
)
def test_refusals(own: Own, path: str, body: dict[str, Any], param: str) -> None:
    reply = own[0].post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
