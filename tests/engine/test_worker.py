"""The engine's loop: order, cancelling, closing, failing. On a tiny random model."""

from __future__ import annotations

import time

import numpy as np
import pytest

from engine import (
    Engine,
    EngineClosed,
    EngineFailed,
    Event,
    Failed,
    Finished,
    FinishReason,
    Phase,
    QueueFull,
    Token,
)
from tests.tiny_requests import PROMPT, A, Listener, always, run


def test_requests_are_served_in_order(engine: Engine) -> None:
    order: list[str] = []
    listeners = [Listener() for _ in range(3)]

    def listen(i: int, event: Event) -> None:
        if isinstance(event, Finished):
            order.append(f"{i}")
        listeners[i](event)

    for i in range(3):
        engine.submit(PROMPT, always(A, max_tokens=20), lambda e, i=i: listen(i, e))  # type: ignore[misc]
    assert [one.last().finish_reason for one in listeners] == [FinishReason.LENGTH] * 3  # type: ignore[union-attr]
    assert order == ["0", "1", "2"]


def slow_down(engine: Engine, monkeypatch: pytest.MonkeyPatch, step_s: float = 0.02) -> None:
    """Let each run of the plan take a while."""
    forward = engine._model.forward

    def slow(*args: object) -> np.ndarray:
        time.sleep(step_s)
        return forward(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(engine._model, "forward", slow)


def test_cancelling_while_decoding(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(engine, monkeypatch)
    listener = Listener()
    generation = engine.submit(PROMPT, always(A), listener)
    assert listener.started.wait(5)
    generation.cancel()
    generation.cancel()  # once more changes nothing
    last = listener.last(1.0)
    assert isinstance(last, Finished)
    assert last.finish_reason is FinishReason.CANCELLED
    assert run(engine, PROMPT, always(A, max_tokens=2))[0] == "aa"


def test_cancelling_in_prefill_keeps_what_was_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(engine, monkeypatch, 0.2)
    listener = Listener()
    prompt = PROMPT * 15  # four chunks
    generation = engine.submit(prompt, always(A, max_tokens=1), listener)
    while generation.progress().n_prefilled < 64:
        time.sleep(0.01)
    generation.cancel()
    last = listener.last()
    assert isinstance(last, Finished)
    assert (last.finish_reason, last.n_decoded) == (FinishReason.CANCELLED, 0)
    monkeypatch.undo()
    assert run(engine, prompt, always(A, max_tokens=1))[1].n_cached >= 64


def test_cancelling_in_the_queue_touches_nobody_else(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(engine, monkeypatch)
    running, waiting, behind = Listener(), Listener(), Listener()
    engine.submit(PROMPT, always(A, max_tokens=20), running)
    second = engine.submit(PROMPT, always(A), waiting)
    third = engine.submit(PROMPT, always(A, max_tokens=3), behind)
    assert running.started.wait(5)
    assert second.progress().phase is Phase.QUEUED
    assert (second.progress().n_ahead, third.progress().n_ahead) == (1, 2)
    second.cancel()
    last = waiting.last(0.1)
    assert isinstance(last, Finished)
    assert (last.finish_reason, last.n_decoded) == (FinishReason.CANCELLED, 0)
    assert third.progress().n_ahead == 1
    assert running.last().finish_reason is FinishReason.LENGTH  # type: ignore[union-attr]
    assert (running.text, behind.last().n_decoded, behind.text) == ("a" * 20, 3, "aaa")  # type: ignore[union-attr]


def test_a_full_queue_refuses(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(engine, monkeypatch)
    running = Listener()
    engine.submit(PROMPT, always(A), running)
    assert running.started.wait(5)
    for _ in range(2):
        engine.submit(PROMPT, always(A, max_tokens=1), Listener())
    assert engine.n_waiting == 2
    with pytest.raises(QueueFull, match="2 requests are waiting"):
        engine.submit(PROMPT, always(A), Listener())


def test_closing_ends_all_requests(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(engine, monkeypatch)
    listeners = [Listener() for _ in range(3)]
    for listener in listeners:
        engine.submit(PROMPT, always(A), listener)
    start = time.monotonic()
    engine.close()
    assert time.monotonic() - start < 2.0
    reasons = [listener.last(0.1).finish_reason for listener in listeners]  # type: ignore[union-attr]
    assert reasons == [FinishReason.CANCELLED] * 3
    with pytest.raises(EngineClosed):
        engine.submit(PROMPT, always(A), Listener())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_internal_error_reaches_every_present_and_future_request(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> np.ndarray:
        time.sleep(0.2)
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(engine._model, "forward", broken)
    listeners = [Listener(), Listener()]
    for listener in listeners:
        engine.submit(PROMPT, always(A), listener)
    for listener in listeners:
        last = listener.last()
        assert isinstance(last, Failed)
        assert isinstance(last.error, EngineFailed)
    with pytest.raises(EngineFailed, match="boom"):
        engine.submit(PROMPT, always(A), Listener())
    assert "boom" in str(engine.failure)


@pytest.mark.parametrize("broken_on", [Token, Finished])
def test_a_listener_that_raises_ends_its_own_request_only(
    engine: Engine, caplog: pytest.LogCaptureFixture, broken_on: type
) -> None:
    heard = Listener()

    def broken(event: Event) -> None:
        heard(event)
        if isinstance(event, broken_on):
            raise ZeroDivisionError("a bug of the listener")

    behind = Listener()
    generation = engine.submit(PROMPT, always(A, max_tokens=40), broken)
    engine.submit(PROMPT, always(A, max_tokens=3), behind)
    assert (behind.last().n_decoded, behind.text) == (3, "aaa")  # type: ignore[union-attr]
    assert generation.cancelled
    if broken_on is Token:
        last = heard.last()
        assert isinstance(last, Finished)
        assert (last.finish_reason, last.n_decoded) == (FinishReason.CANCELLED, 1)
    assert engine.failure is None
    assert run(engine, PROMPT, always(A, max_tokens=2))[0] == "aa"
    [record] = [record for record in caplog.records if record.exc_info]
    assert f"request {generation.id} " in record.getMessage()


def test_progress_counts_the_prompt(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(engine, monkeypatch, 0.1)
    generation = engine.submit(PROMPT * 12, always(A, max_tokens=1), Listener())
    seen = set()
    while (progress := generation.progress()).phase is not Phase.DONE:
        seen.add(progress.n_prefilled)
        time.sleep(0.01)
    assert {0, 64, 128} <= seen
    assert progress.n_prompt == len(PROMPT) * 12
