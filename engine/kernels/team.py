"""The thread team: runs a plan on n threads that meet at a spin barrier, and sleeps when there is
nothing to do.

Thread 0 is the engine thread itself. The others spin for a moment after each run, since the next
token follows soon, then sleep in a Python lock. A spinning thread gives way to the scheduler after
a short while: on two cores the HTTP thread needs air, and a thread that lost its core must not hold
the other for a whole time slice.
"""

from __future__ import annotations

import threading

import numpy as np

from engine.jit import entry, inline
from engine.kernels.atomics import (
    call_address,
    exchange,
    fetch_add,
    give_way,
    pause,
    read_shared,
    write_shared,
)
from engine.kernels.op import BATCH, OP
from engine.kernels.simd import read_i32, read_i64, write_i64

# The team's shared memory: int64 values, those that threads fight for on cache lines of their own.
_ARRIVED, _GENERATION, _JOB, _STOPPED = 0, 64, 128, 192
_PLAN, _N_OPS, _BATCH = 256, 264, 272  # the job: written before _JOB is raised
_ASLEEP = 320  # + 64 * worker
_LINE = 64

_SPINS = 1000  # looks at a flag before giving way
_IDLE_YIELDS = 3000  # times a worker gives way before it sleeps: about a millisecond

_OP_BYTES = OP.itemsize
_MEET = OP.fields["meet"][1]
_NEXT = OP.fields["next"][1]
_CANCEL = BATCH.fields["cancel"][1]
_OP_DONE = BATCH.fields["op_done"][1]


@inline
def _meet(team, batch, op_index, n_threads):
    """Wait until all threads are here.

    Returns whether the run goes on: the last to come looks at the cancel flag.
    """
    if n_threads == 1:  # a worker may be late to read how the run before, a cancelled one, ended
        write_shared(batch + _OP_DONE, op_index + 1)
        return read_shared(batch + _CANCEL) == 0
    generation = read_shared(team + _GENERATION)
    if fetch_add(team + _ARRIVED, 1) == n_threads - 1:
        write_shared(team + _ARRIVED, 0)
        write_shared(team + _STOPPED, read_shared(batch + _CANCEL))
        write_shared(batch + _OP_DONE, op_index + 1)
        write_shared(team + _GENERATION, generation + 1)
    else:
        spins = 0
        while read_shared(team + _GENERATION) == generation:
            spins += 1
            if spins < _SPINS:
                pause()
            else:
                give_way()
    return read_shared(team + _STOPPED) == 0


@inline
def _run(team, plan, n_ops, batch, thread, n_threads):
    for i in range(n_ops):
        op = plan + i * _OP_BYTES
        call_address(read_i64(op), (op, batch, thread, n_threads))
        if read_i32(op + _MEET) != 0 and not _meet(team, batch, i, n_threads):
            break


@entry("void(int64, int64, int64)")
def _reset(plan, n_ops, batch):
    """Make a plan ready to run: nobody has taken an item of any op."""
    for i in range(n_ops):
        write_i64(plan + i * _OP_BYTES + _NEXT, 0)
    write_shared(batch + _OP_DONE, 0)


@entry("void(int64, int64, int64, int64)")
def _publish(team, plan, n_ops, batch):
    """Hand out a job to all workers that do not sleep."""
    write_i64(team + _PLAN, plan)
    write_i64(team + _N_OPS, n_ops)
    write_i64(team + _BATCH, batch)
    fetch_add(team + _JOB, 1)


@entry("int64(int64, int64)")
def _claim_sleeper(team, worker):
    """1 if the worker sleeps and the caller is to wake it: nobody else is told so."""
    return exchange(team + _ASLEEP + _LINE * worker, 0)


@entry("void(int64, int64, int64, int64, int64)")
def _lead(team, plan, n_ops, batch, n_threads):
    """Run a published job as thread 0."""
    _run(team, plan, n_ops, batch, 0, n_threads)


@entry("int64(int64, int64, int64, int64)")
def _follow(team, worker, n_threads, seen):
    """Run jobs after number `seen` as a worker, until none comes for a while. Returns the last
    job's number.

    On return the worker must sleep until it is woken: its flag says so, or it has been seen and the
    wake is on its way.
    """
    idle = 0
    while True:
        job = read_shared(team + _JOB)
        if job != seen:
            n_ops = read_i64(team + _N_OPS)
            if n_ops < 0:
                return -1
            _run(team, read_i64(team + _PLAN), n_ops, read_i64(team + _BATCH), worker, n_threads)
            seen, idle = job, 0
            continue
        idle += 1
        if idle < _SPINS:
            pause()
        elif idle < _SPINS + _IDLE_YIELDS:
            give_way()
        else:
            flag = team + _ASLEEP + _LINE * worker
            exchange(flag, 1)
            if read_shared(team + _JOB) == seen or exchange(flag, 0) == 0:
                return seen
            idle = 0


class Team:
    """n_threads threads for `run`; the caller's is one of them."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._memory = np.zeros(_ASLEEP // 8 + 8 * (n_threads + 1), np.int64)
        # int64 values are atomic only when aligned, and fast only on a cache line of their own.
        self._address = (self._memory.ctypes.data + _LINE - 1) // _LINE * _LINE
        self._wake = [threading.Lock() for _ in range(n_threads)]
        for lock in self._wake:
            lock.acquire()
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"rushlight-{i}", daemon=True)
            for i in range(1, n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, plan: int, n_ops: int, batch: int, n_threads: int | None = None) -> None:
        """Run a plan and return when all of it is done.

        plan: address of n_ops op records; batch: address of the batch record; n_threads: 1 to leave
        the workers alone, or all of them, as without it.
        """
        assert n_threads in (None, 1, self.n_threads), f"{n_threads} threads: one or all"
        _reset(plan, n_ops, batch)
        if n_threads != 1:
            self._hand_out(plan, n_ops, batch)
        _lead(self._address, plan, n_ops, batch, n_threads or self.n_threads)

    def close(self) -> None:
        """End the worker threads."""
        if self._threads:
            self._hand_out(
                0, -1, self._address
            )  # a place to write that is no batch; its fields are not looked at
            for thread in self._threads:
                thread.join()
            self._threads = []

    def _hand_out(self, plan: int, n_ops: int, batch: int) -> None:
        _publish(self._address, plan, n_ops, batch)
        for worker in range(1, self.n_threads):
            if _claim_sleeper(self._address, worker):
                self._wake[worker].release()

    def _work(self, worker: int) -> None:
        seen = 0
        while seen >= 0:
            seen = _follow(self._address, worker, self.n_threads, seen)
            if seen >= 0:
                self._wake[worker].acquire()
