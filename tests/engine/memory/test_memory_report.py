"""What the engine says of its memory, in all its states, beside what the system says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine import Engine, EngineConfig, MemoryReport
from tests.model_files import SMOLLM2, needs
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_requests import Listener, always, run

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc")


def _mapped(address: int) -> int:
    """Bytes in memory of the mapping at an address; by neighbours, the system may make one of two
    mappings.
    """
    smaps = Path("/proc/self/smaps").read_text()
    for first, last, rest in re.findall(
        r"^([0-9a-f]+)-([0-9a-f]+) .*\n((?:[A-Z]\w*:.*\n)+)", smaps, re.MULTILINE
    ):
        if int(first, 16) <= address < int(last, 16):
            found = re.search(r"Rss:\s+(\d+) kB", rest)
            assert found
            return int(found[1]) << 10
    raise AssertionError("no such mapping")


def _check(engine: Engine) -> MemoryReport:
    report = engine.memory()
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    assert report.rss == pytest.approx(int(found[1]) << 10, rel=0.05)
    assert min(report.weights, report.libraries, report.process) > 0
    slack = max(report.rss // 20, 1 << 20)
    assert _mapped(engine._pool.memory.address) >= report.kv - slack
    assert report.kv <= engine._pool.used_bytes
    return report


@pytest.mark.parametrize(
    "model",
    ["tiny", pytest.param("real", marks=[pytest.mark.model, pytest.mark.slow, needs(SMOLLM2)])],
)
def test_it_adds_up_in_every_state(model: str, tmp_path: Path) -> None:
    path = SMOLLM2 if model == "real" else write_tiny_gguf(tmp_path / "tiny.gguf", n_ctx=1024)
    config = EngineConfig(path, n_ctx=1024, disk_folder=tmp_path / "chats", max_running=2)
    with Engine(config) as engine:
        idle = _check(engine)
        assert idle.kv == 0
        assert not idle.chats

        prompt = [(i * 37 + 11) % (engine.model.n_vocab - 300) + 270 for i in range(900)]
        token = prompt[0]
        run(engine, prompt, always(token, max_tokens=2, ignore_eos=True))
        held = _check(engine)
        page_bytes = sum(engine._pool.page_bytes)
        assert held.workspace > 0
        assert held.kv == pytest.approx(15 * page_bytes, rel=0.1)
        assert sum(chat.n_bytes for chat in held.chats) == 15 * page_bytes

        reply = Listener()
        running = engine.submit(prompt[:300], always(token, ignore_eos=True), reply)
        assert reply.started.wait(30)
        during = _check(engine)
        assert sorted(chat.is_running for chat in during.chats) == [False, True]
        running.cancel()
        reply.last()

        engine._worker.call(lambda: engine._cache.evict(1 << 40, at_once=True)).result()
        assert _check(engine).kv == 0
