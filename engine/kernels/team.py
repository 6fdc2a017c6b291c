"""The thread team: runs a plan on all its threads, or on some, that meet at a spin barrier, and
sleeps when there is nothing to do.

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
_LINE = 64
_ARRIVED, _GENERATION, _STOPPED = 0, _LINE, 2 * _LINE
_PLAN, _N_OPS, _BATCH, _N_THREADS = (3 * _LINE + 8 * i for i in range(4))  # the job
_WORKERS = 4 * _LINE  # a line for each thread
_JOB = 0  # in a thread's line: the number of its last job, raised when all of the job is written,
_LEFT = 8  # of the last one that it has left,
_ASLEEP = 16  # and whether it sleeps

_SPINS = 1000  # looks at a flag before giving way
_IDLE_YIELDS = 3000  # times a worker gives way before it sleeps: about a millisecond

_OP_BYTES = OP.itemsize
_MEET = OP.fields["meet"][1]
_NEXT = OP.fields["next"][1]
_TAKEN = OP.fields["taken"][1]
_CANCEL = BATCH.fields["cancel"][1]
_OP_DONE = BATCH.fields["op_done"][1]


@inline
def _meet(team, batch, op_index, n_threads):
    """Wait until all threads are here.

    Returns whether the run goes on: the last to come looks at the cancel flag.
    """
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


@inline
def _line(team, worker):
    return team + _WORKERS + _LINE * worker


@entry("void(int64, int64, int64, int64, int64, int64)")
def _publish(team, plan, n_ops, batch, n_threads, n_workers):
    """Hand out a job to the first n_threads - 1 of the workers, once all have left the last one:
    the barrier is the next job's then, which one that still looks at it may have no part in.

    Nobody has taken an item of any op of the plan then.
    """
    for worker in range(1, n_workers + 1):
        line, spins = _line(team, worker), 0
        while read_shared(line + _LEFT) != read_shared(line + _JOB):
            spins += 1
            if spins < _SPINS:
                pause()
            else:
                give_way()
    for op in range(plan, plan + n_ops * _OP_BYTES, _OP_BYTES):
        write_i64(op + _NEXT, 0)
        taken = read_i64(op + _TAKEN)
        for thread in range(n_threads if taken != 0 else 0):
            write_i64(taken + 8 * thread, 0)
    if n_ops > 0:
        write_shared(batch + _OP_DONE, 0)
    write_i64(team + _PLAN, plan)
    write_i64(team + _N_OPS, n_ops)
    write_i64(team + _BATCH, batch)
    write_i64(team + _N_THREADS, n_threads)
    for worker in range(1, n_threads):
        fetch_add(_line(team, worker) + _JOB, 1)


@entry("int64(int64, int64)")
def _claim_sleeper(team, worker):
    """1 if the worker sleeps and the caller is to wake it: nobody else is told so."""
    return exchange(_line(team, worker) + _ASLEEP, 0)


@entry("void(int64, int64, int64, int64, int64)")
def _lead(team, plan, n_ops, batch, n_threads):
    """Run a published job as thread 0."""
    _run(team, plan, n_ops, batch, 0, n_threads)


@entry("int64(int64, int64, int64)")
def _follow(team, worker, seen):
    """Run jobs after number `seen` as a worker, until none comes for a while. Returns the last
    job's number, or -1 where there will be no more.

    On return the worker must sleep until it is woken: its flag says so, or it has been seen and the
    wake is on its way.
    """
    line = _line(team, worker)
    idle = 0
    while True:
        job = read_shared(line + _JOB)
        if job != seen:
            n_ops, n_threads = read_i64(team + _N_OPS), read_i64(team + _N_THREADS)
            if n_ops < 0:
                return -1
            _run(team, read_i64(team + _PLAN), n_ops, read_i64(team + _BATCH), worker, n_threads)
            write_shared(line + _LEFT, job)
            seen, idle = job, 0
            continue
        idle += 1
        if idle < _SPINS:
            pause()
        elif idle < _SPINS + _IDLE_YIELDS:
            give_way()
        else:
            exchange(line + _ASLEEP, 1)
            if read_shared(line + _JOB) == seen or exchange(line + _ASLEEP, 0) == 0:
                return seen
            idle = 0


class Team:
    """n_threads threads for `run`; the caller's is one of them."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._memory = np.zeros((_WORKERS + _LINE * (n_threads + 1)) // 8, np.int64)
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

        plan: address of n_ops op records; batch: address of the batch record; n_threads: how many
        are to run it; None = all.
        """
        n_threads = self.n_threads if n_threads is None else n_threads
        assert 1 <= n_threads <= self.n_threads, f"{n_threads} threads of {self.n_threads}"
        self._hand_out(plan, n_ops, batch, n_threads)
        _lead(self._address, plan, n_ops, batch, n_threads)

    def close(self) -> None:
        """End the worker threads."""
        if self._threads:
            self._hand_out(0, -1, 0, self.n_threads)
            for thread in self._threads:
                thread.join()
            self._threads = []

    def _hand_out(self, plan: int, n_ops: int, batch: int, n_threads: int) -> None:
        _publish(self._address, plan, n_ops, batch, n_threads, len(self._threads))
        for worker in range(1, n_threads):
            if _claim_sleeper(self._address, worker):
                self._wake[worker].release()

    def _work(self, worker: int) -> None:
        seen = 0
        while seen >= 0:
            seen = _follow(self._address, worker, seen)
            if seen >= 0:
                self._wake[worker].acquire()
