"""The engine's loop: order, cancelling, closing, failing. On a tiny random model."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import (
    Engine,
    EngineClosed,
    EngineConfig,
    EngineFailed,
    Event,
    Failed,
    Finished,
    FinishReason,
    Grammar,
    Phase,
    QueueFull,
    RequestOptions,
    SamplingParams,
    Token,
)
from engine.cache.resident_chats import NoRoom
from tests.tiny_gguf import FIRST_BYTE
from tests.tiny_requests import N_CTX, PROMPT, A, Listener, always, run, slow_down


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
    def broken(*_: object, **__: object) -> np.ndarray:
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


def test_cancelling_one_of_a_batch_touches_nobody_else(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(EngineConfig(model_path, disk_bytes=0, n_ctx=256, max_running=2)) as engine:
        slow_down(engine, monkeypatch)
        leaving, staying = Listener(), Listener()
        first = engine.submit(PROMPT, always(A), leaving)
        engine.submit(PROMPT[::-1], always(A, max_tokens=30), staying)
        assert staying.started.wait(5)
        first.cancel()
        last = leaving.last(0.2)
        assert isinstance(last, Finished)
        assert last.finish_reason is FinishReason.CANCELLED
        assert not staying.ended.is_set()
        assert (staying.last().n_decoded, staying.text) == (30, "a" * 30)  # type: ignore[union-attr]


def test_it_is_told_where_a_prompt_leaves_its_chat(engine: Engine) -> None:
    text = [FIRST_BYTE + byte for byte in b"The quick brown fox jumps over the lazy dog. "]
    assert run(engine, text * 3, always(A, max_tokens=3))[1].difference is None
    edited = [*text * 2, *(FIRST_BYTE + byte for byte in b"The quick red fox"), *text]
    difference = run(engine, edited, always(A, max_tokens=3))[1].difference
    assert difference is not None
    assert difference.at == 2 * len(text) + len("The quick ")
    assert difference.cached == "e quick brown fo"
    assert difference.prompt == "e quick red foxT"


def test_a_preparation_gives_way_and_is_finished_later(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(engine, monkeypatch, 0.1)
    prompt = PROMPT[::-1] * 14
    engine._worker.prepare(prompt)
    time.sleep(0.05)
    assert run(engine, PROMPT, always(A, max_tokens=2))[0] == "aa"
    limit = time.monotonic() + 5
    while engine.estimate(prompt).n_cached < len(prompt) - 1:
        assert time.monotonic() < limit
        time.sleep(0.01)
    monkeypatch.undo()
    assert run(engine, prompt, always(A, max_tokens=1))[1].n_cached == len(prompt) - 1


def test_an_errand_is_run_by_the_engine_thread(engine: Engine) -> None:
    name = engine._worker.call(lambda: threading.current_thread().name).result(5)
    assert name == "rushlight-engine"
    with pytest.raises(ZeroDivisionError):
        engine._worker.call(lambda: 1 // 0).result(5)
    assert run(engine, PROMPT, always(A, max_tokens=1))[0] == "a"


def test_a_request_that_is_over_is_not_paused_where_pages_run_out(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grammar may end one in a step that has no room for the others: its pages are the room."""
    config = EngineConfig(model_path, disk_bytes=0, n_ctx=N_CTX, max_running=2)
    with Engine(config) as engine:
        slow_down(engine, monkeypatch)
        other = Listener()
        engine.submit(PROMPT, always(A, max_tokens=60), other)
        assert other.started.wait(5)
        make_room, failed, ended = engine._cache.make_room, [], Listener()

        def no_room(*args: Any) -> None:
            if ended.started.is_set() and not failed:
                failed.append(True)
                raise NoRoom
            make_room(*args)

        monkeypatch.setattr(engine._cache, "make_room", no_room)
        grammar = Grammar.compile("regex", "the end", engine.tokenizer)
        engine.submit(PROMPT[::-1], SamplingParams(), ended, RequestOptions(grammar=grammar))
        last = ended.last()
        assert failed
        assert isinstance(last, Finished)
        assert (ended.text, last.finish_reason) == ("the end", FinishReason.STOP)
        last = other.last()
        assert isinstance(last, Finished)
        assert last.n_decoded == 60
        time.sleep(0.1)
        assert engine.n_running == engine.n_waiting == 0
        assert sum(isinstance(event, Finished) for event in ended.events) == 1


def test_errands_that_follow_each_other_do_not_stop_replies(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(engine, monkeypatch)
    listener, n_run = Listener(), 0

    def errand() -> None:
        nonlocal n_run
        n_run += 1
        if n_run < 10_000 and not listener.ended.is_set():
            engine._worker.call(errand)

    engine.submit(PROMPT, always(A, max_tokens=9), listener)
    assert listener.started.wait(5)
    engine._worker.call(errand)
    assert isinstance(listener.last(), Finished)
    assert n_run < 1000
