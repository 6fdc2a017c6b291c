"""Blocks of 256 weights in eight groups of 32 or sixteen of 16 (Q2_K to Q6_K, IQ and TQ types): the
loops over them.

A type tells how its block is unpacked, in two functions:

    scales(block)    (scale, offset) for each 16 weights, two f32x16; weight = scale * w + offset
    weights(block)   its 256 weights as four u8x64, of at most 127 each in a dot product, or i8x64

512 bits are a register of some CPUs; where they are not, LLVM makes two or four of each vector.
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.activation import fine8_d, fine8_h
from engine.kernels.op import AHEAD
from engine.kernels.simd import (
    FOUR,
    ONE,
    L,
    Lanes,
    f32x16,
    fine_dot,
    fma_rows,
    interleave,
    load_sums,
    lower,
    prefetch,
    shuffle,
    stack,
    store,
    store_sums,
    upper,
    write_sums,
    zero_sums,
)
from engine.kernels.tile import STAGE, STAGE_2, STAGE_8, N, offset_at, scale_at

# Four input rows of so many blocks are 14 kB: they stay in the L1 cache while weight rows pass by.
_CHUNK = 8
_SUMS_BYTES = FOUR.n * 64  # of one weight row
_WAITING = L * _SUMS_BYTES

# The scales of 128 weights in the order of fine8's, which is drawn in kernels/activation.py.
_FIRST_128, _LAST_128 = (
    Lanes(*[g + k for k in range(4) for g in (first, first, first + 4, first + 4)])
    for first in (0, 8)
)
_EVEN = Lanes(*range(0, 16, 2))  # of groups of 32, each of which is there as two of 16


@inline
def _add_block(sums, scales, weights, block, x, d, h, x_bytes):
    """Add a block's 256 weights times the fine8 values at x (scales at d, sums of 16 at h)."""
    scale, offset = scales(block)
    w0, w1, w2, w3 = weights(block)
    sums = fma_rows(sums, offset, h, x_bytes)
    sums = fine_dot(sums, w0, w1, x, d, x_bytes, shuffle(scale, _FIRST_128))
    return fine_dot(sums, w2, w3, x + 128, d + 64, x_bytes, shuffle(scale, _LAST_128))


@inline
def _add_blocks(sums, scales, weights, block_bytes, row, ahead, first, last, n_in, x, x_bytes):
    """Add blocks first..last of the weight row at `row`; what lies `ahead` bytes on comes soon."""
    d, h = fine8_d(x, n_in), fine8_h(x, n_in)
    block = row + first * block_bytes
    for b in range(first, last):
        for line in range(0, block_bytes, 64):
            prefetch(block + ahead + line)
        x_b, d_b, h_b = x + 256 * b, d + 128 * b, h + 64 * b
        sums = _add_block(sums, scales, weights, block, x_b, d_b, h_b, x_bytes)
        block += block_bytes
    return sums


@inline
def dot_blocks(scales, weights, block_bytes, w, row_bytes, n_rows, n_in, x, out):
    """QuantType.dot."""
    n = n_in // 256
    for r in range(n_rows):
        row, sums = w + r * row_bytes, zero_sums(ONE, f32x16)
        sums = _add_blocks(sums, scales, weights, block_bytes, row, AHEAD, 0, n, n_in, x, 0)
        write_sums(out + 4 * r, 0, sums)


@inline
def dot4_blocks(
    scales, weights, block_bytes, w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes
):
    """QuantType.dot4. Long rows go chunk by chunk, a few weight rows at a time, whose sums wait in
    memory meanwhile.
    """
    n = n_in // 256
    ahead = AHEAD if n <= _CHUNK else row_bytes
    waiting = stack(_WAITING)
    for first_row in range(0, n_rows, L):
        m = min(L, n_rows - first_row)
        for first in range(0, n, _CHUNK):
            last = min(first + _CHUNK, n)
            for r in range(m):
                row, place = w + (first_row + r) * row_bytes, waiting + r * _SUMS_BYTES
                sums = zero_sums(FOUR, f32x16)
                if first > 0:
                    sums = load_sums(sums, place)
                sums = _add_blocks(
                    sums, scales, weights, block_bytes, row, ahead, first, last, n_in, x, x_bytes
                )
                if last < n:
                    store_sums(place, sums)
                else:
                    write_sums(out + 4 * (first_row + r), out_bytes, sums)


@inline
def unpack_blocks(scales, weights, group, block_bytes, w, row_bytes, n_rows, k0, kn, tile):
    """QuantType.unpack."""
    n_groups = 256 // group
    scale_out, offset_out = scale_at(tile, kn), offset_at(tile, kn, group)
    rows = stack(STAGE_8)  # eight runs of N rows of 32 bytes
    scale_rows, offset_rows = stack(STAGE_2), stack(STAGE_2)  # runs of N rows of eight floats
    for b in range(kn // 256):
        for r in range(N):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 256 + b) * block_bytes
            scale, offset = scales(block)
            if group == 32:
                store(scale_rows + 32 * r, shuffle(scale, _EVEN))
                store(offset_rows + 32 * r, shuffle(offset, _EVEN))
            else:
                store(scale_rows + 32 * r, lower(scale))
                store(scale_rows + 32 * (N + r), upper(scale))
                store(offset_rows + 32 * r, lower(offset))
                store(offset_rows + 32 * (N + r), upper(offset))
            _store_weights(rows + 32 * r, weights(block))
        for i in range(8):
            interleave(rows + i * STAGE, tile + (8 * b + i) * STAGE, N)
        for i in range(n_groups // 8):
            place = (n_groups * b + 8 * i) * 4 * N
            interleave(scale_rows + i * STAGE, scale_out + place, N)
            interleave(offset_rows + i * STAGE, offset_out + place, N)


@inline
def _store_weights(row, weights):
    """Write a block's weights of a row, each 32 of them N rows after the last."""
    w0, w1, w2, w3 = weights
    store(row, lower(w0))
    store(row + STAGE, upper(w0))
    store(row + 2 * STAGE, lower(w1))
    store(row + 3 * STAGE, upper(w1))
    store(row + 4 * STAGE, lower(w2))
    store(row + 5 * STAGE, upper(w2))
    store(row + 6 * STAGE, lower(w3))
    store(row + 7 * STAGE, upper(w3))
