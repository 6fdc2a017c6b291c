"""Q6_K: 256 weights in 210 bytes: sixteen groups of 16, each with an 8-bit scale, values -32..31.

ql      u8[128]   low four bits
qh      u8[64]    high two bits
scales  i8[16]
d       f16

Two halves of 128 weights. In half h, for i = 0..31 (ql from 64 h, qh from 32 h):

    weight       low bits            high bits
    i            ql[i]      & 15     qh[i]      & 3
    i + 32       ql[i + 32] & 15     qh[i] >> 2 & 3
    i + 64       ql[i]      >> 4     qh[i] >> 4 & 3
    i + 96       ql[i + 32] >> 4     qh[i] >> 6

weight = d * scale * (six bits - 32)
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.activation import fine8_d, fine8_h
from engine.kernels.op import AHEAD, part
from engine.kernels.simd import (
    L,
    add,
    bor,
    f32x8,
    fma,
    i8x16,
    interleave,
    load,
    lower,
    mask,
    mul,
    prefetch,
    read_f16,
    shl,
    shr,
    splat,
    stack,
    store,
    sum_lanes,
    u8x32,
    upper,
    write_f32,
    zeros,
)
from engine.kernels.tile import STAGE_2, STAGE_8, offset_at, scale_at, tile_dot_6bit_16
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.layouts import add_half, store_half, times

BLOCK = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    low = blocks["ql"].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = blocks["qh"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    values = (low | high << 4).astype(np.float32).reshape(-1, 16, 16) - np.float32(32)
    scale = blocks["d"].astype(np.float32)[:, None] * blocks["scales"].astype(np.float32)
    return (scale[:, :, None] * values).reshape(-1, 256)


@inline
def group_scales(block):
    """d * scale of the sixteen groups: two f32x8."""
    raw = load(i8x16, block + 192)
    d = read_f16(block + 208)
    return times(lower(raw), d), times(upper(raw), d)


@inline
def six_bits(block, half):
    """The 128 weights of a half, 0..63: four u8x32."""
    a, b = load(u8x32, block + 64 * half), load(u8x32, block + 64 * half + 32)
    h = load(u8x32, block + 128 + 32 * half)
    return (
        bor(mask(a, 15), shl(mask(h, 3), 4)),
        bor(mask(b, 15), shl(mask(h, 12), 2)),
        bor(shr(a, 4), mask(h, 48)),
        bor(shr(b, 4), shr(mask(h, 192), 2)),
    )


@part(6)
def dot_q6_k(w, row_bytes, n_rows, n_in, x, out):
    d_x, h_x = fine8_d(x, n_in), fine8_h(x, n_in)
    for r in range(n_rows):
        block = w + r * row_bytes
        even, odd = zeros(f32x8), zeros(f32x8)  # two sums: one would wait for itself
        offsets = zeros(f32x8)
        for b in range(n_in // 256):
            prefetch(block + AHEAD)
            prefetch(block + AHEAD + 64)
            prefetch(block + AHEAD + 128)
            prefetch(block + AHEAD + 192)
            first, second = group_scales(block)
            offsets = fma(first, load(f32x8, h_x + 64 * b), offsets)
            offsets = fma(second, load(f32x8, h_x + 64 * b + 32), offsets)
            x_b, d = x + 256 * b, d_x + 256 * b
            even, odd = add_half(even, odd, six_bits(block, 0), x_b, d, first)
            even, odd = add_half(even, odd, six_bits(block, 1), x_b + 128, d + 128, second)
            block += BYTES
        total = fma(offsets, splat(f32x8, -32.0), add(even, odd))
        write_f32(out + 4 * r, sum_lanes(total))


@part(6)
def unpack_q6_k(w, row_bytes, n_rows, k0, kn, tile):
    scale_out, offset_out = scale_at(tile, kn), offset_at(tile, kn, 16)
    rows = stack(STAGE_8)  # eight runs of L rows of 32 bytes
    scales, offsets = stack(STAGE_2), stack(STAGE_2)  # two runs of L rows of eight floats
    for b in range(kn // 256):
        for r in range(L):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 256 + b) * BYTES
            first, second = group_scales(block)
            store(scales + 32 * r, first)
            store(scales + (L + r) * 32, second)
            store(offsets + 32 * r, mul(first, splat(f32x8, -32.0)))
            store(offsets + (L + r) * 32, mul(second, splat(f32x8, -32.0)))
            store_half(rows + 32 * r, six_bits(block, 0))
            store_half(rows + (4 * L + r) * 32, six_bits(block, 1))
        for g in range(8):
            interleave(rows + g * L * 32, tile + (8 * b + g) * 32 * L)
        for half in range(2):
            interleave(scales + half * L * 32, scale_out + (16 * b + 8 * half) * 4 * L)
            interleave(offsets + half * L * 32, offset_out + (16 * b + 8 * half) * 4 * L)


QUANT = QuantType(
    "Q6_K", 14, BLOCK, 256, 16, dequantize, FewInput.FINE8, dot_q6_k, unpack_q6_k, tile_dot_6bit_16
)
