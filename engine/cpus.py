"""How many CPUs this process may use, by affinity (cpusets included) and cgroup quota, and why.

More threads than that wait on each other at every barrier, which costs far more than it gains. Does
not know how many threads the engine will run, nor which CPUs share a core.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_GROUP = re.compile(r"^(\d+):(.*?):(.*)$", re.MULTILINE)
_MOUNT = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .* - (cgroup2?) \S+ (\S+)$", re.MULTILINE)


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
    quotas = [(_quota(directory), directory) for directory in _cgroup_directories(root)]
    quota, directory = min(quotas, default=(math.inf, root))
    if quota < n:
        # Rounded down: a thread that the quota stops for a while stops the whole team.
        return CpuCount(max(1, int(quota)), f"quota of {quota:g} CPUs in {directory}")
    return CpuCount(n, reason)


def _quota(directory: Path) -> float:
    """CPUs that a group (v2 or v1) grants its processes together; infinite without a limit."""
    names = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    fields = " ".join(_read(directory / name) for name in names).split()
    try:
        quota_us, period_us = map(int, fields)
    except ValueError:  # no such files, or "max"
        return math.inf
    return quota_us / period_us if quota_us > 0 and period_us > 0 else math.inf


def _cgroup_directories(root: Path) -> Iterator[Path]:
    """This process's own groups that may limit CPU time, and all their visible parents."""
    groups = dict(_groups(root))
    for version, mount_root, mount_point in _mounts(root):
        if version not in groups:
            continue
        try:
            below = PurePosixPath(groups[version]).relative_to(mount_root)
        except ValueError:
            below = PurePosixPath()  # a container that sees the host's path but only its own group
        if ".." in below.parts:
            below = PurePosixPath()  # a group outside of this cgroup namespace
        top = root / mount_point.lstrip("/")
        for part in (below, *below.parents):
            yield top / part


def _groups(root: Path) -> Iterator[tuple[int, str]]:
    """(cgroup version, path of the group); lines: '4:cpu,cpuacct:/user' (v1), '0::/user' (v2)."""
    for hierarchy, controllers, path in _GROUP.findall(_read(root / "proc/self/cgroup")):
        if hierarchy == "0":
            yield 2, path
        elif "cpu" in controllers.split(","):
            yield 1, path


def _mounts(root: Path) -> Iterator[tuple[int, str, str]]:
    """(cgroup version, group that is mounted, where) of each mount that may hold CPU limits.

    A line: '32 31 0:29 /group /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu'.
    """
    for group, point, kind, options in _MOUNT.findall(_read(root / "proc/self/mountinfo")):
        if kind == "cgroup2":
            yield 2, _unescape(group), _unescape(point)
        elif "cpu" in options.split(","):
            yield 1, _unescape(group), _unescape(point)


def _unescape(field: str) -> str:
    """Undo the kernel's octal escapes for space, tab, newline and backslash."""
    for char in " \t\n\\":
        field = field.replace(f"\\{ord(char):03o}", char)
    return field


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "surrogateescape")
    except OSError:
        return ""
