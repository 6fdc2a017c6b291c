"""Q4_K: 256 weights in 144 bytes: eight groups of 32, each with a 6-bit scale and a 6-bit minimum.

d       f16       scale of the scales
dmin    f16       scale of the minima
scales  u8[12]    s0..s7 and m0..m7, six bits each:

        byte 0..3     s0..s3 in bits 0-5, high bits of s4..s7 in bits 6-7
        byte 4..7     m0..m3 in bits 0-5, high bits of m4..m7 in bits 6-7
        byte 8..11    low nibbles of s4..s7 in bits 0-3, of m4..m7 in bits 4-7

qs      u8[128]   32 bytes hold two groups: low nibbles 2j, high nibbles 2j + 1

weight = d * s * nibble - dmin * m
"""

from __future__ import annotations

import numpy as np

from engine.kernels.activation import dot_fine, fine8_d, fine8_s
from engine.kernels.op import AHEAD, part
from engine.kernels.simd import (
    L,
    add,
    f32x8,
    fma,
    interleave,
    load,
    mask,
    mul,
    prefetch,
    shr,
    splat,
    splat_lane,
    stack,
    store,
    sub,
    sum_lanes,
    u8x32,
    write_f32,
    zeros,
)
from engine.kernels.tile import STAGE, STAGE_8, offset_at, scale_at, tile_dot_4bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.layouts import scales_and_minima, unpack_scales_and_minima

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    s, m = scales_and_minima(blocks["scales"])
    scale = blocks["d"].astype(np.float32)[:, None] * s.astype(np.float32)
    minimum = blocks["dmin"].astype(np.float32)[:, None] * m.astype(np.float32)
    packed = blocks["qs"].reshape(-1, 4, 1, 32)
    nibbles = np.concatenate([packed & 15, packed >> 4], axis=2).reshape(-1, 8, 32)
    values = scale[:, :, None] * nibbles.astype(np.float32) - minimum[:, :, None]
    return values.reshape(-1, 256)


@part(6)
def dot_q4_k(w, row_bytes, n_rows, n_in, x, out):
    d_x, s_x = fine8_d(x, n_in), fine8_s(x, n_in)
    for r in range(n_rows):
        block = w + r * row_bytes
        even, odd = zeros(f32x8), zeros(f32x8)  # two sums: one would wait for itself
        minima = zeros(f32x8)
        for b in range(n_in // 256):
            prefetch(block + AHEAD)
            prefetch(block + AHEAD + 64)
            prefetch(block + AHEAD + 128)
            scale, minimum = unpack_scales_and_minima(block)
            minima = fma(minimum, load(f32x8, s_x + 32 * b), minima)
            x_b, d = x + 256 * b, d_x + 256 * b
            q = load(u8x32, block + 16)
            even = dot_fine(even, mask(q, 15), x_b + 0, d + 0, splat_lane(scale, 0))
            odd = dot_fine(odd, shr(q, 4), x_b + 32, d + 32, splat_lane(scale, 1))
            q = load(u8x32, block + 48)
            even = dot_fine(even, mask(q, 15), x_b + 64, d + 64, splat_lane(scale, 2))
            odd = dot_fine(odd, shr(q, 4), x_b + 96, d + 96, splat_lane(scale, 3))
            q = load(u8x32, block + 80)
            even = dot_fine(even, mask(q, 15), x_b + 128, d + 128, splat_lane(scale, 4))
            odd = dot_fine(odd, shr(q, 4), x_b + 160, d + 160, splat_lane(scale, 5))
            q = load(u8x32, block + 112)
            even = dot_fine(even, mask(q, 15), x_b + 192, d + 192, splat_lane(scale, 6))
            odd = dot_fine(odd, shr(q, 4), x_b + 224, d + 224, splat_lane(scale, 7))
            block += BYTES
        write_f32(out + 4 * r, sum_lanes(sub(add(even, odd), minima)))


@part(6)
def unpack_q4_k(w, row_bytes, n_rows, k0, kn, tile):
    scale_out, offset_out = scale_at(tile, kn), offset_at(tile, kn, 32)
    rows = stack(STAGE_8)  # eight groups of L rows of 32 bytes
    scales, minima = stack(STAGE), stack(STAGE)
    for b in range(kn // 256):
        for r in range(L):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 256 + b) * BYTES
            scale, minimum = unpack_scales_and_minima(block)
            store(scales + 32 * r, scale)
            store(minima + 32 * r, mul(minimum, splat(f32x8, -1.0)))
            for j in range(4):
                packed = load(u8x32, block + 16 + 32 * j)
                store(rows + (2 * j * L + r) * 32, mask(packed, 15))
                store(rows + ((2 * j + 1) * L + r) * 32, shr(packed, 4))
        for g in range(8):
            interleave(rows + g * L * 32, tile + (8 * b + g) * 32 * L)
        interleave(scales, scale_out + 8 * b * 4 * L)
        interleave(minima, offset_out + 8 * b * 4 * L)


QUANT = QuantType(
    "Q4_K", 12, BLOCK, 256, 32, dequantize, FewInput.FINE8, dot_q4_k, unpack_q4_k, tile_dot_4bit
)
