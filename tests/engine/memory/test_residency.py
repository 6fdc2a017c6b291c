"""What is in memory, by the system's word, and what happens when it refuses to lock."""

from __future__ import annotations

import mmap
import resource
import sys
from collections.abc import Iterator

import pytest

from engine import ConfigError
from engine.memory.residency import lock, resident_bytes
from engine.model.plan import Memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux's calls")


def test_only_what_was_written_to_is_there() -> None:
    memory = Memory(16 << 20)
    assert resident_bytes(memory.address, memory.n_bytes) == 0
    memory.bytes[: 3 * mmap.PAGESIZE] = 1
    found = resident_bytes(memory.address, memory.n_bytes)
    assert found is not None
    assert 3 * mmap.PAGESIZE <= found <= 2 << 20  # a huge page, at most
    memory.give_back(0, memory.n_bytes)
    assert resident_bytes(memory.address, memory.n_bytes) == 0


def test_what_is_no_mapping_is_not_told() -> None:
    assert resident_bytes(0, mmap.PAGESIZE) is None
    assert resident_bytes(0, 0) == 0


@pytest.fixture
def _no_locking() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_MEMLOCK, limits)


def test_locking_brings_it_in() -> None:
    memory = Memory(1 << 20)
    lock(memory.address, 4 * mmap.PAGESIZE)
    assert (resident_bytes(memory.address, memory.n_bytes) or 0) >= 4 * mmap.PAGESIZE


@pytest.mark.usefixtures("_no_locking")
def test_a_refused_lock_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"refuses to lock 0 MiB \(.*\); raise the limit"):
        lock(0, mmap.PAGESIZE)  # root may lock everything, but not this
