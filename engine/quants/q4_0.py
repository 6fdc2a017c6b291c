"""Q4_0: 32 weights in 18 bytes, one scale, values -8..7.

d   f16       scale
qs  u8[16]    low nibbles: weights 0..15, high nibbles: weights 16..31

weight = d * (nibble - 8)
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.activation import dot_group, q8_d, q8_s
from engine.kernels.op import part
from engine.kernels.simd import (
    L,
    concat,
    f32x8,
    interleave,
    load,
    load_wide,
    mask,
    prefetch,
    read_f16,
    read_f32,
    shr,
    splat,
    stack,
    store,
    sum_lanes,
    u8x16,
    u16x16,
    write_f32,
    zeros,
)
from engine.kernels.tile import STAGE, offset_at, scale_at, tile_dot_4bit
from engine.quants.base import Blocks, Floats, QuantType

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    d = blocks["d"].astype(np.float32)[:, None]
    nibbles = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=1)
    return d * (nibbles.astype(np.float32) - np.float32(8))


@inline
def nibbles(block):
    """A block's 32 weights, 0..15."""
    packed = load(u8x16, block + 2)
    return concat(mask(packed, 15), shr(packed, 4))


@part(6)
def dot_q4_0(w, row_bytes, n_rows, n_in, x, out):
    d_x, s_x = q8_d(x + n_in, n_in), q8_s(x + n_in, n_in)
    for r in range(n_rows):
        block = w + r * row_bytes
        sums = zeros(f32x8)
        offsets = 0.0
        for b in range(n_in // 32):
            prefetch(block + 1024)
            d = read_f16(block)
            scale = splat(f32x8, d * read_f32(d_x + 4 * b))
            packed = load_wide(u16x16, block + 2)
            sums = dot_group(sums, mask(packed, 15), shr(packed, 4), x + 64 * b, scale)
            offsets += d * read_f32(s_x + 4 * b)
            block += BYTES
        write_f32(out + 4 * r, sum_lanes(sums) - 8.0 * offsets)


@part(6)
def unpack_q4_0(w, row_bytes, n_rows, k0, kn, tile):
    scale, offset = scale_at(tile, kn), offset_at(tile, kn, 32)
    rows = stack(STAGE)
    for b in range(kn // 32):
        for r in range(L):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 32 + b) * BYTES
            store(rows + 32 * r, nibbles(block))
            d = read_f16(block)
            write_f32(scale + (b * L + r) * 4, d)
            write_f32(offset + (b * L + r) * 4, -8.0 * d)
        interleave(rows, tile + 32 * L * b)


QUANT = QuantType("Q4_0", 2, BLOCK, 32, 32, dequantize, dot_q4_0, unpack_q4_0, tile_dot_4bit)
