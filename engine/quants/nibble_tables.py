"""Blocks of 32 nibbles that choose from a table of sixteen numbers (IQ4_NL, MXFP4): the loops.

A type tells how its block is unpacked, in two functions:

    scale(block)     the f32 scale of a block
    weights(block)   its 32 weights as i8x32
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.activation import q8_d
from engine.kernels.op import AHEAD
from engine.kernels.simd import (
    WIDE_SIGNED,
    add,
    f32xL,
    group_dot,
    interleave,
    plus_scalar,
    prefetch,
    stack,
    store,
    widen,
    write_f32,
    write_sums,
    zero_sums,
)
from engine.kernels.tile import STAGE, N, offset_at, scale_at


@inline
def _add_block(sums, scale, weights, block, x, d_x, x_bytes):
    return group_dot(sums, widen(WIDE_SIGNED, weights(block)), x, d_x, x_bytes, scale(block))


@inline
def dot_nibble_tables(
    rows, scale, weights, block_bytes, w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes
):
    """QuantType.dot (rows: ONE) and dot4 (FOUR)."""
    n = n_in // 32
    d_x = q8_d(x + n_in, n_in)
    for r in range(n_rows):
        block = w + r * row_bytes
        even, odd = zero_sums(rows, f32xL), zero_sums(rows, f32xL)  # one would wait for itself
        for b in range(0, n - 1, 2):
            prefetch(block + AHEAD)
            x_b, d_b = x + 64 * b, d_x + 4 * b
            even = _add_block(even, scale, weights, block, x_b, d_b, x_bytes)
            odd = _add_block(odd, scale, weights, block + block_bytes, x_b + 64, d_b + 4, x_bytes)
            block += 2 * block_bytes
        if n % 2:
            x_b, d_b = x + 64 * (n - 1), d_x + 4 * (n - 1)
            even = _add_block(even, scale, weights, block, x_b, d_b, x_bytes)
        write_sums(out + 4 * r, out_bytes, add(even, odd))


@inline
def unpack_nibble_tables(scale, weights, bias, block_bytes, w, row_bytes, n_rows, k0, kn, tile):
    """QuantType.unpack. The tile's weights have `bias` added."""
    scale_out, offset_out = scale_at(tile, kn), offset_at(tile, kn, 32)
    rows = stack(STAGE)
    for b in range(kn // 32):
        for r in range(N):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 32 + b) * block_bytes
            store(rows + 32 * r, plus_scalar(weights(block), bias))
            d = scale(block)
            write_f32(scale_out + (b * N + r) * 4, d)
            write_f32(offset_out + (b * N + r) * 4, -1.0 * bias * d)
        interleave(rows, tile + 32 * N * b, N)
