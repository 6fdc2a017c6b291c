"""Blocks of 256 weights in eight groups of 32 or sixteen of 16 (Q2_K to Q6_K, IQ and TQ types):
their products with a run of inputs, and tiles of them.

A type tells how its block is unpacked, in two functions:

    scales(block)    (scale, offset) for each 16 weights, two f32x16; weight = scale * w + offset
    weights(block)   its 256 weights as four u8x64, of at most 127 each in a dot product, or i8x64

which the product BY_16 takes. Types that want to be fast have products of their own, in the order
of fine8's columns (kernels/activation.py), weights as a tile:

    BY_32     offset, f32x8, for each 32 weights
    CENTRED   scale alone: weight = scale * (w - FINE8_CENTRE)

512 bits are a register of some CPUs; where they are not, LLVM makes two or four of each vector.
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.activation import FINE8_BYTES, FINE8_C, FINE8_D, FINE8_H, FINE8_H_32
from engine.kernels.simd import (
    Lanes,
    columns,
    count_products,
    fma_centred,
    fma_counts,
    fma_rows,
    interleave,
    lower,
    shuffle,
    stack,
    store,
    upper,
)
from engine.kernels.tile import STAGE, STAGE_2, STAGE_8, N, offset_at, scale_at
from engine.quants.row_loops import end_both, end_one, none_shared

# The groups of 16 in the order of fine8's columns.
COLUMNS = Lanes(*[4 * j + i for i in range(4) for j in range(4)])
_EVEN = Lanes(*range(0, 16, 2))  # of groups of 32, each of which is there as two of 16


@inline
def _unpack(scales, weights, block):
    scale, offset = scales(block)
    w0, w1, w2, w3 = weights(block)
    return columns(w0, w1, w2, w3), shuffle(scale, COLUMNS), offset


@inline
def _add(sums, rows, parts, x, x_bytes):
    w, scale, offset = parts
    counts = count_products(rows, w, x, x_bytes)
    total = fma_rows(sums[0], offset, x + FINE8_H, x_bytes)
    return fma_counts(total, counts, scale, x + FINE8_D, x_bytes), sums[1]


@inline
def _unpack_by_32(scales, weights, block):
    scale, offset = scales(block)
    return weights(block), scale, offset


@inline
def _add_by_32(sums, rows, parts, x, x_bytes):
    w, scale, offset = parts
    counts = count_products(rows, w, x, x_bytes)
    total = fma_counts(sums[0], counts, scale, x + FINE8_D, x_bytes)
    return total, fma_rows(sums[1], offset, x + FINE8_H_32, x_bytes)


@inline
def _unpack_centred(scales, weights, block):
    return weights(block), scales(block)


@inline
def _add_centred(sums, rows, parts, x, x_bytes):
    w, scale = parts
    counts = count_products(rows, w, x, x_bytes)
    d, centre = x + FINE8_D, x + FINE8_C
    return fma_centred(sums[0], counts, scale, d, centre, x_bytes), sums[1]


# Products, for dot_rows and dot4_rows of row_loops.py.
BY_16 = 1, FINE8_BYTES, _unpack, _add, end_one, none_shared
BY_32 = 1, FINE8_BYTES, _unpack_by_32, _add_by_32, end_both, none_shared
CENTRED = 1, FINE8_BYTES, _unpack_centred, _add_centred, end_one, none_shared


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
