"""Many clients at once: nothing mixes, and refusals are clean."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.fake_engine import FakeEngine, Script
from tests.server.conftest import Running
from tests.server.wire import RawConnection, chunks_of

CHAT = "/v1/chat/completions"


def parrot(prompt: str) -> Script:
    """A reply that only this prompt can have got."""
    name = prompt.split("<user>")[1].split("<")[0]
    return Script(tuple(f"{name}:{i} " for i in range(20)), delay_s=0.001)


def test_sixteen_replies_do_not_mix(http: httpx.Client, server: Running, fake: FakeEngine) -> None:
    fake.script = parrot

    def ask(i: int) -> tuple[str, str, int]:
        body = {
            "messages": [{"role": "user", "content": f"client{i}"}],
            "stream": i % 2 == 0,
            "max_tokens": 3 + i,
            "stop": [f"client{i}:{i}"] if i % 3 == 0 else None,
            "seed": i,
            "stream_options": {"include_usage": True},
        }
        reply = httpx.post(server.url + CHAT, json=body, timeout=20)
        assert reply.status_code == 200
        if not body["stream"]:
            whole = reply.json()
            choice = whole["choices"][0]
            n = whole["usage"]["completion_tokens"]
            return choice["message"]["content"], choice["finish_reason"], n
        *chunks, last = chunks_of(reply.text)
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        reason = chunks[-1]["choices"][0]["finish_reason"]
        return text, reason, last["usage"]["completion_tokens"]

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(ask, range(16)))
    assert together == [ask(i) for i in range(16)]
    for i, (text, _, _) in enumerate(together):
        assert set(text.replace(":", " ").split()[::2]) <= {f"client{i}"}


def test_two_hundred_clients_against_a_short_queue(serve: Any) -> None:
    engine = FakeEngine(Script(delay_s=0.02), max_waiting=4)
    running: Running = serve(engine)
    body = {"messages": [{"role": "user", "content": "x"}]}

    def ask(_: int) -> int:
        return client.post(CHAT, json=body).status_code

    with (
        httpx.Client(
            base_url=running.url, timeout=20, limits=httpx.Limits(max_connections=None)
        ) as client,
        ThreadPoolExecutor(200) as pool,
        RawConnection(running.port) as probe,
    ):
        statuses = pool.map(ask, range(200))
        began = time.monotonic()
        probe.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert probe.reply().status == 200
        assert time.monotonic() - began < 1
        counts = dict.fromkeys((200, 429), 0)
        for status in statuses:
            counts[status] += 1  # any other status is a KeyError
    assert counts[200] >= 5
    assert counts[200] + counts[429] == 200
