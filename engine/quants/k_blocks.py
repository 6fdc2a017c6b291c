"""Blocks of 256 weights in eight groups of 32 or sixteen of 16 (Q2_K to Q6_K, IQ and TQ types):
their products with a run of inputs, and tiles of them.

A type tells how its block is unpacked, in two functions:

    scales(block)    (scale, offset) for each 16 weights, two f32x16; weight = scale * w + offset
    weights(block)   its 256 weights as four u8x64, of at most 127 each in a dot product, or i8x64

512 bits are a register of some CPUs; where they are not, LLVM makes two or four of each vector.
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.activation import FINE8_BYTES
from engine.kernels.simd import (
    Lanes,
    columns,
    fine8_dot,
    interleave,
    lower,
    shuffle,
    stack,
    store,
    upper,
)
from engine.kernels.tile import STAGE, STAGE_2, STAGE_8, N, offset_at, scale_at
from engine.quants.row_loops import dot4_rows, dot_rows

# The scales in fine8's order (kernels/activation.py).
_COLUMNS = Lanes(*[4 * j + i for i in range(4) for j in range(4)])
_EVEN = Lanes(*range(0, 16, 2))  # of groups of 32, each of which is there as two of 16


@inline
def _add_block(sums, scales, weights, block, x, x_bytes):
    """Add a block's 256 weights times the run of 256 fine8 values at x."""
    scale, offset = scales(block)
    w0, w1, w2, w3 = weights(block)
    return fine8_dot(sums, columns(w0, w1, w2, w3), x, x_bytes, shuffle(scale, _COLUMNS), offset)


@inline
def dot_blocks(scales, weights, block_bytes, w, row_bytes, n_rows, n_in, x, out):
    """QuantType.dot."""
    sizes = (block_bytes, FINE8_BYTES)
    dot_rows(_add_block, scales, weights, sizes, w, row_bytes, n_rows, n_in, x, out)


@inline
def dot4_blocks(
    scales, weights, block_bytes, w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes
):
    """QuantType.dot4."""
    sizes, to = (block_bytes, FINE8_BYTES), (x, x_bytes, out, out_bytes)
    dot4_rows(_add_block, scales, weights, sizes, w, row_bytes, n_rows, n_in, to)


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
