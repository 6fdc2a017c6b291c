"""How many CPUs this process may use, by affinity (cpusets included) and cgroup quota, and why; and
how many cores these are, as two CPUs may be one core's two threads.

More threads than CPUs wait on each other at every barrier, which costs far more than it gains. Does
not know how many threads the engine will run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from engine.memory.cgroups import cgroup_directories, read_text


@dataclass(frozen=True, slots=True)
class CpuCount:
    """`n` CPUs, at least 1, of `n_cores` cores; `reason` is for the log."""

    n: int
    reason: str
    n_cores: int


def count_cpus(root: Path = Path("/"), affinity: Collection[int] | None = None) -> CpuCount:
    """CPUs this process may use: its affinity, or the cgroup quota rounded down if that is less.

    root: where to look for /proc, /sys and the cgroups. affinity: the CPUs in the affinity mask.
    """
    if affinity is not None:
        cpus, reason = affinity, "CPU affinity"
    elif hasattr(os, "sched_getaffinity"):
        cpus, reason = os.sched_getaffinity(0), "CPU affinity"
    else:
        cpus, reason = range(os.cpu_count() or 1), "CPUs of the machine"
    n, n_cores = len(cpus), len({_core(root, cpu) for cpu in cpus})
    quotas = [(_quota(directory), directory) for directory in cgroup_directories(root, "cpu")]
    quota, directory = min(quotas, default=(math.inf, root))
    if quota < n:
        # Rounded down: a thread that the quota stops for a while stops the whole team.
        n, reason = max(1, int(quota)), f"quota of {quota:g} CPUs in {directory}"
    return CpuCount(n, reason, min(n, n_cores))


def _core(root: Path, cpu: int) -> str:
    """The core that a CPU is a thread of: one of its own where the system does not tell."""
    names = ("core_cpus_list", "thread_siblings_list")  # the older kernels' name last
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    return next(filter(None, (read_text(topology / name).strip() for name in names)), str(cpu))


def _quota(directory: Path) -> float:
    """CPUs that a group (v2 or v1) grants its processes together; infinite without a limit."""
    names = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    fields = " ".join(read_text(directory / name) for name in names).split()
    try:
        quota_us, period_us = map(int, fields)
    except ValueError:  # no such files, or "max"
        return math.inf
    return quota_us / period_us if quota_us > 0 and period_us > 0 else math.inf
