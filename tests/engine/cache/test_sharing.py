"""A reply does not depend on who else is there: replies that are written together, paused, or begun
from a shared cache equal those of an engine that had nothing else to do. On a tiny random model.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import (
    Engine,
    EngineConfig,
    Failed,
    Finished,
    FinishReason,
    RequestOptions,
    SamplingParams,
    Token,
)
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_requests import PROMPT, Listener, slow_down

N_CTX = 512
PROMPTS = [[*PROMPT[:i], *PROMPT[::-1], *PROMPT * (1 + i % 7)] for i in range(12)]
LENGTHS = [5 + 7 * i % 60 for i in range(12)]

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", n_ctx=N_CTX)


@pytest.fixture
def make_engine(model_path: Path) -> Iterator[MakeEngine]:
    engines: list[Engine] = []

    def make(**options: object) -> Engine:
        config = EngineConfig(model_path, disk_bytes=0, n_ctx=N_CTX, prefill_chunk=64, **options)  # type: ignore[arg-type]
        engines.append(Engine(config))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def greedy(n: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)


def limit_pages(engine: Engine, n: int) -> None:
    engine._pool.limit_bytes = n * sum(engine._pool.page_bytes)


def ids_of(listener: Listener) -> list[int]:
    return [event.token_id for event in listener.events if isinstance(event, Token)]


@pytest.fixture(scope="module")
def solo(model_path: Path) -> list[list[int]]:
    """Each reply by an engine that keeps nothing of the one before."""
    replies = []
    with Engine(EngineConfig(model_path, disk_bytes=0, n_ctx=N_CTX, prefill_chunk=64)) as engine:
        for prompt, n in zip(PROMPTS, LENGTHS, strict=True):
            engine._cache.clear()
            replies.append(
                [e.token_id for e in engine.generate(prompt, greedy(n)) if isinstance(e, Token)]
            )
    return replies


@pytest.mark.parametrize("max_running", [2, 3, 4, 8])
def test_replies_written_together(
    make_engine: MakeEngine, solo: list[list[int]], max_running: int
) -> None:
    engine = make_engine(max_running=max_running, cache_bytes=8 << 20)
    listeners = [Listener() for _ in PROMPTS]
    for prompt, n, listener in zip(PROMPTS, LENGTHS, listeners, strict=True):
        engine.submit(prompt, greedy(n), listener)
    most = 0
    while any(not listener.ended.is_set() for listener in listeners):
        most = max(most, engine.n_running)
        time.sleep(0.001)
    assert most == max_running
    assert [ids_of(listener) for listener in listeners] == solo


def test_several_over_few_pages(make_engine: MakeEngine, solo: list[list[int]]) -> None:
    """Growing replies run out of pages: one waits, and goes on when others are done."""
    engine = make_engine(max_running=8)  # the pool is just enough for one long chat
    limit_pages(engine, 9)
    listeners = [Listener() for _ in PROMPTS]
    for prompt, n, listener in zip(PROMPTS, LENGTHS, listeners, strict=True):
        engine.submit(prompt, greedy(n), listener)
    for listener in listeners:
        assert isinstance(listener.last(20), Finished)
    assert [ids_of(listener) for listener in listeners] == solo


def test_a_preempted_reply_goes_on_where_it_was(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(policy="priority", cache_bytes=8 << 20)
    alone = Listener()
    engine.submit(PROMPT * 4, greedy(150), alone)
    alone.last()
    engine._cache.clear()
    slow_down(engine, monkeypatch, 0.005)

    low, high = Listener(), Listener()
    generation = engine.submit(PROMPT * 4, greedy(150), low)
    assert low.started.wait(5)
    engine.submit(PROMPT[::-1] * 3, greedy(5), high, RequestOptions(priority=1))
    assert isinstance(high.last(), Finished)
    assert not low.ended.is_set()
    last = low.last()
    assert isinstance(last, Finished)
    assert last.finish_reason is FinishReason.LENGTH
    assert ids_of(low) == ids_of(alone)
    assert last.n_cached == 0
    assert last.timings.queue_s > 0
    assert generation.progress().n_decoded == 150


def test_anything_in_any_order(make_engine: MakeEngine, solo: list[list[int]]) -> None:
    """Requests come, leave, overtake; too few pages; whatever is not cancelled is right."""
    rng = random.Random(5)
    engine = make_engine(max_running=3, policy="priority", max_waiting=1000, cache_bytes=1 << 18)
    limit_pages(engine, 12)
    waiting: list[tuple[int, Listener]] = []
    cancelled = []
    for _ in range(80):
        which, listener = rng.randrange(len(PROMPTS)), Listener()
        options = RequestOptions(priority=rng.randrange(3))
        generation = engine.submit(PROMPTS[which], greedy(LENGTHS[which]), listener, options)
        if rng.random() < 0.3:
            cancelled.append((generation, listener))
        else:
            waiting.append((which, listener))
        if cancelled and rng.random() < 0.3:
            time.sleep(rng.random() * 0.01)
            cancelled.pop(rng.randrange(len(cancelled)))[0].cancel()
        if rng.random() < 0.1:
            limit_pages(engine, rng.randrange(9, 13))
    for generation, _ in cancelled:
        generation.cancel()
    for which, listener in waiting:
        last = listener.last(30)
        assert not isinstance(last, Failed), last.error
        assert ids_of(listener) == solo[which]
    for chat in engine._cache:
        assert chat.ids
