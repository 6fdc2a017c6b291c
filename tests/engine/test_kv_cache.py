"""The page pool: taking, freeing, and memory that goes back to the system."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from engine.kv_cache import PagePool


def test_pages_are_apart_and_aligned_to_the_systems() -> None:
    pool = PagePool(3, 5000)
    addresses = [pool.address(pool.take()) for _ in range(3)]
    assert all(address % mmap.PAGESIZE == 0 for address in addresses)
    assert np.diff(sorted(addresses)).min() >= 5000


def test_a_freed_page_reads_as_zeros_and_is_taken_again() -> None:
    pool = PagePool(2, 1 << 16)
    page = pool.take()
    offset = page * pool.page_bytes
    pool._memory.bytes[offset : offset + 10] = 7
    pool.free(page)
    assert pool.n_free == 2
    assert not pool._memory.bytes[offset : offset + 10].any()
    assert pool.take() == page


def test_an_empty_pool_says_so() -> None:
    pool = PagePool(1, 4096)
    pool.take()
    with pytest.raises(MemoryError, match="all 1 KV pages"):
        pool.take()
    assert pool.n_bytes == pool.page_bytes


def test_a_view_is_the_pages_memory_to_the_last_page() -> None:
    pool = PagePool(3, 5000)
    for page in (0, 1, 2):
        pool.view(page)[:] = bytes([page]) * pool.page_bytes
    assert [set(pool.view(page)) for page in (0, 1, 2)] == [{0}, {1}, {2}]
