"""How far a request is, and how long it takes, as it is told to those who wait."""

from __future__ import annotations

import time

import pytest

from engine import (
    Engine,
    Phase,
    QueueFull,
    Timings,
)
from tests.tiny_requests import PROMPT, A, Listener, always, run, slow_down


def test_progress_counts_the_prompt(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(engine, monkeypatch, 0.1)
    generation = engine.submit(PROMPT * 12, always(A, max_tokens=1), Listener())
    seen = set()
    while (progress := generation.progress()).phase is not Phase.DONE:
        seen.add(progress.n_prefilled)
        time.sleep(0.01)
    assert {0, 64, 128} <= seen
    assert progress.n_prompt == len(PROMPT) * 12
    again = engine.submit(PROMPT * 12, always(A, max_tokens=3), Listener())
    last = Timings()
    while (progress := again.progress()).phase is not Phase.DONE:
        assert progress.timings.prefill_s >= last.prefill_s
        assert progress.timings.decode_s >= last.decode_s
        last = progress.timings
        time.sleep(0.01)
    assert progress.n_cached == len(PROMPT) * 12 - 1
    assert 0.1 <= last.prefill_s < 1 and 0.1 < last.decode_s < 1


def test_a_full_queue_tells_when_to_come_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(engine, PROMPT, always(A, max_tokens=100))  # so that speeds are known
    slow_down(engine, monkeypatch, 0.1)
    run(engine, PROMPT, always(A, max_tokens=20))
    generation = engine.submit(PROMPT * 4, always(A, max_tokens=200), Listener())
    for _ in range(2):
        engine.submit(PROMPT, always(A, max_tokens=1), Listener())
    with pytest.raises(QueueFull) as full:
        engine.submit(PROMPT, always(A), Listener())
    assert 1 < full.value.retry_after_s < 30
    generation.cancel()


def test_estimates_are_near_what_it_takes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.estimate(PROMPT).prefill_s is None
    slow_down(engine, monkeypatch, 0.05)
    prompt = PROMPT * 12
    run(engine, prompt, always(A, max_tokens=10))
    assert engine.estimate(prompt, 10).n_cached == len(prompt) - 1
    assert engine.estimate(prompt, 10, use_cache=False).n_cached == 0
    estimate = engine.estimate(prompt[::-1], 10)
    assert (estimate.n_prompt, estimate.n_cached, estimate.n_ahead) == (len(prompt), 0, 0)
    assert (estimate.queue_s, estimate.decode_s) == (0, pytest.approx(0.5, rel=0.3))
    assert estimate.prefill_s == pytest.approx(0.15, rel=0.4)

    first = engine.submit(prompt, always(A, max_tokens=30), Listener())
    second = engine.submit(PROMPT, always(A, max_tokens=1), Listener())
    progress = second.progress()
    assert progress.phase is Phase.QUEUED
    assert progress.queue_s == pytest.approx(engine.estimate(PROMPT).queue_s, rel=0.7)
    assert 0.3 < (progress.queue_s or 0) < 2
    first.cancel()
