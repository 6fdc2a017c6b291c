"""A plain read of memory: the ceiling that decoding is measured against."""

from __future__ import annotations

from engine.kernels.op import fields, kernel, take
from engine.kernels.simd import add, i32x8, load, prefetch, store, zeros

CHUNK = 1 << 20
_AHEAD = 4096  # bytes at which it prefetches: a third faster than 1024, a tenth than 2048


@kernel
def read_memory(op, batch, thread, n_threads):
    """Read n_out chunks of CHUNK bytes from weight on.

    The sum goes to scratch, so that no compiler drops the reads.
    """
    o = fields(op)
    total, total_2 = zeros(i32x8), zeros(i32x8)
    while True:
        chunk = take(op, 1)
        if chunk >= o.n_out:
            break
        at = o.weight + chunk * CHUNK
        for line in range(at, at + CHUNK, 64):
            prefetch(line + _AHEAD)
            total = add(total, load(i32x8, line))
            total_2 = add(total_2, load(i32x8, line + 32))
    store(o.scratch + thread * 64, add(total, total_2))
