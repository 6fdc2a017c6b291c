"""Items of an op: every one is taken once, in order by a thread alone, whoever is slow."""

from __future__ import annotations

import numpy as np
import pytest

from engine.kernels.atomics import fetch_add, pause
from engine.kernels.op import BATCH, OP, fields, kernel, take_from_shares
from engine.kernels.simd import read_i64, write_i64
from engine.kernels.team import Team
from tests.native_call import call

_LATE = 50_000  # looks at nothing, by which a slow thread is behind


@kernel
def take_all(op, batch, thread, n_threads):
    """n_out items, n_in at a time. For each, i64: x: how often it was taken, y: by which thread,
    out: as which of all, which z counts. Thread n_used is slow.
    """
    o = fields(op)
    while True:
        if thread == o.n_used:
            for _ in range(_LATE):
                pause()
        first = take_from_shares(op, o.n_in, o.n_out, thread, n_threads)
        if first >= o.n_out:
            break
        for item in range(first, min(first + o.n_in, o.n_out)):
            fetch_add(o.x + 8 * item, 1)
            write_i64(o.y + 8 * item, thread)
        write_i64(o.out + 8 * first, read_i64(o.z))
        fetch_add(o.z, 1)


class Items:
    """An op over n_items, n at a time, and what becomes of it."""

    def __init__(self, n_items: int, n: int, n_threads: int, slow: int = -1) -> None:
        self.times, self.who, self.when = (np.zeros(n_items, np.int64) for _ in range(3))
        self._clock, self._taken = np.zeros(1, np.int64), np.zeros(n_threads, np.int64)
        self.op = np.zeros(1, OP)
        self.op["kernel"], self.op["meet"] = take_all.address, 1
        self.op["n_out"], self.op["n_in"], self.op["n_used"] = n_items, n, slow
        self.op["x"], self.op["y"] = self.times.ctypes.data, self.who.ctypes.data
        self.op["z"], self.op["out"] = self._clock.ctypes.data, self.when.ctypes.data
        self.op["taken"] = self._taken.ctypes.data

    def run(self) -> None:
        """By a team of as many threads as have shares."""
        self.times[:], self._clock[:] = 0, 0
        batch, team = np.zeros(1, BATCH), Team(len(self._taken))
        try:
            team.run(self.op.ctypes.data, 1, batch.ctypes.data)
        finally:
            team.close()


@pytest.mark.parametrize("n_items, n", [(1, 16), (16, 16), (200, 16), (4096, 64), (5, 1), (37, 1)])
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_every_item_is_taken_once_in_every_run(n_items: int, n: int, n_threads: int) -> None:
    items = Items(n_items, n, n_threads)
    for _ in range(2):
        items.run()
        assert (items.times == 1).all()


def test_a_thread_alone_takes_them_in_order() -> None:
    items = Items(200, 16, 1)
    items.run()
    assert (items.when[::16] == range(13)).all()


def test_the_share_of_a_slow_thread_is_taken_by_the_others() -> None:
    items = Items(6400, 16, 2, slow=1)
    items.run()
    assert (items.who[3200:] == 0).any()


def test_a_thread_begins_with_its_own_share() -> None:
    """Called one after the other: the first takes all, the second finds nothing."""
    items, batch = Items(64, 16, 2), np.zeros(1, BATCH)
    call(take_all, items.op, batch, 1, 2)
    call(take_all, items.op, batch, 0, 2)
    assert (items.who == 1).all()
    assert list(items.when[::16]) == [2, 3, 0, 1]
