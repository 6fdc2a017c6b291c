"""Other replies go on while a chat is stored and restored, however slow the disk is."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import Engine, EngineConfig, Event, Finished, SamplingParams, Token
from engine.cache import chat_file, chat_loader, resident_chats
from engine.cache.storing import Storing
from engine.requests import runner
from tests.tiny_gguf import FIRST_BYTE, write_tiny_gguf

N_CTX = 2048
PAGE_S = 0.03  # that the disk takes for a page
TOKEN_S = 0.005  # that a reply's token takes at least
LONG = [FIRST_BYTE + 32 + i * i % 90 for i in range(1500)]  # 24 pages: 0.7 s of disk
OTHER = [FIRST_BYTE + 40 + i * i % 80 for i in range(1400)]  # 22 pages; both do not fit


class Reply:
    """When each token came."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.last: Finished | None = None
        self.started, self.ended = threading.Event(), threading.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Token):
            self.times_s.append(time.perf_counter())
            time.sleep(TOKEN_S)
            self.started.set()
        else:
            assert isinstance(event, Finished)
            self.last = event
            self.ended.set()

    def longest_gap_s(self, start_s: float, end_s: float) -> float:
        times = [start_s, *(t for t in self.times_s if start_s < t < end_s), end_s]
        return max(b - a for a, b in itertools.pairwise(times))


def ask(engine: Engine, ids: list[int], n: int) -> Reply:
    reply = Reply()
    engine.submit(ids, SamplingParams(temperature=0, max_tokens=n, ignore_eos=True), reply)
    return reply


def slow(work: Callable[..., None]) -> Callable[..., None]:
    def slow_work(file: object, memory: memoryview) -> None:
        if len(memory) > 5000:  # a page
            time.sleep(PAGE_S)
        work(file, memory)

    return slow_work


def test_a_reply_goes_on_while_other_chats_leave_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", n_ctx=N_CTX)
    config = EngineConfig(
        path, n_ctx=N_CTX, max_running=2, disk_folder=tmp_path / "chats", prefill_chunk=64
    )
    with Engine(config) as engine:
        page_bytes = sum(engine._pool.page_bytes)
        least = resident_chats.least_bytes(engine._model, N_CTX)  # 41 pages
    config = dataclasses.replace(config, cache_bytes=least)
    monkeypatch.setattr(chat_loader, "_STEP_BYTES", 2 * page_bytes)
    monkeypatch.setattr(runner, "_LOAD_S", 2 * PAGE_S)
    monkeypatch.setattr(chat_file, "_write", slow(chat_file._write))
    monkeypatch.setattr(chat_file, "_fill", slow(chat_file._fill))
    with Engine(config) as engine:
        first = ask(engine, LONG, 1)
        assert first.ended.wait(20)
        reply = ask(engine, LONG[500:520], 1000)
        assert reply.started.wait(5)

        start_s = time.perf_counter()
        other = ask(engine, OTHER, 1)  # LONG has to leave
        assert other.ended.wait(20)
        end_s = time.perf_counter()
        assert end_s - start_s > 22 * PAGE_S
        assert list((tmp_path / "chats").glob("*.chat"))
        assert reply.longest_gap_s(start_s, end_s) < 10 * PAGE_S

        start_s = time.perf_counter()
        again = ask(engine, [*LONG, *LONG[:5]], 1)  # and comes back, while OTHER is stored
        assert again.ended.wait(20)
        end_s = time.perf_counter()
        assert again.last
        assert again.last.n_cached == len(LONG)
        assert end_s - start_s > 22 * PAGE_S
        assert reply.longest_gap_s(start_s, end_s) < 10 * PAGE_S
        assert not reply.ended.is_set(), "the reply was over before"


def test_what_was_given_up_is_told_so() -> None:
    seen: list[bool] = []
    go_on = threading.Event()

    def write(is_wanted: Callable[[], bool]) -> None:
        seen.append(is_wanted())
        go_on.wait(5)
        seen.append(is_wanted())

    storing = Storing(write)
    assert not storing.wait(0.01)
    assert not storing.done
    storing.cancel()
    go_on.set()
    assert storing.wait(5)
    assert storing.done
    assert seen == [True, False]
