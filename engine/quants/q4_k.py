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

from engine.jit import inline
from engine.kernels.activation import dot_group, q8_d, q8_s
from engine.kernels.op import part
from engine.kernels.simd import (
    L,
    convert,
    f32x8,
    fma,
    i32x8,
    interleave,
    lane_splat,
    load,
    load_wide,
    mask,
    mul,
    prefetch,
    read_f16,
    read_u32,
    reinterpret,
    shr,
    splat,
    stack,
    store,
    sum_lanes,
    u8x8,
    u8x32,
    u16x16,
    write_f32,
    zeros,
)
from engine.kernels.tile import STAGE, STAGE_8, offset_at, scale_at, tile_dot_4bit
from engine.quants.base import Blocks, Floats, QuantType

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
BYTES = BLOCK.itemsize


def scales_and_minima(packed: Blocks) -> tuple[Blocks, Blocks]:
    """The 6-bit scales and minima of u8[n, 12]: two u8[n, 8]."""
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=1)
    minima = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=1)
    return scales, minima


def dequantize(blocks: Blocks) -> Floats:
    s, m = scales_and_minima(blocks["scales"])
    scale = blocks["d"].astype(np.float32)[:, None] * s.astype(np.float32)
    minimum = blocks["dmin"].astype(np.float32)[:, None] * m.astype(np.float32)
    packed = blocks["qs"].reshape(-1, 4, 1, 32)
    nibbles = np.concatenate([packed & 15, packed >> 4], axis=2).reshape(-1, 8, 32)
    values = scale[:, :, None] * nibbles.astype(np.float32) - minimum[:, :, None]
    return values.reshape(-1, 256)


@inline
def group_scales(block):
    """(scale, minimum) of the eight groups: two f32x8."""
    a, b, c = (
        np.uint64(read_u32(block + 4)),
        np.uint64(read_u32(block + 8)),
        np.uint64(read_u32(block + 12)),
    )
    low, nibble, high = np.uint64(0x3F3F3F3F), np.uint64(0x0F0F0F0F), np.uint64(0x03030303)
    s_high = (c & nibble) | ((a >> np.uint64(6) & high) << np.uint64(4))
    m_high = (c >> np.uint64(4) & nibble) | ((b >> np.uint64(6) & high) << np.uint64(4))
    s = reinterpret(u8x8, (a & low) | (s_high << np.uint64(32)))
    m = reinterpret(u8x8, (b & low) | (m_high << np.uint64(32)))
    scale = mul(convert(f32x8, convert(i32x8, s)), splat(f32x8, read_f16(block)))
    minimum = mul(convert(f32x8, convert(i32x8, m)), splat(f32x8, read_f16(block + 2)))
    return scale, minimum


@part(6)
def dot_q4_k(w, row_bytes, n_rows, n_in, x, out):
    d_x, s_x = q8_d(x + n_in, n_in), q8_s(x + n_in, n_in)
    for r in range(n_rows):
        block = w + r * row_bytes
        sums, minima = zeros(f32x8), zeros(f32x8)
        for b in range(n_in // 256):
            prefetch(block + 1024)
            prefetch(block + 1088)
            scale, minimum = group_scales(block)
            minima = fma(minimum, load(f32x8, s_x + 32 * b), minima)
            scale = mul(scale, load(f32x8, d_x + 32 * b))
            xb = x + 512 * b
            low, high = load_wide(u16x16, block + 16), load_wide(u16x16, block + 32)
            sums = dot_group(sums, mask(low, 15), mask(high, 15), xb + 0, lane_splat(scale, 0))
            sums = dot_group(sums, shr(low, 4), shr(high, 4), xb + 64, lane_splat(scale, 1))
            low, high = load_wide(u16x16, block + 48), load_wide(u16x16, block + 64)
            sums = dot_group(sums, mask(low, 15), mask(high, 15), xb + 128, lane_splat(scale, 2))
            sums = dot_group(sums, shr(low, 4), shr(high, 4), xb + 192, lane_splat(scale, 3))
            low, high = load_wide(u16x16, block + 80), load_wide(u16x16, block + 96)
            sums = dot_group(sums, mask(low, 15), mask(high, 15), xb + 256, lane_splat(scale, 4))
            sums = dot_group(sums, shr(low, 4), shr(high, 4), xb + 320, lane_splat(scale, 5))
            low, high = load_wide(u16x16, block + 112), load_wide(u16x16, block + 128)
            sums = dot_group(sums, mask(low, 15), mask(high, 15), xb + 384, lane_splat(scale, 6))
            sums = dot_group(sums, shr(low, 4), shr(high, 4), xb + 448, lane_splat(scale, 7))
            block += BYTES
        write_f32(out + 4 * r, sum_lanes(sums) - sum_lanes(minima))


@part(6)
def unpack_q4_k(w, row_bytes, n_rows, k0, kn, tile):
    scale_out, offset_out = scale_at(tile, kn), offset_at(tile, kn, 32)
    rows = stack(STAGE_8)  # eight groups of L rows of 32 bytes
    scales, minima = stack(STAGE), stack(STAGE)
    for b in range(kn // 256):
        for r in range(L):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 256 + b) * BYTES
            scale, minimum = group_scales(block)
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


QUANT = QuantType("Q4_K", 12, BLOCK, 256, 32, dequantize, dot_q4_k, unpack_q4_k, tile_dot_4bit)
