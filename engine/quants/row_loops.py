"""The loops over rows of 256-blocks, with one input row or four: for k_blocks.py, eight_blocks.py.

add(sums, scales, weights, block, x, x_bytes) adds the product of a block, whose numbers scales and
weights unpack, with a run of 256 input values. A row may end with a part of a block.
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.op import AHEAD
from engine.kernels.simd import (
    FOUR,
    ONE,
    L,
    f32x16,
    load,
    load_sums,
    prefetch,
    stack,
    store,
    store_sums,
    u8x16,
    u8x64,
    write_sums,
    zero_sums,
    zeros,
)

# Four input rows of so many blocks are 14 kB: they stay in the L1 cache while weight rows pass by.
_CHUNK = 8
_SUMS_BYTES = FOUR.n * 64  # of one weight row
_WAITING = L * _SUMS_BYTES
_ROOM = 320  # bytes: eight blocks of 34, and a whole number of vectors


@inline
def _ask_for(at, block_bytes):
    """Prefetch a block."""
    prefetch(at)
    if block_bytes > 64:  # known to the compiler, which would not unroll a loop
        prefetch(at + 64)
    if block_bytes > 128:
        prefetch(at + 128)
    if block_bytes > 192:
        prefetch(at + 192)
    if block_bytes > 256:
        prefetch(at + 256)


@inline
def _add_blocks(sums, add, scales, weights, sizes, row, ahead, blocks, x, x_bytes):
    """Add blocks of the weight row at `row`; what lies `ahead` bytes on comes soon.

    blocks: (first, behind the last).
    """
    block_bytes, run_bytes = sizes
    first, last = blocks
    block = row + first * block_bytes
    for b in range(first, last):
        _ask_for(block + ahead, block_bytes)
        sums = add(sums, scales, weights, block, x + run_bytes * b, x_bytes)
        block += block_bytes
    return sums


@inline
def _copy_rest(block, n_bytes, copy):
    """Copy a last block of which only n_bytes are there. copy: room for a whole one, all zeros but
    for what an earlier row left: the same n_bytes.

    Before the row's other blocks are read: what was written just now cannot be read in other
    pieces without a wait.
    """
    for i in range(0, n_bytes - 16, 16):
        store(copy + i, load(u8x16, block + i))
    store(copy + n_bytes - 16, load(u8x16, block + n_bytes - 16))


@inline
def _clear(room):
    for i in range(0, _ROOM, 64):
        store(room + i, zeros(u8x64))


@inline
def dot_rows(add, scales, weights, sizes, w, row_bytes, n_rows, n_in, x, out):
    """QuantType.dot. sizes: (block_bytes, run_bytes)."""
    block_bytes, run_bytes = sizes
    n = n_in // 256
    rest = n_in % 256 * block_bytes // 256
    end = w + n_rows * row_bytes
    copy = stack(_ROOM)
    _clear(copy)
    for r in range(n_rows):
        row, sums = w + r * row_bytes, zero_sums(ONE, f32x16)
        part = row + n * block_bytes
        # What lies behind a row is another's weights, and meets zeros; behind the last one nothing
        # may be read.
        if rest > 0 and part + block_bytes > end:
            _copy_rest(part, rest, copy)
            part = copy
        sums = _add_blocks(sums, add, scales, weights, sizes, row, AHEAD, (0, n), x, 0)
        if rest > 0:
            _ask_for(row + n * block_bytes + AHEAD, block_bytes)
            sums = add(sums, scales, weights, part, x + n * run_bytes, 0)
        write_sums(out + 4 * r, 0, sums)


@inline
def dot4_rows(add, scales, weights, sizes, w, row_bytes, n_rows, n_in, to):
    """QuantType.dot4. Long rows go chunk by chunk, a few weight rows at a time, whose sums wait in
    memory meanwhile. to: (x, x_bytes, out, out_bytes).
    """
    block_bytes, run_bytes = sizes
    x, x_bytes, out, out_bytes = to
    n = n_in // 256
    rest = n_in % 256 * block_bytes // 256
    copy, waiting = stack(_ROOM), stack(_WAITING)
    _clear(copy)
    ahead = AHEAD if n <= _CHUNK else row_bytes
    for first_row in range(0, n_rows, L):
        m = min(L, n_rows - first_row)
        for first in range(0, max(n, 1), _CHUNK):
            last = min(first + _CHUNK, n)
            for r in range(m):
                row, place = w + (first_row + r) * row_bytes, waiting + r * _SUMS_BYTES
                sums = zero_sums(FOUR, f32x16)
                if first > 0:
                    sums = load_sums(sums, place)
                if rest > 0 and last == n:
                    _copy_rest(row + n * block_bytes, rest, copy)
                of = (first, last)
                sums = _add_blocks(sums, add, scales, weights, sizes, row, ahead, of, x, x_bytes)
                if last < n:
                    store_sums(place, sums)
                    continue
                if rest > 0:
                    sums = add(sums, scales, weights, copy, x + n * run_bytes, x_bytes)
                write_sums(out + 4 * (first_row + r), out_bytes, sums)
