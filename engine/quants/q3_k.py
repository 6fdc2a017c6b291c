"""Q3_K: 256 weights in 110 bytes: sixteen groups of 16, each with a 6-bit scale, values -4..3.

hmask   u8[32]    bit j of byte i: the third bit of weight 32 j + i
qs      u8[64]    low two bits
scales  u8[12]    s0..s15, six bits each:

        byte 0..3     low nibbles of s0..s3 in bits 0-3, of s8..s11 in bits 4-7
        byte 4..7     low nibbles of s4..s7 in bits 0-3, of s12..s15 in bits 4-7
        byte 8..11    high bits of s0..s3 in bits 0-1, of s4..s7 in bits 2-3, of s8..s11 in
                      bits 4-5, of s12..s15 in bits 6-7

d       f16

Two halves of 128 weights. In half h, byte i = 0..31 of its 32 of qs holds weights i, i + 32, i + 64
and i + 96, from the lowest bits up.

weight = d * (s - 32) * (three bits - 4)
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.activation import fine8_d, fine8_h
from engine.kernels.op import AHEAD, part
from engine.kernels.simd import (
    L,
    Lanes,
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
    plus,
    prefetch,
    read_f16,
    reinterpret,
    shl,
    shr,
    shr_lanes,
    shuffle,
    splat,
    stack,
    store,
    sum_lanes,
    u8x32,
    u32x4,
    upper,
    write_f32,
    zeros,
)
from engine.kernels.tile import STAGE_2, STAGE_8, offset_at, scale_at, tile_dot_5bit_16
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.layouts import add_half, store_half, times

BLOCK = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    nibbles, pairs = blocks["scales"][:, :8], blocks["scales"][:, 8:]
    low = np.concatenate([nibbles & 15, nibbles >> 4], axis=1)
    high = pairs[:, None, :] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    scale = (low | high.reshape(-1, 16) << 4).astype(np.float32) - np.float32(32)
    scale = blocks["d"].astype(np.float32)[:, None] * scale
    low = blocks["qs"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    high = blocks["hmask"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    values = low.reshape(-1, 16, 16) | high.reshape(-1, 16, 16) << 2
    values = scale[:, :, None] * (values.astype(np.float32) - np.float32(4))
    return values.reshape(-1, 256)


# Of four 32-bit words: the last four bytes of qs, then bytes 0-3, 4-7 and 8-11 of the scales.
_NIBBLES, _PAIRS = Lanes(1, 2, 1, 2), Lanes(3, 3, 3, 3)
_NIBBLE_OF, _PAIR_OF = Lanes(0, 0, 4, 4), Lanes(0, 2, 4, 6)  # what they are shifted right by


@inline
def group_scales(block):
    """d * (s - 32) of the sixteen groups: two f32x8."""
    words = load(u32x4, block + 92)
    low = mask(shr_lanes(shuffle(words, _NIBBLES), _NIBBLE_OF), 0x0F0F0F0F)
    high = mask(shr_lanes(shuffle(words, _PAIRS), _PAIR_OF), 0x03030303)
    raw = plus(reinterpret(i8x16, bor(low, shl(high, 4))), -32)
    d = read_f16(block + 108)
    return times(lower(raw), d), times(upper(raw), d)


@inline
def first_half(block):
    """The first 128 weights, 0..7: four u8x32."""
    h, q = load(u8x32, block), load(u8x32, block + 32)
    return (
        bor(mask(q, 3), mask(shl(h, 2), 4)),
        bor(mask(shr(q, 2), 3), mask(shl(h, 1), 4)),
        bor(mask(shr(q, 4), 3), mask(h, 4)),
        bor(shr(q, 6), mask(shr(h, 1), 4)),
    )


@inline
def second_half(block):
    """The last 128 weights, 0..7: four u8x32."""
    h, q = load(u8x32, block), load(u8x32, block + 64)
    return (
        bor(mask(q, 3), mask(shr(h, 2), 4)),
        bor(mask(shr(q, 2), 3), mask(shr(h, 3), 4)),
        bor(mask(shr(q, 4), 3), mask(shr(h, 4), 4)),
        bor(shr(q, 6), mask(shr(h, 5), 4)),
    )


@part(6)
def dot_q3_k(w, row_bytes, n_rows, n_in, x, out):
    d_x, h_x = fine8_d(x, n_in), fine8_h(x, n_in)
    for r in range(n_rows):
        block = w + r * row_bytes
        even, odd = zeros(f32x8), zeros(f32x8)  # two sums: one would wait for itself
        offsets = zeros(f32x8)
        for b in range(n_in // 256):
            prefetch(block + AHEAD)
            prefetch(block + AHEAD + 64)
            first, second = group_scales(block)
            offsets = fma(first, load(f32x8, h_x + 64 * b), offsets)
            offsets = fma(second, load(f32x8, h_x + 64 * b + 32), offsets)
            x_b, d = x + 256 * b, d_x + 256 * b
            even, odd = add_half(even, odd, first_half(block), x_b, d, first)
            even, odd = add_half(even, odd, second_half(block), x_b + 128, d + 128, second)
            block += BYTES
        total = fma(offsets, splat(f32x8, -4.0), add(even, odd))
        write_f32(out + 4 * r, sum_lanes(total))


@part(6)
def unpack_q3_k(w, row_bytes, n_rows, k0, kn, tile):
    scale_out, offset_out = scale_at(tile, kn), offset_at(tile, kn, 16)
    rows = stack(STAGE_8)  # eight runs of L rows of 32 bytes
    scales, offsets = stack(STAGE_2), stack(STAGE_2)  # two runs of L rows of eight floats
    for b in range(kn // 256):
        for r in range(L):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 256 + b) * BYTES
            first, second = group_scales(block)
            store(scales + 32 * r, first)
            store(scales + (L + r) * 32, second)
            store(offsets + 32 * r, mul(first, splat(f32x8, -4.0)))
            store(offsets + (L + r) * 32, mul(second, splat(f32x8, -4.0)))
            store_half(rows + 32 * r, first_half(block))
            store_half(rows + (4 * L + r) * 32, second_half(block))
        for g in range(8):
            interleave(rows + g * L * 32, tile + (8 * b + g) * 32 * L)
        for half in range(2):
            interleave(scales + half * L * 32, scale_out + (16 * b + 8 * half) * 4 * L)
            interleave(offsets + half * L * 32, offset_out + (16 * b + 8 * half) * 4 * L)


QUANT = QuantType(
    "Q3_K", 11, BLOCK, 256, 16, dequantize, FewInput.FINE8, dot_q3_k, unpack_q3_k, tile_dot_5bit_16
)
