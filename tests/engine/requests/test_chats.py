"""Chats as a user handles them, over a tiny random model: what is refused leaves all as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from engine import ContextLengthExceeded, Engine, EngineClosed, EngineConfig, InvalidRequest
from tests.tiny_requests import PROMPT, A, Listener, always, run

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(model_path: Path, tmp_path: Path) -> Iterator[MakeEngine]:
    with ExitStack() as stack:

        def make(**changes: Any) -> Engine:
            config = {"n_ctx": 256, "disk_bytes": 0, "saved_folder": tmp_path / "saved", **changes}
            return stack.enter_context(Engine(EngineConfig(model_path, **config)))

        yield make


def test_it_comes_back_with_all_its_tokens(make_engine: MakeEngine) -> None:
    engine = make_engine()
    run(engine, PROMPT * 8, always(A, max_tokens=4))
    [held] = engine.chats.in_memory()
    saved = engine.chats.save(0, "a")
    assert engine.chats.saved() == [saved]
    assert saved.n_tokens == held.n_tokens == engine.chats.drop(0)
    assert engine.chats.in_memory() == () and engine._pool.used_bytes == 0
    assert engine.chats.restore("a") == saved
    assert engine.chats.in_memory() == (held,)
    assert engine.chats.erase("a") == saved
    assert engine.chats.saved() == []
    assert engine.chats.in_memory() == (held,)


def test_one_that_is_too_long_is_refused(make_engine: MakeEngine) -> None:
    large = make_engine()
    run(large, PROMPT * 8, always(A, max_tokens=1))
    n_tokens = large.chats.save(0, "a").n_tokens
    small = make_engine(n_ctx=64)
    with pytest.raises(ContextLengthExceeded, match=rf"{n_tokens}.*64"):
        small.chats.restore("a")
    assert small.chats.in_memory() == ()


def test_a_damaged_one_costs_no_memory(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine()
    run(engine, PROMPT * 8, always(A, max_tokens=1))
    engine.chats.save(0, "a")
    engine.chats.drop(0)
    path = tmp_path / "saved" / "a"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InvalidRequest, match="'a' is damaged") as refused:
        engine.chats.restore("a")
    assert refused.value.param == "filename"
    assert engine._worker.call(lambda: engine._pool.used_bytes).result() == 0


def test_a_chat_that_is_being_answered_stays(make_engine: MakeEngine) -> None:
    engine = make_engine()
    reply = Listener()
    running = engine.submit(PROMPT, always(A, ignore_eos=True), reply)
    assert reply.started.wait(10)
    with pytest.raises(InvalidRequest, match="is being answered"):
        engine.chats.drop(0)
    assert engine.chats.save(0, "half").n_tokens > len(PROMPT)
    running.cancel()
    reply.last()


def test_numbers_and_folders_that_are_not_there(make_engine: MakeEngine) -> None:
    engine = make_engine(saved_folder=None)
    for refused in (lambda: engine.chats.save(0, "a"), engine.chats.saved):
        with pytest.raises(InvalidRequest, match=r"cache\.saved_folder is not set"):
            refused()
    for n in (-1, 0):
        with pytest.raises(InvalidRequest, match=f"no chat {n}; 0 are in memory") as error:
            engine.chats.drop(n)
        assert error.value.param == "id_slot"
    engine.close()
    with pytest.raises(EngineClosed):
        engine.chats.drop(0)
