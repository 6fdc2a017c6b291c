"""Q2_K: 256 weights in 84 bytes: sixteen groups of 16, each with a 4-bit scale and a 4-bit minimum.

scales  u8[16]    group g: scale s in bits 0-3, minimum m in bits 4-7
qs      u8[64]    two bits to a weight
d       f16       scale of the scales
dmin    f16       scale of the minima

Two halves of 128 weights. In half h, byte i = 0..31 of its 32 holds weights i, i + 32, i + 64 and
i + 96, from the lowest bits up.

weight = d * s * two bits - dmin * m
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.activation import fine8_d, fine8_h
from engine.kernels.op import AHEAD, part
from engine.kernels.simd import (
    L,
    add,
    f32x8,
    fma,
    interleave,
    load,
    lower,
    mask,
    mul,
    prefetch,
    read_f16_pair,
    shr,
    splat,
    stack,
    store,
    sub,
    sum_lanes,
    u8x16,
    u8x32,
    upper,
    write_f32,
    zeros,
)
from engine.kernels.tile import STAGE_2, STAGE_8, offset_at, scale_at, tile_dot_5bit_16
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.layouts import add_half, store_half, times

BLOCK = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    s, m = blocks["scales"] & 15, blocks["scales"] >> 4
    scale = blocks["d"].astype(np.float32)[:, None] * s.astype(np.float32)
    minimum = blocks["dmin"].astype(np.float32)[:, None] * m.astype(np.float32)
    bits = blocks["qs"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    bits = bits.reshape(-1, 16, 16)
    values = scale[:, :, None] * bits.astype(np.float32) - minimum[:, :, None]
    return values.reshape(-1, 256)


@inline
def group_scales(block):
    """Scales of the first and the last eight groups, then their minima: four f32x8."""
    packed = load(u8x16, block)
    s, m = mask(packed, 15), shr(packed, 4)
    d, dmin = read_f16_pair(block + 80)
    return (
        times(lower(s), d),
        times(upper(s), d),
        times(lower(m), dmin),
        times(upper(m), dmin),
    )


@inline
def two_bits(block, half):
    """The 128 weights of a half, 0..3: four u8x32."""
    q = load(u8x32, block + 16 + 32 * half)
    return mask(q, 3), mask(shr(q, 2), 3), mask(shr(q, 4), 3), shr(q, 6)


@part(6)
def dot_q2_k(w, row_bytes, n_rows, n_in, x, out):
    d_x, h_x = fine8_d(x, n_in), fine8_h(x, n_in)
    for r in range(n_rows):
        block = w + r * row_bytes
        even, odd = zeros(f32x8), zeros(f32x8)  # two sums: one would wait for itself
        minima = zeros(f32x8)
        for b in range(n_in // 256):
            prefetch(block + AHEAD)
            prefetch(block + AHEAD + 64)
            first, second, minimum, minimum_2 = group_scales(block)
            minima = fma(minimum, load(f32x8, h_x + 64 * b), minima)
            minima = fma(minimum_2, load(f32x8, h_x + 64 * b + 32), minima)
            x_b, d = x + 256 * b, d_x + 256 * b
            even, odd = add_half(even, odd, two_bits(block, 0), x_b, d, first)
            even, odd = add_half(even, odd, two_bits(block, 1), x_b + 128, d + 128, second)
            block += BYTES
        write_f32(out + 4 * r, sum_lanes(sub(add(even, odd), minima)))


@part(6)
def unpack_q2_k(w, row_bytes, n_rows, k0, kn, tile):
    scale_out, offset_out = scale_at(tile, kn), offset_at(tile, kn, 16)
    rows = stack(STAGE_8)  # eight runs of L rows of 32 bytes
    scales, offsets = stack(STAGE_2), stack(STAGE_2)  # two runs of L rows of eight floats
    for b in range(kn // 256):
        for r in range(L):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 256 + b) * BYTES
            first, second, minimum, minimum_2 = group_scales(block)
            store(scales + 32 * r, first)
            store(scales + (L + r) * 32, second)
            store(offsets + 32 * r, mul(minimum, splat(f32x8, -1.0)))
            store(offsets + (L + r) * 32, mul(minimum_2, splat(f32x8, -1.0)))
            store_half(rows + 32 * r, two_bits(block, 0))
            store_half(rows + (4 * L + r) * 32, two_bits(block, 1))
        for g in range(8):
            interleave(rows + g * L * 32, tile + (8 * b + g) * 32 * L)
        for half in range(2):
            interleave(scales + half * L * 32, scale_out + (16 * b + 8 * half) * 4 * L)
            interleave(offsets + half * L * 32, offset_out + (16 * b + 8 * half) * 4 * L)


QUANT = QuantType(
    "Q2_K", 10, BLOCK, 256, 16, dequantize, FewInput.FINE8, dot_q2_k, unpack_q2_k, tile_dot_5bit_16
)
