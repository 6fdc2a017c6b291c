"""The watch over free memory: when it tells, and what it asks for."""

from __future__ import annotations

import select
import socket
import threading
import time
from pathlib import Path

import pytest

from engine import Engine, EngineConfig, Failed, OutOfMemory
from engine.memory.free_memory import FreeMemory
from engine.memory.pressure import Level, Watch
from engine.memory.stalls import Stalls
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_requests import PROMPT, A, Listener, always, run

MIB = 1 << 20


class Machine:
    """Has as much memory as a test says."""

    def __init__(self, free: int) -> None:
        self.free = free * MIB
        self.told: list[tuple[Level, int]] = []

    def look(self) -> FreeMemory:
        return FreeMemory(self.free, "free")

    def hear(self, level: Level, n_bytes: int) -> None:
        self.told.append((level, n_bytes // MIB))


def test_it_asks_for_what_is_missing_until_there_is_enough() -> None:
    machine = Machine(2000)
    watch = Watch(machine.look, 700 * MIB, machine.hear, every_s=1000)
    try:
        for free in (1000, 763, 800, 827, 830, 50, 900, 900):
            machine.free = free * MIB
            watch.look()
    finally:
        watch.close()
    assert machine.told == [
        (Level.LOW, 65),
        (Level.LOW, 28),
        (Level.LOW, 1),
        (Level.ENOUGH, 0),
        (Level.CRITICAL, 778),
        (Level.ENOUGH, 0),
    ]


def test_weights_that_never_fitted_are_not_defended() -> None:
    machine = Machine(500)
    watch = Watch(machine.look, 700 * MIB, machine.hear, every_s=1000)
    watch.look()
    watch.close()
    assert machine.told == []


def test_it_looks_by_itself() -> None:
    machine = Machine(2000)
    watch = Watch(machine.look, 700 * MIB, machine.hear, every_s=0.01)
    machine.free = 0
    limit = time.monotonic() + 5
    while not machine.told:
        assert time.monotonic() < limit
        time.sleep(0.01)
    watch.close()
    assert machine.told[0][0] is Level.CRITICAL


def test_it_looks_at_once_when_somebody_waits_for_memory(tmp_path: Path) -> None:
    """With a socket in place of the kernel's file: urgent data is the same event."""
    machine = Machine(2000)
    heard = threading.Event()

    def hear(level: Level, n_bytes: int) -> None:
        machine.hear(level, n_bytes)
        heard.set()

    server = socket.create_server(("127.0.0.1", 0))
    kernel = socket.create_connection(server.getsockname())
    file, _ = server.accept()
    stalls = Stalls(tmp_path)
    stalls._poll.register(file, select.POLLPRI)
    watch = Watch(machine.look, 700 * MIB, hear, every_s=1000, stalls=stalls)
    machine.free = 800 * MIB  # enough, if nobody waited
    kernel.send(b"!", socket.MSG_OOB)
    assert heard.wait(5)
    file.recv(1, socket.MSG_OOB)
    watch.close()
    assert machine.told[0] == (Level.LOW, 28)
    for one in (server, kernel, file):
        one.close()


def test_while_memory_is_short_it_looks_often() -> None:
    machine = Machine(2000)
    watch = Watch(machine.look, 700 * MIB, machine.hear, every_s=1000)
    machine.free = 500 * MIB
    watch.look()
    watch._stalls.end()  # it sleeps for long: wake it
    limit = time.monotonic() + 5
    while len(machine.told) < 3:
        assert time.monotonic() < limit
        time.sleep(0.01)
    watch.close()


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


def test_idle_chats_leave_first_and_requests_are_refused_last(model_path: Path) -> None:
    config = EngineConfig(
        model_path, disk_bytes=0, n_ctx=256, cache_bytes=1 << 20, prefill_chunk=64
    )
    with Engine(config) as engine:
        for i in range(4):
            run(engine, [A, *PROMPT * 3, i, *PROMPT * 2], always(A, max_tokens=1))
        before = engine.memory().kv
        engine._worker.relieve(Level.LOW, 1)
        _until(engine, lambda: engine.memory().kv < before)
        assert run(engine, PROMPT, always(A, max_tokens=3))[0] == "aaa"

        running = Listener()
        engine.submit(PROMPT, always(A), running)
        assert running.started.wait(5)
        engine._worker.relieve(Level.CRITICAL, 1 << 40)
        with pytest.raises(OutOfMemory, match="too little memory"):
            engine.submit(PROMPT, always(A), Listener())
        last = running.last()
        assert isinstance(last, Failed)
        assert isinstance(last.error, OutOfMemory)

        engine._worker.relieve(Level.ENOUGH, 0)
        assert run(engine, PROMPT, always(A, max_tokens=200))[1].n_decoded == 200


def test_where_memory_is_low_chats_go_to_the_disk_and_not_away(
    model_path: Path, tmp_path: Path
) -> None:
    prompt = [A, *PROMPT * 12]
    config = EngineConfig(model_path, n_ctx=256, disk_folder=tmp_path)
    with Engine(config) as engine:
        run(engine, prompt, always(A, max_tokens=1))

        def is_gone() -> bool:
            engine._worker.relieve(Level.LOW, 1 << 40)
            return engine.memory().kv == 0

        _until(engine, is_gone)
        assert engine.memory().disk_cache > 0
        engine._worker.relieve(Level.ENOUGH, 0)
        assert run(engine, prompt, always(A, max_tokens=1))[1].n_cached == len(prompt) - 1


def _until(engine: Engine, holds: object) -> None:
    limit = time.monotonic() + 5
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < limit
        time.sleep(0.01)
