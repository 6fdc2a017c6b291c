"""Clients that leave: the engine stops within 0.2 s wherever the request is."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine import Finished, FinishReason
from tests.fake_engine import FakeEngine, Script
from tests.server.conftest import Running
from tests.server.wire import RawConnection, wait_until

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
ENDLESS = Script(("word ",), endless=True, delay_s=0.01)
LONG_PREFILL = Script(prefill_s=60)
STOP_S = 0.2


def assert_cancelled(fake: FakeEngine, left_at: float) -> None:
    fake.wait_until_idle()
    end, at = fake.last_end()
    assert isinstance(end, Finished)
    assert end.finish_reason is FinishReason.CANCELLED
    assert at - left_at < STOP_S


@pytest.fixture
def raw(server: Running, fake: FakeEngine) -> Iterator[RawConnection]:
    fake.submitted.clear()
    with RawConnection(server.port) as connection:
        yield connection


@pytest.mark.parametrize("leave", ["close", "reset", "half-close"])
def test_stream_in_decode(raw: RawConnection, fake: FakeEngine, leave: str) -> None:
    fake.script = ENDLESS
    raw.post(CHAT, {**HELLO, "stream": True})
    raw.head()
    for _ in range(4):
        raw.chunk()
    left_at = time.monotonic()
    if leave == "half-close":  # counts as gone
        raw.socket.shutdown(socket.SHUT_WR)
    else:
        if leave == "reset":
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        raw.socket.close()
    assert_cancelled(fake, left_at)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [ENDLESS, LONG_PREFILL])
def test_while_it_is_worked_on(
    raw: RawConnection, fake: FakeEngine, stream: bool, script: Script
) -> None:
    fake.script = script
    raw.post(CHAT, {**HELLO, "stream": stream})
    wait_until(lambda: fake.submitted and not fake.n_waiting)
    time.sleep(0.03)
    left_at = time.monotonic()
    raw.socket.close()
    assert_cancelled(fake, left_at)


@pytest.mark.parametrize("stream", [False, True])
def test_in_the_queue(server: Running, raw: RawConnection, fake: FakeEngine, stream: bool) -> None:
    fake.script = lambda text: LONG_PREFILL if "first" in text else Script()
    raw.post(CHAT, {"messages": [{"role": "user", "content": "first"}], "stream": True})
    wait_until(lambda: fake.submitted and not fake.n_waiting)
    with RawConnection(server.port) as second:
        second.post(CHAT, {**HELLO, "stream": stream})
        wait_until(lambda: fake.n_waiting == 1)
    wait_until(lambda: fake.submitted[1].cancelled)
    assert not fake.submitted[0].cancelled, "one client's leaving touched another's request"


def test_every_prompt_of_a_request_is_cancelled(raw: RawConnection, fake: FakeEngine) -> None:
    fake.script = ENDLESS
    raw.post("/v1/completions", {"prompt": ["a", "b", "c"], "stream": True, "max_tokens": -1})
    raw.head()
    raw.chunk()
    wait_until(lambda: len(fake.submitted) == 3)
    raw.socket.close()
    fake.wait_until_idle()
    assert all(generation.cancelled for generation in fake.submitted)


def test_the_next_request_starts_at_once(
    http: httpx.Client, raw: RawConnection, fake: FakeEngine
) -> None:
    fake.script = lambda text: LONG_PREFILL if "first" in text else Script()
    raw.post(CHAT, {"messages": [{"role": "user", "content": "first"}]})
    wait_until(lambda: fake.submitted and not fake.n_waiting)
    raw.socket.close()
    began = time.monotonic()
    assert http.post(CHAT, json=HELLO).json()["choices"][0]["message"]["content"] == "Paris."
    assert time.monotonic() - began < 2


def test_a_client_that_reads_nothing_blocks_nobody(
    http: httpx.Client, raw: RawConnection, fake: FakeEngine
) -> None:
    fake.script = lambda text: Script(("x" * 10_000,) * 2000) if "flood" in text else Script()
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.post(CHAT, {"messages": [{"role": "user", "content": "flood"}], "stream": True})
    wait_until(lambda: fake.submitted and fake.submitted[0].id in fake.ends)
    assert http.post(CHAT, json=HELLO).status_code == 200


def test_leaving_is_not_logged_as_a_failure(
    raw: RawConnection, fake: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    fake.script = ENDLESS
    raw.post(CHAT, HELLO)
    wait_until(lambda: fake.submitted)
    raw.socket.close()
    wait_until(lambda: "the client left" in caplog.text)
    assert not [record for record in caplog.records if record.levelname != "INFO"]
