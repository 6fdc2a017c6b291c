"""Blocks of 256 weights in eight groups of 32 or sixteen of 16 (Q2_K to Q6_K, IQ and TQ types), or
eight blocks of 32 taken as one (the others): the loops over them.

A type tells how its block is unpacked, in two functions:

    scales(block)    (scale, offset) for each 16 weights, two f32x16; weight = scale * w + offset
    weights(block)   its 256 weights as four u8x64, of at most 128 each in a dot product, or i8x64

512 bits are a register of some CPUs; where they are not, LLVM makes two or four of each vector.
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.activation import FINE8_BYTES
from engine.kernels.op import AHEAD
from engine.kernels.simd import (
    FOUR,
    ONE,
    L,
    Lanes,
    f32x16,
    fine_dot,
    interleave,
    load,
    load_sums,
    lower,
    prefetch,
    shuffle,
    stack,
    store,
    store_sums,
    u8x16,
    u8x64,
    upper,
    write_sums,
    zero_sums,
    zeros,
)
from engine.kernels.tile import STAGE, STAGE_2, STAGE_8, offset_at, scale_at

# Four input rows of so many blocks are 14 kB: they stay in the L1 cache while weight rows pass by.
_CHUNK = 8
_SUMS_BYTES = FOUR.n * 64  # of one weight row
_WAITING = L * _SUMS_BYTES
_ROOM = 320  # bytes: eight blocks of 34, and a whole number of vectors

# The scales in fine8's order (kernels/activation.py).
_COLUMNS = Lanes(*[4 * j + i for i in range(4) for j in range(4)])
_EVEN = Lanes(*range(0, 16, 2))  # of groups of 32, each of which is there as two of 16


@inline
def _add_block(sums, scales, weights, block, x, x_bytes):
    """Add a block's 256 weights times the run of 256 fine8 values at x."""
    scale, offset = scales(block)
    w0, w1, w2, w3 = weights(block)
    return fine_dot(sums, w0, w1, w2, w3, x, x_bytes, shuffle(scale, _COLUMNS), offset)


@inline
def _add_blocks(sums, scales, weights, block_bytes, row, ahead, first, last, x, x_bytes):
    """Add blocks first..last of the weight row at `row`; what lies `ahead` bytes on comes soon."""
    block = row + first * block_bytes
    for b in range(first, last):
        for line in range(0, block_bytes, 64):
            prefetch(block + ahead + line)
        sums = _add_block(sums, scales, weights, block, x + FINE8_BYTES * b, x_bytes)
        block += block_bytes
    return sums


@inline
def _add_rest(sums, scales, weights, block, n_bytes, copy, x, x_bytes):
    """Add a last block of which only n_bytes are there. copy: room for a whole one, all zeros but
    for what an earlier row left: the same n_bytes.
    """
    for i in range(0, n_bytes - 16, 16):
        store(copy + i, load(u8x16, block + i))
    store(copy + n_bytes - 16, load(u8x16, block + n_bytes - 16))
    return _add_block(sums, scales, weights, copy, x, x_bytes)


@inline
def _clear(room):
    for i in range(0, _ROOM, 64):
        store(room + i, zeros(u8x64))


@inline
def dot_blocks(scales, weights, block_bytes, w, row_bytes, n_rows, n_in, x, out):
    """QuantType.dot."""
    n = n_in // 256
    rest = row_bytes - n * block_bytes
    copy = stack(_ROOM)
    _clear(copy)
    for r in range(n_rows):
        row, sums = w + r * row_bytes, zero_sums(ONE, f32x16)
        sums = _add_blocks(sums, scales, weights, block_bytes, row, AHEAD, 0, n, x, 0)
        if rest > 0:
            block, x_rest = row + n * block_bytes, x + n * FINE8_BYTES
            sums = _add_rest(sums, scales, weights, block, rest, copy, x_rest, 0)
        write_sums(out + 4 * r, 0, sums)


@inline
def dot4_blocks(
    scales, weights, block_bytes, w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes
):
    """QuantType.dot4. Long rows go chunk by chunk, a few weight rows at a time, whose sums wait in
    memory meanwhile.
    """
    n = n_in // 256
    rest = row_bytes - n * block_bytes
    copy = stack(_ROOM)
    _clear(copy)
    ahead = AHEAD if n <= _CHUNK else row_bytes
    waiting = stack(_WAITING)
    for first_row in range(0, n_rows, L):
        m = min(L, n_rows - first_row)
        for first in range(0, max(n, 1), _CHUNK):
            last = min(first + _CHUNK, n)
            for r in range(m):
                row, place = w + (first_row + r) * row_bytes, waiting + r * _SUMS_BYTES
                sums = zero_sums(FOUR, f32x16)
                if first > 0:
                    sums = load_sums(sums, place)
                sums = _add_blocks(
                    sums, scales, weights, block_bytes, row, ahead, first, last, x, x_bytes
                )
                if last < n:
                    store_sums(place, sums)
                    continue
                if rest > 0:
                    block, x_rest = row + n * block_bytes, x + n * FINE8_BYTES
                    sums = _add_rest(sums, scales, weights, block, rest, copy, x_rest, x_bytes)
                write_sums(out + 4 * (first_row + r), out_bytes, sums)


@inline
def unpack_blocks(scales, weights, group, block_bytes, w, row_bytes, n_rows, k0, kn, tile):
    """QuantType.unpack."""
    n_groups = 256 // group
    scale_out, offset_out = scale_at(tile, kn), offset_at(tile, kn, group)
    rows = stack(STAGE_8)  # eight runs of L rows of 32 bytes
    scale_rows, offset_rows = stack(STAGE_2), stack(STAGE_2)  # runs of L rows of eight floats
    for b in range(kn // 256):
        for r in range(L):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 256 + b) * block_bytes
            scale, offset = scales(block)
            if group == 32:
                store(scale_rows + 32 * r, shuffle(scale, _EVEN))
                store(offset_rows + 32 * r, shuffle(offset, _EVEN))
            else:
                store(scale_rows + 32 * r, lower(scale))
                store(scale_rows + 32 * (L + r), upper(scale))
                store(offset_rows + 32 * r, lower(offset))
                store(offset_rows + 32 * (L + r), upper(offset))
            _store_weights(rows + 32 * r, weights(block))
        for i in range(8):
            interleave(rows + i * STAGE, tile + (8 * b + i) * STAGE)
        for i in range(n_groups // 8):
            place = (n_groups * b + 8 * i) * 4 * L
            interleave(scale_rows + i * STAGE, scale_out + place)
            interleave(offset_rows + i * STAGE, offset_out + place)


@inline
def _store_weights(row, weights):
    """Write a block's weights of a row, each 32 of them L rows after the last."""
    w0, w1, w2, w3 = weights
    store(row, lower(w0))
    store(row + STAGE, upper(w0))
    store(row + 2 * STAGE, lower(w1))
    store(row + 3 * STAGE, upper(w1))
    store(row + 4 * STAGE, lower(w2))
    store(row + 5 * STAGE, upper(w2))
    store(row + 6 * STAGE, lower(w3))
    store(row + 7 * STAGE, upper(w3))
