"""Requests that end before their reply does: their time is up, or a newer one replaces them."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from engine import (
    Engine,
    EngineConfig,
    Failed,
    Finished,
    FinishReason,
    Replaced,
    RequestOptions,
    TimedOut,
)
from tests.tiny_requests import PROMPT, A, Listener, always, slow_down


def timed_out(listener: Listener) -> str:
    last = listener.last()
    assert isinstance(last, Failed)
    assert isinstance(last.error, TimedOut)
    return str(last.error)


def test_time_limits_tell_how_far_a_request_was(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(engine, monkeypatch, 0.1)
    limit = RequestOptions(max_time_s=0.35)
    running, waiting = Listener(), Listener()
    start = time.monotonic()
    engine.submit(PROMPT, always(A), running, limit)
    engine.submit(PROMPT, always(A), waiting, RequestOptions(max_time_s=0.2))
    assert "still in the queue" in timed_out(waiting)
    assert time.monotonic() - start < 0.35
    last = running.last()
    assert isinstance(last, Finished)
    assert last.finish_reason is FinishReason.TIMEOUT
    assert 1 <= last.n_decoded <= 3
    assert time.monotonic() - start < 1

    reading = Listener()
    prompt = PROMPT[::-1] * 15  # four chunks and the last token
    engine.submit(prompt, always(A), reading, limit)
    assert re.search(r"up after 0\.[34] s, when (128|192) of its 240 prompt", timed_out(reading))
    again = Listener()
    engine.submit(prompt, always(A, max_tokens=1), again, RequestOptions(max_time_s=30))
    last = again.last()
    assert isinstance(last, Finished)
    assert last.n_cached >= 128


def test_configured_time_limits(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(
        model_path, disk_bytes=0, n_ctx=256, queue_timeout_s=0.1, request_timeout_s=0.4
    )
    with Engine(config) as engine:
        slow_down(engine, monkeypatch)
        running, waiting = Listener(), Listener()
        engine.submit(PROMPT, always(A), running)
        engine.submit(PROMPT, always(A), waiting)
        assert "still in the queue" in timed_out(waiting)
        last = running.last()
        assert isinstance(last, Finished)
        assert last.finish_reason is FinishReason.TIMEOUT
        assert last.n_decoded > 5  # its time in the queue was no concern


def test_a_newer_request_replaces_a_waiting_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(engine, monkeypatch)
    running, older, other, newer = Listener(), Listener(), Listener(), Listener()
    key = RequestOptions(replaces_key="editor")
    generation = engine.submit(PROMPT, always(A), running, key)
    assert running.started.wait(5)
    engine.submit(PROMPT, always(A), older, key)
    engine.submit(PROMPT, always(A, max_tokens=1), other, RequestOptions(replaces_key="else"))
    engine.submit(PROMPT, always(A, max_tokens=2), newer, key)  # the queue is full but for this
    last = older.last(0.1)
    assert isinstance(last, Failed)
    assert isinstance(last.error, Replaced)
    generation.cancel()
    assert (other.last().n_decoded, newer.last().n_decoded) == (1, 2)  # type: ignore[union-attr]
