"""Dot product and tile for blocks of 32 nibbles that choose from a table of sixteen values.

The types that share this (IQ4_NL, MXFP4) hand in scale(block), the f32 scale of a block, and
weights(block), its 32 weights as u8x32 with `bias` added to each.
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.activation import dot_fine_bytes, fine8_d, fine8_s, fine_bias
from engine.kernels.op import AHEAD
from engine.kernels.simd import (
    L,
    add,
    f32x8,
    interleave,
    prefetch,
    read_f32,
    splat,
    stack,
    store,
    sum_lanes,
    write_f32,
    zeros,
)
from engine.kernels.tile import STAGE, offset_at, scale_at

_ZERO = np.float32(0)


@inline
def _add_block(sums, offset, scale, weights, bias, block, x, d_x, s_x):
    d = scale(block)
    sums = dot_fine_bytes(sums, weights(block), bias, x, d_x, splat(f32x8, d))
    return sums, offset + d * read_f32(s_x)


@inline
def dot_nibble_tables(scale, weights, bias, block_bytes, w, row_bytes, n_rows, n_in, x, out):
    """The type's `dot`."""
    n = n_in // 32
    d_x, s_x = fine8_d(x, n_in), fine8_s(x, n_in)
    for r in range(n_rows):
        block = w + r * row_bytes
        even, odd = zeros(f32x8), zeros(f32x8)  # two sums: one would wait for itself
        a, c = _ZERO, _ZERO
        for b in range(0, n - 1, 2):
            prefetch(block + AHEAD)
            x_b, d, s = x + 32 * b, d_x + 32 * b, s_x + 4 * b
            even, a = _add_block(even, a, scale, weights, bias, block, x_b, d, s)
            block, x_b, d, s = block + block_bytes, x_b + 32, d + 32, s + 4
            odd, c = _add_block(odd, c, scale, weights, bias, block, x_b, d, s)
            block += block_bytes
        if n % 2:
            x_b, d, s = x + 32 * (n - 1), d_x + 32 * (n - 1), s_x + 4 * (n - 1)
            even, a = _add_block(even, a, scale, weights, bias, block, x_b, d, s)
        write_f32(out + 4 * r, sum_lanes(add(even, odd)) - fine_bias(bias) * (a + c))


@inline
def unpack_nibble_tables(scale, weights, bias, block_bytes, w, row_bytes, n_rows, k0, kn, tile):
    """The type's `unpack`."""
    scale_out, offset_out = scale_at(tile, kn), offset_at(tile, kn, 32)
    rows = stack(STAGE)
    for b in range(kn // 32):
        for r in range(L):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 32 + b) * block_bytes
            store(rows + 32 * r, weights(block))
            d = scale(block)
            write_f32(scale_out + (b * L + r) * 4, d)
            write_f32(offset_out + (b * L + r) * 4, -1.0 * bias * d)
        interleave(rows, tile + 32 * L * b)
