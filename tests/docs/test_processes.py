"""What is seen of processes from outside, on processes whose use is known."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import processes
import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def test_cpu_time_grows_by_what_is_used() -> None:
    before = processes._cpu(os.getpid())
    start = time.thread_time()
    while time.thread_time() - start < 0.3:
        pass
    ticks, exact = (b - a for a, b in zip(before, processes._cpu(os.getpid()), strict=True))
    assert 0.25 <= ticks < 2
    assert 0.29 <= exact < 2


def test_the_most_memory_of_a_process() -> None:
    hungry = (
        "import time\nx = bytearray(b'x') * (64 << 20)\ntime.sleep(0.3)\ndel x\ntime.sleep(0.3)"
    )
    most = processes.memory([sys.executable, "-c", hungry], dict(os.environ))
    assert 64 <= most["most_RssAnon"] < 128
    assert most["most_RssFile"] > 0


def test_a_process_that_fails_is_no_measurement() -> None:
    with pytest.raises(SystemExit, match="ended with status 3"):
        processes.memory([sys.executable, "-c", "raise SystemExit(3)"], dict(os.environ))


def test_a_taken_core_is_told_by_ratios() -> None:
    speeds = iter([(100.0, 50.0), (60.0, 40.0)])

    def run(model: object, *sizes: str) -> dict[str, float]:
        prefill, decode = next(speeds)
        return {"prefill_tok_per_s": prefill, "decode_tok_per_s": decode}

    record = processes.disturbed(run, None)
    assert record["prefill_of_free"] == 0.6
    assert record["decode_of_free"] == 0.8
