"""Pressure stall information: which files are asked, with what, and what happens without them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from engine.memory.stalls import Stalls


def machine(root: Path) -> None:
    """A container's view: the machine's file, and one of its own group (version 2)."""
    (root / "proc/pressure").mkdir(parents=True)
    (root / "proc/pressure/memory").write_text("")
    (root / "proc/self").mkdir()
    (root / "proc/self/cgroup").write_text("0::/box\n")
    (root / "proc/self/mountinfo").write_text("1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (root / "sys/fs/cgroup/box").mkdir(parents=True)
    (root / "sys/fs/cgroup/box/memory.pressure").write_text("")


def test_a_trigger_is_set_for_the_machine_and_each_group(tmp_path: Path) -> None:
    machine(tmp_path)
    stalls = Stalls(tmp_path)
    for name in ("proc/pressure/memory", "sys/fs/cgroup/box/memory.pressure"):
        kind, stall_us, window_us = (tmp_path / name).read_text().rstrip("\0").split()
        assert kind == "some"
        assert 0 < int(stall_us) < int(window_us)
        assert int(window_us) % 2_000_000 == 0  # what the kernel lets everyone ask for
    stalls.close()


def test_without_such_files_it_only_waits(tmp_path: Path) -> None:
    stalls = Stalls(tmp_path / "none")
    start = time.monotonic()
    assert not stalls.wait(0.05)
    assert time.monotonic() - start >= 0.04
    stalls.close()


def test_an_end_wakes_it(tmp_path: Path) -> None:
    stalls = Stalls(tmp_path)
    threading.Timer(0.05, stalls.end).start()
    start = time.monotonic()
    assert not stalls.wait(30)
    assert not stalls.wait(30)
    assert time.monotonic() - start < 10
    stalls.close()


@pytest.mark.skipif(not Path("/proc/pressure/memory").exists(), reason="no pressure information")
def test_the_kernel_takes_it() -> None:
    try:
        open("/proc/pressure/memory", "r+").close()
    except OSError:
        pytest.skip("not for us")
    stalls = Stalls()
    assert stalls._triggers
    stalls.wait(0.01)
    stalls.close()
    stalls = Stalls()  # a trigger that was closed is gone
    stalls.close()
