"""Models whose layers look back on a window: what they give up is never missed, and prompts go on
from what is left. On tiny random models of every such architecture, and through the engine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from engine import Engine, EngineConfig, Finished, RequestOptions, SamplingParams, Token
from engine.cache.chat import MOST_MARKS, Chat
from engine.cache.kv_cache import NO_PAGE
from engine.kernels.kv_page import KV_TYPES, PAGE
from engine.model.architectures import ARCHITECTURES
from tests.golden_cases import FOLDER, GoldenCase, read_cases
from tests.tiny_chat import chat_of
from tests.tiny_gguf import FIRST_BYTE, write_tiny_gguf
from tests.tiny_requests import Listener, slow_down

CASES = [
    case
    for path in sorted(FOLDER.glob("*.json"))
    for case in read_cases(path)
    if case.model.window and case.model.window < PAGE
]
N_CTX = 512
WINDOW = 40
MakeEngine = Callable[..., Engine]


def text(n: int, seed: int = 0) -> list[int]:
    return [FIRST_BYTE + 32 + (i * i + i * seed + seed) % 90 for i in range(n)]


def give_up(chat: Chat, n_marks: int = 0) -> None:
    for slot in chat.spare_slots(n_marks):
        chat.drop(slot)


def n_held(chat: Chat) -> int:
    return sum(page != NO_PAGE for page in chat.pages)


def test_every_architecture_with_windows_is_here() -> None:
    windowed = {name for name, row in ARCHITECTURES.items() if row.window_period}
    # Exaone 4 has one in models of 64 layers only.
    assert {case.architecture for case in CASES} == windowed - {"exaone4"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_lies_outside_the_windows_is_not_missed(case: GoldenCase, tmp_path: Path) -> None:
    """To the last bit: the same numbers are read, in the same order."""
    tokens, path = text(330), case.write(tmp_path / "tiny.gguf")
    found = []
    for gives_up in (False, True):
        with chat_of(path, n_ctx=N_CTX) as chat:
            logits = []
            for i in range(0, 320, 50):
                logits.append(chat.score(tokens[i : i + 50][: 320 - i]).copy())
                if gives_up:
                    give_up(chat)
            for token in tokens[320:]:
                logits.append(chat.next(token)[None, :].copy())
                if gives_up:
                    give_up(chat)
            found.append(np.concatenate(logits))
            n_groups = len(chat._groups)
            assert n_held(chat) == 6 * n_groups if not gives_up else n_held(chat) < 6 * n_groups
    np.testing.assert_array_equal(*found)


def test_a_chat_goes_back_to_a_mark(tmp_path: Path) -> None:
    path = write_gemma(tmp_path)
    with chat_of(path, n_ctx=2 * N_CTX) as chat:
        chat.mark(100)
        for i in range(0, 300, 60):
            chat.prefill(text(300)[i : i + 60], want_logits=False)
            give_up(chat, MOST_MARKS)
        assert n_held(chat) < 10
        assert (chat.restart_at(250), chat.restart_at(120), chat.restart_at(30)) == (128, 120, 30)
        fork = chat.fork(chat.restart_at(100))
        found = fork.score(text(50, 3)).copy()
        fork.restart()
        chat.restart()
        for part in (text(100)[:60], text(100)[60:]):
            chat.prefill(part, want_logits=False)
        expected = chat.score(text(50, 3)).copy()
    np.testing.assert_array_equal(found, expected)
    assert expected.std() > 0


# --- through the engine ---------------------------------------------------------------------------


def write_gemma(folder: Path) -> Path:
    return write_tiny_gguf(
        folder / "tiny.gguf",
        architecture="gemma3",
        head_norms="head",
        post_norms=True,
        n_layer=7,
        window=WINDOW,
        n_ctx=2 * N_CTX,
    )


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[MakeEngine]:
    path = write_gemma(tmp_path)
    engines: list[Engine] = []

    def make(**options: object) -> Engine:
        settings = {"n_ctx": N_CTX, "disk_folder": tmp_path / "chats", **options}
        engines.append(Engine(EngineConfig(path, prefill_chunk=64, **settings)))  # type: ignore[arg-type]
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def ask(engine: Engine, ids: Sequence[int], n: int = 8) -> tuple[list[int], int]:
    """(ids of the reply, cached tokens)"""
    params = SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)
    events = list(engine.generate(list(ids), params))
    assert isinstance(events[-1], Finished)
    return [e.token_id for e in events if isinstance(e, Token)], events[-1].n_cached


def least_cache(engine: Engine) -> int:
    """Bytes of one full context: what is refused when there are fewer."""
    return engine.budget.chat


def test_a_long_context_costs_what_its_full_layers_do(make_engine: MakeEngine) -> None:
    engine = make_engine()
    full, local = engine._model.groups
    assert (len(full.layers), len(local.layers)) == (1, 6)
    assert least_cache(engine) < N_CTX // PAGE * (full.page_bytes + local.page_bytes)
    small = make_engine(cache_bytes=least_cache(engine), disk_bytes=0)
    ids = text(N_CTX - 20)
    assert ask(small, ids)[0] == ask(engine, ids)[0]
    assert small.memory().kv_limit == least_cache(engine)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_turns_edits_and_other_answers_where_memory_is_short(
    make_engine: MakeEngine, kv_type: str
) -> None:
    engine = make_engine(kv_type=kv_type, disk_bytes=0)
    small = make_engine(kv_type=kv_type, disk_bytes=0, cache_bytes=least_cache(engine) + (64 << 10))
    fresh = make_engine(kv_type=kv_type, disk_bytes=0)

    def same_as_fresh(ids: list[int], n_cached: int) -> list[int]:
        fresh._worker.call(fresh._cache.clear).result()
        reply, n = ask(small, ids)
        assert n == n_cached
        assert reply == ask(fresh, ids)[0]
        return reply

    first = text(200)
    reply = same_as_fresh(first, 0)
    second = [*first, *reply, *text(150, 3)]
    reply = same_as_fresh(second, len(first) + 7)  # the last token of a reply is not read
    same_as_fresh(second, len(second) - 1)  # another answer
    same_as_fresh([*first, *text(100, 4)], len(first))  # the last question is another one
    [chat] = [chat for chat in small._cache if len(chat.ids) == len(first) + 107]
    assert n_held(chat) < 2 * 5


def test_a_turn_without_its_thinking_is_prepared_where_memory_is_short(
    make_engine: MakeEngine,
) -> None:
    """The next turn leaves the chat where the reply began, and is read in idle time from there."""
    engine = make_engine(disk_bytes=0)
    small = make_engine(disk_bytes=0, cache_bytes=least_cache(engine) + (64 << 10))
    question, answer = text(200), text(70, 7)
    thinking, _ = ask(small, question, 100)
    assert thinking != answer[:100]
    small._worker.call(lambda: [give_up(chat, 2) for chat in small._cache]).result()
    prepared = [*question, *answer]
    small._worker.prepare(prepared)
    deadline = time.monotonic() + 10
    while small._worker.call(lambda: next(iter(small._cache)).ids).result() != prepared:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert ask(small, [*prepared, 50]) == (ask(engine, [*prepared, 50])[0], len(prepared))


def test_several_at_once_over_few_pages(make_engine: MakeEngine) -> None:
    """They share a beginning, write into copies of its last page, and push each other out."""
    engine = make_engine(disk_bytes=0)
    prompts = [[*text(100), *text(40 + 50 * i, i + 2)] for i in range(4)]
    solo = [ask(engine, ids, 60)[0] for ids in prompts]
    small = make_engine(disk_bytes=0, max_running=4, cache_bytes=least_cache(engine) + (64 << 10))
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    for _ in range(2):
        listeners = [Listener() for _ in prompts]
        for ids, listener in zip(prompts, listeners, strict=True):
            small.submit(ids, params, listener)
        for listener, expected in zip(listeners, solo, strict=True):
            assert isinstance(listener.last(60), Finished)
            found = [event.token_id for event in listener.events if isinstance(event, Token)]
            assert found == expected


def test_a_long_text_has_an_embedding_where_memory_is_short(make_engine: MakeEngine) -> None:
    """Its chat is no other's, and gives up pages as it is read."""
    engine = make_engine(disk_bytes=0)
    small = make_engine(disk_bytes=0, cache_bytes=least_cache(engine))
    ids = text(N_CTX - 10)
    assert small.embed(ids, threading.Event()) == engine.embed(ids, threading.Event())
    assert small._pool.used_bytes == 0


def test_over_a_restart(make_engine: MakeEngine) -> None:
    first = make_engine()
    reply, _ = ask(first, text(300))
    first._worker.call(lambda: [give_up(chat, 2) for chat in first._cache]).result()
    first.close()
    n_bytes = make_engine(disk_bytes=0)._model.chat_bytes(300)
    second = make_engine()
    assert second.memory().disk_cache < n_bytes + 8192
    next_turn = [*text(300), *reply, *text(20, 5)]
    expected, _ = ask(make_engine(disk_bytes=0), next_turn)
    assert ask(second, next_turn) == (expected, 307)
    again, n_cached = ask(second, text(300))
    assert (again, n_cached) == (reply, 299)


def test_saved_by_name(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(saved_folder=tmp_path / "saved", disk_bytes=0)
    reply, _ = ask(engine, text(300))
    engine._worker.call(lambda: [give_up(chat, 2) for chat in engine._cache]).result()
    engine.chats.save(0, "a")
    engine.chats.drop(0)
    assert engine.chats.restore("a").fits
    expected, _ = ask(make_engine(disk_bytes=0), [*text(300), *reply, 50])
    assert ask(engine, [*text(300), *reply, 50]) == (expected, 307)


def test_a_preempted_reply_goes_on(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(policy="priority", disk_bytes=0)
    expected, _ = ask(engine, text(250), 100)
    small = make_engine(
        policy="priority", disk_bytes=0, cache_bytes=least_cache(engine) + (64 << 10)
    )
    slow_down(small, monkeypatch, 0.003)
    low, high = Listener(), Listener()
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    small.submit(text(250), params, low)
    assert low.started.wait(10)
    few = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    small.submit(text(120, 9), few, high, RequestOptions(priority=1))
    assert isinstance(high.last(), Finished)
    assert not low.ended.is_set()
    last = low.last()
    assert isinstance(last, Finished)
    assert [event.token_id for event in low.events if isinstance(event, Token)] == expected
