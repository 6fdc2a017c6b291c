"""Blocks of 32 nibbles that choose from a table of sixteen numbers (IQ4_NL, MXFP4): tiles of
them.

A type tells how its block is unpacked, in two functions:

    scale(block)     the f32 scale of a block
    weights(block)   its 32 weights as i8x32
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.simd import (
    interleave,
    plus_scalar,
    stack,
    store,
    write_f32,
)
from engine.kernels.tile import STAGE, N, offset_at, scale_at


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
