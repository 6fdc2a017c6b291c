"""Q4_0: 32 weights in 18 bytes, one scale, values -8..7.

d   f16       scale
qs  u8[16]    low nibbles: weights 0..15, high nibbles: weights 16..31

weight = d * (nibble - 8)
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.activation import dot_group, q8_d, q8_s
from engine.kernels.op import AHEAD, part
from engine.kernels.simd import (
    L,
    add,
    f32xL,
    interleave,
    load_nibbles,
    prefetch,
    read_f16,
    read_f32,
    splat,
    stack,
    store,
    sum_lanes,
    write_f32,
    zeros,
)
from engine.kernels.tile import STAGE, offset_at, scale_at, tile_dot_4bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.layouts import nibbles

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
BYTES = BLOCK.itemsize
ZERO, EIGHT = np.float32(0), np.float32(8)


def dequantize(blocks: Blocks) -> Floats:
    d = blocks["d"].astype(np.float32)[:, None]
    nibbles = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=1)
    return d * (nibbles.astype(np.float32) - np.float32(8))


@inline
def _add_block(sums, offsets, block, x, d_x, s_x):
    d = read_f16(block)
    sums = dot_group(sums, load_nibbles(block + 2), x, splat(f32xL, d * read_f32(d_x)))
    return sums, offsets + d * read_f32(s_x)


@part(6)
def dot_q4_0(w, row_bytes, n_rows, n_in, x, out):
    n = n_in // 32
    d_x, s_x = q8_d(x + n_in, n_in), q8_s(x + n_in, n_in)
    for r in range(n_rows):
        block = w + r * row_bytes
        even, odd = zeros(f32xL), zeros(f32xL)  # two sums: one would wait for itself
        offset, offset_odd = ZERO, ZERO
        for b in range(0, n - 1, 2):
            prefetch(block + AHEAD)
            x_b, at = x + 64 * b, 4 * b
            even, offset = _add_block(even, offset, block, x_b, d_x + at, s_x + at)
            block, x_b, at = block + BYTES, x_b + 64, at + 4
            odd, offset_odd = _add_block(odd, offset_odd, block, x_b, d_x + at, s_x + at)
            block += BYTES
        if n % 2:
            x_b, at = x + 64 * (n - 1), 4 * (n - 1)
            even, offset = _add_block(even, offset, block, x_b, d_x + at, s_x + at)
        write_f32(out + 4 * r, sum_lanes(add(even, odd)) - EIGHT * (offset + offset_odd))


@part(6)
def unpack_q4_0(w, row_bytes, n_rows, k0, kn, tile):
    scale, offset = scale_at(tile, kn), offset_at(tile, kn, 32)
    rows = stack(STAGE)
    for b in range(kn // 32):
        for r in range(L):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 32 + b) * BYTES
            store(rows + 32 * r, nibbles(block + 2))
            d = read_f16(block)
            write_f32(scale + (b * L + r) * 4, d)
            write_f32(offset + (b * L + r) * 4, -8.0 * d)
        interleave(rows, tile + 32 * L * b)


QUANT = QuantType(
    "Q4_0", 2, BLOCK, 32, 32, dequantize, FewInput.Q16, dot_q4_0, unpack_q4_0, tile_dot_4bit
)
