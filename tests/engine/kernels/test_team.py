"""The thread team: every op is run by every thread, whether the workers spin or sleep."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from engine.kernels.activation import q8_row_bytes, quantise_rows
from engine.kernels.op import BATCH, FEW, OP, fields, kernel
from engine.kernels.simd import read_i64, write_i64
from engine.kernels.team import Team


def plan_of(n_ops: int, x: np.ndarray, q8: np.ndarray) -> np.ndarray:
    """Ops that each quantise all rows of x: their work is shared by the threads."""
    ops = np.zeros(n_ops, OP)
    ops["kernel"] = quantise_rows.address
    ops["meet"] = 1
    ops["n_in"] = x.shape[1]
    ops["x"] = x.ctypes.data
    ops["q8"] = q8.ctypes.data
    return ops


@pytest.mark.parametrize("n_threads", [1, 2, 3, pytest.param(70, marks=pytest.mark.slow)])
def test_runs_are_complete_after_a_rest_and_without_one(n_threads: int) -> None:
    n_rows = FEW + 61
    x = np.tile(np.linspace(-1, 1, 64, dtype=np.float32), (n_rows, 1))
    q8 = np.zeros((n_rows, q8_row_bytes(64)), np.uint8)
    ops = plan_of(3, x, q8)
    batch = np.zeros(1, BATCH)
    batch["n_rows"] = n_rows
    batch["planes"] = 1
    team = Team(n_threads)
    try:
        for rest_s in (0.0, 0.0, 0.3, 0.0):  # 0.3 s: the workers have gone to sleep
            time.sleep(rest_s)
            q8[:] = 0
            team.run(ops.ctypes.data, len(ops), batch.ctypes.data)
            assert batch["op_done"][0] == len(ops)
            assert (q8[:, :64].view(np.int8) == np.rint(x * 127)).mean() > 0.9
            assert q8[:, 0].all()
    finally:
        team.close()


@kernel
def count_calls(op, batch, thread, n_threads):
    """x: int64 for each thread, how often it ran the op; y: for each, with how many it did last."""
    write_i64(fields(op).x + 8 * thread, read_i64(fields(op).x + 8 * thread) + 1)
    write_i64(fields(op).y + 8 * thread, n_threads)


def test_those_that_are_asked_for_run_each_op_once_and_the_others_none() -> None:
    calls, told = np.zeros(4, np.int64), np.zeros(4, np.int64)
    ops = np.zeros(3, OP)
    ops["kernel"], ops["meet"] = count_calls.address, 1
    ops["x"], ops["y"] = calls.ctypes.data, told.ctypes.data
    batch = np.zeros(1, BATCH)
    team = Team(4)
    try:
        for n in (2, 4, 1, 3, 4, 2, 1, 4):
            time.sleep(0.05)  # those that had no part in the last one have gone to sleep
            for _ in range(3):
                calls[:] = told[:] = 0
                team.run(ops.ctypes.data, len(ops), batch.ctypes.data, n)
                assert calls.tolist() == [3] * n + [0] * (4 - n)
                assert told.tolist() == [n] * n + [0] * (4 - n)
        calls[:] = 0
        team.run(ops.ctypes.data, len(ops), batch.ctypes.data)
        assert calls.tolist() == [3] * 4
    finally:
        team.close()


@pytest.mark.parametrize("n_next", [1, 2, 4])
def test_a_cancelled_run_may_be_followed_at_once_by_one_of_fewer_threads(n_next: int) -> None:
    """A worker that is late to read how the first one ended must not go on with it."""
    x, q8 = np.ones((64, 64), np.float32), np.zeros((64, q8_row_bytes(64)), np.uint8)
    ops = plan_of(40, x, q8)
    batch = np.zeros(1, BATCH)
    batch["n_rows"], batch["planes"] = 64, 1
    team = Team(6)  # more than cores: some are late

    def alternate() -> None:
        for _ in range(1000):
            batch["cancel"] = 1
            team.run(ops.ctypes.data, len(ops), batch.ctypes.data)
            batch["cancel"] = 0
            team.run(ops.ctypes.data, len(ops), batch.ctypes.data, n_next)

    runner = threading.Thread(target=alternate, daemon=True)  # a hang must not hang the tests
    runner.start()
    runner.join(60)
    assert not runner.is_alive()
    assert batch["op_done"][0] == len(ops)
    team.close()
