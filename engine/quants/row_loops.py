"""The loop over rows of 256-blocks, with one to four input rows: for k_blocks.py, eight_blocks.py.

unpack(scales, weights, block) makes a block's numbers ready (`parts`), whatever they are to
add(sums, rows, parts, x, x_bytes), which adds their product with a run of 256 input values, and
write_out(out, out_bytes, sums) ends a row. A row may end with a part of a block.
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.op import AHEAD
from engine.kernels.simd import (
    FOUR,
    ONE,
    TWO,
    L,
    add_lower,
    f32x8,
    f32x16,
    load,
    load_sums,
    prefetch,
    prefetch_l2,
    stack,
    store,
    store_sums,
    u8x16,
    u8x64,
    write_sums,
    zero_sums,
    zeros,
)

# Four input rows of so many blocks are 16 kB: they stay in the L1 cache while weight rows pass by.
# One row is read through: memory is faster in order.
_CHUNK, _WHOLE = 8, 1 << 30
# Whether a block is unpacked beside the products of the one before, as a CPU that waits for it does
# not find enough else to do. With 16 registers there is no room for it.
_EARLY = L == 16
_LATER = 4  # rows of weights ahead at which chunks are prefetched
_ROOM = 320  # bytes: eight blocks of 34, and a whole number of vectors
_LOWER = FOUR.n * 64  # where the second tile of sums waits
_SUMS_BYTES = _LOWER + FOUR.n * 32  # of one weight row
_WAITING = L * _SUMS_BYTES


@inline
def _add_blocks(
    sums, parts, rows, unpack, add, scales, weights, sizes, n_blocks, where, x, x_bytes
):
    """(sums, parts) after the products of n_blocks blocks, the first of which parts are unpacked.

    where: (first block, the one behind the last, bytes ahead to prefetch).
    """
    block_bytes, run_bytes = sizes
    block, after, ahead = where
    for b in range(n_blocks):
        for line in range(0, block_bytes, 64):
            if ahead == AHEAD:
                prefetch(block + AHEAD + line)
            else:  # no row of lines for the CPU to go on with by itself
                prefetch_l2(block + ahead + line)
        if not _EARLY:
            parts = unpack(scales, weights, block)
        block += block_bytes
        following = parts
        if _EARLY:
            following = unpack(scales, weights, block if b + 1 < n_blocks else after)
        sums = add(sums, rows, parts, x, x_bytes)
        x += run_bytes
        parts = following
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
def write(out, out_bytes, sums):
    """Write the sum of the first tile's lanes for each input row."""
    write_sums(out, out_bytes, sums[0])


@inline
def write_both(out, out_bytes, sums):
    """The same with the second tile added to the first."""
    write_sums(out, out_bytes, add_lower(sums[0], sums[1]))


@inline
def _run_after(rows_at, row_bytes, first, chunk_bytes, r, m, is_end):
    """Address of the chunk that is read as number r of m rows', those beyond being the first rows'
    next chunks, or after the last chunks the next rows'.

    rows_at: address of the first row; first: bytes from a row's start to its chunk.
    """
    if r < m:
        return rows_at + r * row_bytes + first
    if is_end:
        return rows_at + r * row_bytes
    return rows_at + (r - m) * row_bytes + first + chunk_bytes


@inline
def _dot_rows(rows, unpack, add, write_out, scales, weights, sizes, chunk, at, to):
    """Weight rows times input rows. Rows of more than `chunk` blocks go chunk by chunk, a few rows
    at a time, whose sums wait in memory meanwhile.

    rows: ONE, TWO or FOUR; sizes: (block_bytes, run_bytes); at: (w, row_bytes, n_rows, n_in); to:
    (x, x_bytes, out, out_bytes). Sums are two tiles for `add` to use: f32x16 and f32x8.
    """
    block_bytes, run_bytes = sizes
    w, row_bytes, n_rows, n_in = at
    x, x_bytes, out, out_bytes = to
    n = n_in // 256
    rest = n_in % 256 * block_bytes // 256
    copy, waiting = stack(_ROOM), stack(_WAITING)
    _clear(copy)
    parts = unpack(scales, weights, w if n > 0 else copy)
    for first_row in range(0, n_rows, L):
        rows_at, m = w + first_row * row_bytes, min(L, n_rows - first_row)
        for first in range(0, max(n, 1), chunk):
            k = min(chunk, n - first)
            is_end = first + k == n
            for r in range(m):
                row, place = rows_at + r * row_bytes, waiting + r * _SUMS_BYTES
                block, size = row + first * block_bytes, (first * block_bytes, k * block_bytes)
                following, ahead = block, AHEAD
                if not is_end or first_row + r + 1 < n_rows:
                    following = _run_after(rows_at, row_bytes, *size, r + 1, m, is_end)
                if n > chunk:
                    later = _run_after(rows_at, row_bytes, *size, r + _LATER, m, is_end)
                    ahead = later - block
                sums = zero_sums(rows, f32x16), zero_sums(rows, f32x8)
                if first > 0:
                    sums = load_sums(sums[0], place), load_sums(sums[1], place + _LOWER)
                after = following
                if rest > 0 and is_end:
                    _copy_rest(row + n * block_bytes, rest, copy)
                    after = copy
                    if n == 0:
                        parts = unpack(scales, weights, copy)
                where, run = (block, after, ahead), x + first * run_bytes
                sums, parts = _add_blocks(
                    sums, parts, rows, unpack, add, scales, weights, sizes, k, where, run, x_bytes
                )
                if not is_end:
                    store_sums(place, sums[0])
                    store_sums(place + _LOWER, sums[1])
                    continue
                if rest > 0:
                    if not _EARLY:
                        parts = unpack(scales, weights, copy)
                    sums = add(sums, rows, parts, x + n * run_bytes, x_bytes)
                    if _EARLY and n > 0:
                        parts = unpack(scales, weights, following)
                write_out(out + 4 * (first_row + r), out_bytes, sums)


@inline
def dot1_rows(unpack, add, write_out, scales, weights, sizes, at, to):
    """QuantType.dot. sizes, at, to: see _dot_rows."""
    _dot_rows(ONE, unpack, add, write_out, scales, weights, sizes, _WHOLE, at, to)


@inline
def dot4_rows(n_x, unpack, add, write_out, scales, weights, sizes, at, to):
    """QuantType.dot4. sizes, at, to: see _dot_rows."""
    if n_x <= 2:
        _dot_rows(TWO, unpack, add, write_out, scales, weights, sizes, 2 * _CHUNK, at, to)
    else:
        _dot_rows(FOUR, unpack, add, write_out, scales, weights, sizes, _CHUNK, at, to)
