"""Q5_K: 256 weights in 176 bytes: eight groups of 32, each with a 6-bit scale and a 6-bit minimum.

d       f16       scale of the scales
dmin    f16       scale of the minima
scales  u8[12]    as in Q4_K
qh      u8[32]    bit g of byte i: the fifth bit of weight i of group g
qs      u8[128]   32 bytes hold two groups: low nibbles 2j, high nibbles 2j + 1

weight = d * s * five bits - dmin * m
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.activation import dot_fine, fine8_d, fine8_s
from engine.kernels.op import AHEAD, part
from engine.kernels.simd import (
    L,
    add,
    bor,
    f32x8,
    fma,
    interleave,
    load,
    mask,
    mul,
    prefetch,
    shl,
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
from engine.kernels.tile import STAGE, STAGE_8, offset_at, scale_at, tile_dot_5bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.layouts import scales_and_minima, store_half, unpack_scales_and_minima

BLOCK = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
)
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    s, m = scales_and_minima(blocks["scales"])
    scale = blocks["d"].astype(np.float32)[:, None] * s.astype(np.float32)
    minimum = blocks["dmin"].astype(np.float32)[:, None] * m.astype(np.float32)
    packed = blocks["qs"].reshape(-1, 4, 1, 32)
    low = np.concatenate([packed & 15, packed >> 4], axis=2).reshape(-1, 8, 32)
    high = blocks["qh"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    values = scale[:, :, None] * (low | high << 4).astype(np.float32) - minimum[:, :, None]
    return values.reshape(-1, 256)


@inline
def first_half(block):
    """The weights of groups 0..3, 0..31: four u8x32."""
    h = load(u8x32, block + 16)
    a, b = load(u8x32, block + 48), load(u8x32, block + 80)
    return (
        bor(mask(a, 15), mask(shl(h, 4), 16)),
        bor(shr(a, 4), mask(shl(h, 3), 16)),
        bor(mask(b, 15), mask(shl(h, 2), 16)),
        bor(shr(b, 4), mask(shl(h, 1), 16)),
    )


@inline
def second_half(block):
    """The weights of groups 4..7, 0..31: four u8x32."""
    h = load(u8x32, block + 16)
    a, b = load(u8x32, block + 112), load(u8x32, block + 144)
    return (
        bor(mask(a, 15), mask(h, 16)),
        bor(shr(a, 4), mask(shr(h, 1), 16)),
        bor(mask(b, 15), mask(shr(h, 2), 16)),
        bor(shr(b, 4), mask(shr(h, 3), 16)),
    )


@part(6)
def dot_q5_k(w, row_bytes, n_rows, n_in, x, out):
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
            w0, w1, w2, w3 = first_half(block)
            even = dot_fine(even, w0, x_b + 0, d + 0, splat_lane(scale, 0))
            odd = dot_fine(odd, w1, x_b + 32, d + 32, splat_lane(scale, 1))
            even = dot_fine(even, w2, x_b + 64, d + 64, splat_lane(scale, 2))
            odd = dot_fine(odd, w3, x_b + 96, d + 96, splat_lane(scale, 3))
            w4, w5, w6, w7 = second_half(block)
            even = dot_fine(even, w4, x_b + 128, d + 128, splat_lane(scale, 4))
            odd = dot_fine(odd, w5, x_b + 160, d + 160, splat_lane(scale, 5))
            even = dot_fine(even, w6, x_b + 192, d + 192, splat_lane(scale, 6))
            odd = dot_fine(odd, w7, x_b + 224, d + 224, splat_lane(scale, 7))
            block += BYTES
        write_f32(out + 4 * r, sum_lanes(sub(add(even, odd), minima)))


@part(6)
def unpack_q5_k(w, row_bytes, n_rows, k0, kn, tile):
    scale_out, offset_out = scale_at(tile, kn), offset_at(tile, kn, 32)
    rows = stack(STAGE_8)  # eight groups of L rows of 32 bytes
    scales, minima = stack(STAGE), stack(STAGE)
    for b in range(kn // 256):
        for r in range(L):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 256 + b) * BYTES
            scale, minimum = unpack_scales_and_minima(block)
            store(scales + 32 * r, scale)
            store(minima + 32 * r, mul(minimum, splat(f32x8, -1.0)))
            store_half(rows + 32 * r, first_half(block))
            store_half(rows + (4 * L + r) * 32, second_half(block))
        for g in range(8):
            interleave(rows + g * L * 32, tile + (8 * b + g) * 32 * L)
        interleave(scales, scale_out + 8 * b * 4 * L)
        interleave(minima, offset_out + 8 * b * 4 * L)


QUANT = QuantType(
    "Q5_K", 13, BLOCK, 256, 32, dequantize, FewInput.FINE8, dot_q5_k, unpack_q5_k, tile_dot_5bit
)
