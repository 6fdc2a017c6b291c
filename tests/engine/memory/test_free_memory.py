"""Free memory from fake /proc and cgroup trees, and what this process itself uses."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import pytest

from engine.memory.free_memory import free_memory, resident

MIB = 1 << 20
V2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
V1 = "34 31 0:31 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable:    4194304 kB\n")
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_without_groups_the_machines_own(root: Path) -> None:
    assert free_memory(root).n_bytes == 4 << 30
    assert free_memory(root).reason == "available on this machine"


def test_a_limit_counts_what_the_page_cache_would_give_back(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/app\n")
    write(root, "proc/self/mountinfo", V2 + "\n")
    write(root, "sys/fs/cgroup/app/memory.max", f"{2048 * MIB}\n")
    write(root, "sys/fs/cgroup/app/memory.current", f"{1500 * MIB}\n")
    stat = f"anon 5\nfile 7\ninactive_file {300 * MIB}\nactive_file {700 * MIB}\n"
    write(root, "sys/fs/cgroup/app/memory.stat", stat)
    free = free_memory(root)
    assert free.n_bytes == 1548 * MIB
    assert free.reason == f"left of the limit in {root}/sys/fs/cgroup/app"
    write(root, "sys/fs/cgroup/app/memory.max", "max\n")
    assert free_memory(root).n_bytes == 4 << 30


def test_the_tightest_group_counts(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/a/b\n")
    write(root, "proc/self/mountinfo", V1 + "\n")
    for group, limit in (("a", 512), ("a/b", 1024)):
        folder = f"sys/fs/cgroup/memory/{group}"
        write(root, f"{folder}/memory.limit_in_bytes", f"{limit * MIB}\n")
        write(root, f"{folder}/memory.usage_in_bytes", f"{100 * MIB}\n")
        stat = f"inactive_file 1\nactive_file 1\ntotal_inactive_file {MIB}\ntotal_active_file 0\n"
        write(root, f"{folder}/memory.stat", stat)
    assert free_memory(root).n_bytes == 413 * MIB


def test_a_group_over_its_limit_leaves_nothing(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "proc/self/mountinfo", V2 + "\n")
    write(root, "sys/fs/cgroup/memory.max", "5\n")
    write(root, "sys/fs/cgroup/memory.current", "9\n")
    assert free_memory(root).n_bytes == 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
def test_this_processs_own() -> None:
    used = resident()
    assert 0 < used.anonymous < used.total
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    assert used.total <= peak * 1.01
    block = mmap.mmap(-1, 64 * MIB)
    for page in range(0, len(block), mmap.PAGESIZE):
        block[page] = 1
    assert resident().anonymous - used.anonymous == pytest.approx(64 * MIB, rel=0.05)
    block.close()
