"""The page pool: taking, freeing, and memory that goes back to the system."""

from __future__ import annotations

import mmap
import random
from collections import Counter

import numpy as np
import pytest

from engine.cache.kv_cache import PagePool

SMALL, LARGE = mmap.PAGESIZE, 3 * mmap.PAGESIZE


def test_pages_are_apart_and_aligned_to_the_systems() -> None:
    pool = PagePool((LARGE,), 3 * LARGE + 5000)
    addresses = [pool.address(pool.take(0)) for _ in range(3)]
    assert all(address % mmap.PAGESIZE == 0 for address in addresses)
    assert np.diff(sorted(addresses)).min() >= LARGE
    assert pool.free_bytes == 5000


def test_a_freed_page_reads_as_zeros_and_is_taken_again() -> None:
    pool = PagePool((LARGE,), 2 * LARGE)
    page = pool.take(0)
    pool.view(page)[:10] = bytes([7] * 10)
    pool.free(page)
    assert pool.free_bytes == 2 * LARGE
    assert not any(pool.view(page))
    assert pool.take(0) == page


def test_an_empty_pool_says_so() -> None:
    pool = PagePool((SMALL,), SMALL)
    pool.take(0)
    with pytest.raises(MemoryError, match=f"the KV pages' {SMALL} bytes are in use"):
        pool.take(0)
    assert pool.used_bytes == SMALL


def test_groups_share_one_budget() -> None:
    pool = PagePool((SMALL, LARGE), 6 * SMALL)
    first, second, large = pool.take(0), pool.take(0), pool.take(1)
    assert (pool.used_bytes, pool.free_bytes) == (5 * SMALL, SMALL)
    with pytest.raises(MemoryError):
        pool.take(1)
    pool.free(first)
    pool.free(second)
    assert pool.take(1) != large
    assert pool.free_bytes == 0


def test_every_page_has_memory_of_its_own() -> None:
    """Of any group and in any order; a page's size is its group's."""
    pool = PagePool((SMALL, LARGE, SMALL), 20 * LARGE)
    rng = random.Random(1)
    held: dict[int, int] = {}  # page: what is written all over it
    for mark in range(400):
        group = rng.randrange(3)
        if pool.free_bytes < LARGE or rng.random() < 0.4:
            for page in rng.sample(sorted(held), len(held) // 3):
                assert set(pool.view(page)) == {held.pop(page)}
                pool.free(page)
            continue
        page = pool.take(group)
        assert page not in held
        assert len(pool.view(page)) == pool.size_of(page) == pool.page_bytes[group]
        pool.view(page)[:] = bytes([mark % 255 + 1]) * pool.size_of(page)
        held[page] = mark % 255 + 1
    assert pool.used_bytes == sum(pool.size_of(page) for page in held) > 0
    assert Counter(pool.n_users(page) for page in held) == {1: len(held)}


def test_a_shared_page_is_freed_by_its_last_user() -> None:
    pool = PagePool((SMALL,), 2 * SMALL)
    page = pool.take(0)
    pool.view(page)[:] = bytes([1]) * SMALL
    pool.share(page)
    assert pool.bytes_of([page, -1]) == SMALL // 2
    pool.free(page)
    assert pool.used_bytes == SMALL
    own = pool.copy(page)
    assert bytes(pool.view(own)) == bytes([1]) * SMALL
    pool.free(page)
    pool.free(own)
    assert pool.used_bytes == 0
