"""How many CPUs this process may use, by affinity (cpusets included) and cgroup quota, and why.

More threads than that wait on each other at every barrier, which costs far more than it gains. Does
not know how many threads the engine will run, nor which CPUs share a core.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from engine.memory.cgroups import cgroup_directories, read_text


@dataclass(frozen=True, slots=True)
class CpuCount:
    """`n` CPUs, at least 1; `reason` is for the log."""

    n: int
    reason: str


def count_cpus(root: Path = Path("/"), n_affinity: int | None = None) -> CpuCount:
    """CPUs this process may use: its affinity, or the cgroup quota rounded down if that is less.

    root: where to look for /proc and the cgroups. n_affinity: CPUs in the affinity mask.
    """
    if n_affinity is not None:
        n, reason = n_affinity, "CPU affinity"
    elif hasattr(os, "sched_getaffinity"):
        n, reason = len(os.sched_getaffinity(0)), "CPU affinity"
    else:
        n, reason = os.cpu_count() or 1, "CPUs of the machine"
    quotas = [(_quota(directory), directory) for directory in cgroup_directories(root, "cpu")]
    quota, directory = min(quotas, default=(math.inf, root))
    if quota < n:
        # Rounded down: a thread that the quota stops for a while stops the whole team.
        return CpuCount(max(1, int(quota)), f"quota of {quota:g} CPUs in {directory}")
    return CpuCount(n, reason)


def _quota(directory: Path) -> float:
    """CPUs that a group (v2 or v1) grants its processes together; infinite without a limit."""
    names = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    fields = " ".join(read_text(directory / name) for name in names).split()
    try:
        quota_us, period_us = map(int, fields)
    except ValueError:  # no such files, or "max"
        return math.inf
    return quota_us / period_us if quota_us > 0 and period_us > 0 else math.inf
