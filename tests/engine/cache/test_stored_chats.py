"""Chats that leave memory and come back (chat_cache.py with disk_cache.py), through the engine: on
eviction, over a restart, and over all that can be wrong with a file. On a tiny random model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import Engine, EngineConfig, Finished, SamplingParams, Token
from engine.cache.chat_file import read_header
from engine.kernels.kv_page import KV_TYPES
from tests.tiny_gguf import FIRST_BYTE, write_tiny_gguf

N_CTX = 512
N_PROMPT = 300

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[MakeEngine]:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", n_ctx=N_CTX)
    engines: list[Engine] = []

    def make(**options: object) -> Engine:
        config = EngineConfig(
            path, n_ctx=N_CTX, prefill_chunk=64, disk_folder=tmp_path / "chats", **options
        )  # type: ignore[arg-type]
        engines.append(Engine(config))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def prompt(seed: int, n: int = N_PROMPT) -> list[int]:
    return [FIRST_BYTE + 32 + (i * i + i * seed + seed) % 90 for i in range(n)]


def ask(engine: Engine, ids: list[int], n: int = 8) -> tuple[list[int], int]:
    """(ids of the reply, cached tokens)"""
    params = SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)
    events = list(engine.generate(ids, params))
    assert isinstance(events[-1], Finished)
    return [e.token_id for e in events if isinstance(e, Token)], events[-1].n_cached


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_a_chat_goes_on_after_a_restart(make_engine: MakeEngine, kv_type: str) -> None:
    first = make_engine(kv_type=kv_type)
    reply, n_cached = ask(first, prompt(1))
    assert n_cached == 0
    next_turn = [*prompt(1), *reply, *prompt(2, 20)]
    expected, _ = ask(first, next_turn)
    first.close()
    second = make_engine(kv_type=kv_type)
    found, n_cached = ask(second, next_turn)
    assert found == expected
    assert n_cached == len(next_turn) - 1
    third = make_engine(kv_type=kv_type, disk_bytes=0)
    assert ask(third, next_turn) == (expected, 0)


def test_a_chat_that_others_pushed_out_comes_back(make_engine: MakeEngine) -> None:
    least = make_engine(disk_bytes=0)._pool.page_bytes[0] * 14
    engine = make_engine(cache_bytes=least)
    reply, _ = ask(engine, prompt(1))
    for seed in (2, 3, 4, 5):
        ask(engine, prompt(seed))
    assert engine.memory().disk_cache > 0
    held = N_PROMPT + len(reply) - 1  # the last token of a reply is not read
    found, n_cached = ask(engine, [*prompt(1), *reply, *prompt(6, 20)])
    assert n_cached == held
    fresh = make_engine(disk_bytes=0)
    assert ask(fresh, [*prompt(1), *reply, *prompt(6, 20)]) == (found, 0)


def test_a_store_too_small_for_all_keeps_the_last_used_at_the_end(make_engine: MakeEngine) -> None:
    page_bytes = make_engine(disk_bytes=0)._pool.page_bytes[0]
    engine = make_engine(disk_bytes=12 * page_bytes)  # two chats of five pages, and a header each
    for seed in (1, 2, 3):
        ask(engine, prompt(seed))
    engine.close()
    engine = make_engine(disk_bytes=12 * page_bytes)
    assert ask(engine, prompt(3))[1] == N_PROMPT - 1
    assert ask(engine, prompt(2))[1] == N_PROMPT - 1
    assert ask(engine, prompt(1))[1] == 0


def test_a_damaged_file_costs_a_read_and_nothing_else(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = make_engine()
    expected, _ = ask(engine, prompt(1))
    engine.close()
    (path,) = (tmp_path / "chats").glob("*.chat")
    assert read_header(path).ids.tolist()[:N_PROMPT] == prompt(1)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    engine = make_engine()
    assert ask(engine, prompt(1)) == (expected, 0)
    assert not path.exists()
    assert ask(engine, prompt(1)) == (expected, N_PROMPT - 1)


def test_another_type_of_pages_does_not_take_them(make_engine: MakeEngine) -> None:
    engine = make_engine()
    ask(engine, prompt(1))
    engine.close()
    assert ask(make_engine(kv_type="q8_0"), prompt(1))[1] == 0
    assert ask(make_engine(), prompt(1))[1] == N_PROMPT - 1
