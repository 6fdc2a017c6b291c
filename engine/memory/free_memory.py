"""How much memory this process could still use, by the machine and by its control groups, and how
much it uses. Bytes. What is in the page cache counts as free: the system gives it up when asked.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from engine.memory.cgroups import cgroup_directories, read_text

_ROOT = Path("/")
_NO_LIMIT = 1 << 62  # v1 tells a limit where there is none: what 63 bits hold, in whole pages


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """`reason` is for the log."""

    n_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Resident:
    """What of this process is in memory now: its own, and of mapped files."""

    anonymous: int
    file: int

    @property
    def total(self) -> int:
        return self.anonymous + self.file


def free_memory(root: Path = _ROOT) -> FreeMemory:
    """root: where to look for /proc and the cgroups."""
    found = [(_machine(root), "available on this machine")]
    for directory in cgroup_directories(root, "memory"):
        found.append((_group(directory), f"left of the limit in {directory}"))
    n_bytes, reason = min(found)
    return FreeMemory(max(int(min(n_bytes, _NO_LIMIT)), 0), reason)


def resident(root: Path = _ROOT) -> Resident:
    """Zeros where the system does not tell."""
    status = read_text(root / "proc/self/status")
    fields = dict(re.findall(r"^(Rss\w+):\s+(\d+) kB$", status, re.MULTILINE))
    anonymous, file, shared = (
        int(fields.get(f"Rss{k}", 0)) << 10 for k in ("Anon", "File", "Shmem")
    )
    return Resident(anonymous + shared, file)


def _machine(root: Path) -> float:
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", read_text(root / "proc/meminfo"), re.MULTILINE)
    if found:
        return int(found[1]) << 10
    try:  # not Linux: half of what there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
    except (AttributeError, OSError, ValueError):
        return math.inf


def _group(directory: Path) -> float:
    """What a group (v2 or v1) leaves; infinite without a limit."""
    limit = _number(directory, "memory.max", "memory.limit_in_bytes")
    if limit is None or limit >= _NO_LIMIT:
        return math.inf
    used = _number(directory, "memory.current", "memory.usage_in_bytes")
    if used is None:
        return math.inf
    stat = dict(
        re.findall(r"^(?:total_)?(\w+) (\d+)$", read_text(directory / "memory.stat"), re.MULTILINE)
    )  # v1 tells its own and then, with total_, its children's too: the later ones win
    return limit - used + int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))


def _number(directory: Path, *names: str) -> int | None:
    text = next(filter(None, (read_text(directory / name) for name in names)), "")
    return int(text) if text.strip().isdigit() else None
