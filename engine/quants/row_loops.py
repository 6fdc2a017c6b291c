"""The loops over rows of 256-blocks, with one input row or four: for k_blocks.py, eight_blocks.py.

add(sums, scales, weights, block, x, x_bytes) adds the product of a block, whose numbers scales and
weights unpack, with a run of 256 input values. A row may end with a part of a block.
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.op import AHEAD
from engine.kernels.simd import (
    FOUR,
    L,
    f32x8,
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
_HALVES = FOUR.n * 64
_SUMS_BYTES = _HALVES + FOUR.n * 32  # of one weight row
_WAITING = L * _SUMS_BYTES
_ROOM = 320  # bytes: eight blocks of 34, and a whole number of vectors


@inline
def _add_blocks(sums, parts, rows, unpack, add, scales, weights, sizes, n_blocks, block, after, ahead, x, x_bytes):
    """(sums, parts) after the products of n_blocks blocks, the first of which parts are unpacked.

    The next block is unpacked beside the products of the one before: a CPU that had to wait for it
    would not find enough else to do. after: address of the block that comes after these.
    """
    block_bytes, run_bytes = sizes
    for b in range(n_blocks):
        for line in range(0, block_bytes, 64):
            prefetch(block + ahead + line)
        block += block_bytes
        then = unpack(scales, weights, block if b + 1 < n_blocks else after)
        sums = add(sums, rows, parts, x, x_bytes)
        x += run_bytes
        parts = then
    return sums, parts


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
def no_sums(rows):
    """Sums of 0: a tile of f32x16, and one of f32x8 for what is by 32."""
    return zero_sums(rows, f32x16), zero_sums(rows, f32x8)


@inline
def write(out, stride, sums):
    write_sums(out, stride, sums[0])


@inline
def dot_rows(
    rows, unpack, add, write_out, scales, weights, sizes, w, row_bytes, n_rows, n_in, to
):
    """QuantType.dot and dot4. Long rows go chunk by chunk, a few weight rows at a time, whose sums
    wait in memory meanwhile.

    rows: ONE or FOUR; to: (x, x_bytes, out, out_bytes).
    """
    block_bytes, run_bytes = sizes
    x, x_bytes, out, out_bytes = to
    n = n_in // 256
    rest = n_in % 256 * block_bytes // 256
    copy, waiting = stack(_ROOM), stack(_WAITING)
    _clear(copy)
    ahead = AHEAD if n <= _CHUNK else 2 * row_bytes
    parts = unpack(scales, weights, w if n > 0 else copy)
    for first_row in range(0, n_rows, L):
        m = min(L, n_rows - first_row)
        for first in range(0, max(n, 1), _CHUNK):
            k = min(_CHUNK, n - first)
            whole = first + k == n
            for r in range(m):
                row, place = w + (first_row + r) * row_bytes, waiting + r * _SUMS_BYTES
                block = row + first * block_bytes
                # The block after these: of the next row, or the first row's next chunk.
                if r + 1 < m:
                    next_block = block + row_bytes
                elif not whole:
                    next_block = w + first_row * row_bytes + (first + k) * block_bytes
                elif first_row + m < n_rows:
                    next_block = row + row_bytes
                else:
                    next_block = block
                sums = no_sums(rows)
                if first > 0:
                    sums = load_sums(sums[0], place), load_sums(sums[1], place + _HALVES)
                after = next_block
                if rest > 0 and whole:
                    _copy_rest(row + n * block_bytes, rest, copy)
                    after = copy
                    if n == 0:
                        parts = unpack(scales, weights, copy)
                run = x + first * run_bytes
                sums, parts = _add_blocks(
                    sums, parts, rows, unpack, add, scales, weights, sizes, k, block, after, ahead, run, x_bytes
                )
                if not whole:
                    store_sums(place, sums[0])
                    store_sums(place + _HALVES, sums[1])
                    continue
                if rest > 0:
                    then = unpack(scales, weights, next_block if n > 0 else copy)
                    sums = add(sums, rows, parts, x + n * run_bytes, x_bytes)
                    parts = then
                write_out(out + 4 * (first_row + r), out_bytes, sums)
