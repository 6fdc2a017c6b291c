"""What the memory of a running engine is used for, measured. Bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from engine.memory.cgroups import read_text


@dataclass(frozen=True, slots=True)
class ChatMemory:
    """One chat in the cache. n_bytes: of its pages; one that k chats share counts a k-th."""

    n_tokens: int
    n_bytes: int
    is_running: bool


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The first five are apart from each other and make up `rss`, all of the process in memory."""

    weights: int  # mapped, and in this process's memory
    libraries: int  # other mapped files
    kv: int  # keys and values
    workspace: int
    process: int  # everything else of its own
    weights_mapped: int  # size of the model's files
    weights_cached: int | None  # of it, in the page cache; None = the system does not tell
    kv_limit: int  # what keys and values may grow to now
    disk_cache: int  # chats in the store
    chats: tuple[ChatMemory, ...]

    @property
    def anonymous(self) -> int:
        return self.kv + self.workspace + self.process

    @property
    def rss(self) -> int:
        return self.weights + self.libraries + self.anonymous


def mapped_resident_bytes(path: Path, root: Path = Path("/")) -> int:
    """How much of a mapped file is in this process's memory."""
    smaps = read_text(root / "proc/self/smaps")
    # A mapping's first line ends with its path, Rss is one of the lines that follow.
    pattern = rf"^[0-9a-f]+-[0-9a-f]+ .*? {re.escape(str(path))}\n(?:.*\n)*?Rss:\s+(\d+) kB$"
    return sum(int(kib) << 10 for kib in re.findall(pattern, smaps, re.MULTILINE))
