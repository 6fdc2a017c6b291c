"""Requests whose client has left: a retry joins them, and others come first."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engine import (
    Engine,
    EngineConfig,
    Finished,
    FinishReason,
    SamplingParams,
)
from tests.tiny_requests import PROMPT, A, Listener, always, run, slow_down


def lingering(model_path: Path) -> Engine:
    return Engine(EngineConfig(model_path, disk_bytes=0, n_ctx=256, prefill_chunk=64, linger_s=0.5))


def test_a_retry_joins_what_its_client_has_left(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lingering(model_path) as engine:
        slow_down(engine, monkeypatch)
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        expected = run(engine, PROMPT, params)[0]
        first, second = Listener(), Listener()
        left = engine.submit(PROMPT, params, first)
        assert first.started.wait(5)
        left.leave()
        joined = engine.submit(PROMPT, params, second)
        left.leave()  # it has no say any more
        left.cancel()
        last = second.last()
        assert isinstance(last, Finished)
        assert (second.text, last.n_decoded) == (expected, 30)
        assert not first.ended.is_set()
        assert joined.progress().n_decoded == 30


def test_what_a_client_has_left_ends_soon(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lingering(model_path) as engine:
        slow_down(engine, monkeypatch)
        left = Listener()
        start = time.monotonic()
        engine.submit(PROMPT, always(A), left).leave()
        last = left.last()
        assert isinstance(last, Finished)
        assert last.finish_reason is FinishReason.CANCELLED
        assert 0.4 < time.monotonic() - start < 2

        left, other = Listener(), Listener()
        generation = engine.submit(PROMPT, always(A), left)
        generation.leave()
        start = time.monotonic()
        engine.submit(PROMPT[::-1], always(A, max_tokens=1), other)  # not the same: it comes first
        other.last()
        assert time.monotonic() - start < 0.3
        assert left.ended.is_set()


def test_without_lingering_a_client_that_leaves_cancels(engine: Engine) -> None:
    left = Listener()
    engine.submit(PROMPT, always(A), left).leave()
    last = left.last(0.5)
    assert isinstance(last, Finished)
    assert last.finish_reason is FinishReason.CANCELLED
