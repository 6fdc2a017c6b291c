"""Layouts that the blocks of several types share: how weights and scales are packed.

Nibbles and fifth bits (Q4_0 to Q5_1), six-bit scales and minima (Q4_K, Q5_K), halves of 128 weights
with a scale for each 16 (Q2_K, Q3_K, Q6_K), and scales of the IQ types.
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.simd import (
    ANY_U8,
    Lanes,
    bor,
    concat,
    constant,
    convert,
    f32x8,
    f32x16,
    four_vectors,
    i32x8,
    i32x16,
    load,
    load_bits,
    load_twice,
    mask,
    mask_lanes,
    merge,
    mul,
    plus,
    read_f16_pair,
    reinterpret,
    shl,
    shr,
    shr_lanes,
    shr_words,
    shuffle,
    splat,
    u5x64,
    u8x16,
    u8x32,
    u8x64,
    u32x4,
    u32x8,
    u32x16,
    upper,
)
from engine.quants.base import Blocks


@inline
def at_most_32(w0, w1, w2, w3):
    """The weights of a block, whose type then tells how small they are: four u5x64."""
    return (
        reinterpret(u5x64, w0),
        reinterpret(u5x64, w1),
        reinterpret(u5x64, w2),
        reinterpret(u5x64, w3),
    )


@inline
def nibbles(qs):
    """The 32 weights of the sixteen bytes at qs, 0..15: low nibbles, then high ones."""
    packed = load(u8x16, qs)
    return concat(mask(packed, 15), shr(packed, 4))


@inline
def five_bits(qs, qh):
    """Those weights with the fifth bits at qh, lowest first: 0..31."""
    return bor(nibbles(qs), load_bits(u8x32, qh, 16, 0))


@inline
def times_16(integers, factor):
    """Sixteen u8 or i8, as floats, times a number."""
    return mul(convert(f32x16, convert(i32x16, integers)), splat(f32x16, factor))


_TWICE = Lanes(*[i // 2 for i in range(16)])


@inline
def twice(scales):
    """Scales of eight groups of 32 as those of sixteen groups of 16: f32x8 -> f32x16."""
    return shuffle(scales, _TWICE)


@inline
def odd_times(integers, factor):
    """Eight u32 below 2^31, doubled and 1 more, as floats, times a number."""
    odd = plus(shl(integers, 1), 1)
    return mul(convert(f32x8, reinterpret(i32x8, odd)), splat(f32x8, factor))


@inline
def biased(scale, bias):
    """(scale, offset) for weights unpacked with `bias` added: two f32x16."""
    return scale, mul(scale, splat(f32x16, -1.0 * bias))


def nibbles_in_turn(packed: Blocks) -> Blocks:
    """u8[n, k] -> u8[n, 2 k]: the low nibble of each byte, then its high one."""
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)


_NIBBLE = Lanes(*range(0, 32, 4))


@inline
def eight_nibbles(word):
    """The nibbles of a 32-bit number, the lowest first: u32x8."""
    return mask(shr_lanes(splat(u32x8, word), _NIBBLE), 15)


def scales_and_minima(packed: Blocks) -> tuple[Blocks, Blocks]:
    """The 6-bit scales and minima of u8[n, 12]: two u8[n, 8]."""
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=1)
    minima = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=1)
    return scales, minima


# Of the block's first four 32-bit words: d and dmin, then bytes 0-3, 4-7 and 8-11 of the scales.
_AB, _C = Lanes(1, 2), Lanes(3, 3)
_NIBBLE_OF = Lanes(0, 4)  # what c is shifted right by, for s4..s7 and for m4..m7
_S_THEN_M = Lanes(0, 2, 1, 3)

_UPPER_TWICE = Lanes(*[8 + i // 2 for i in range(16)])


@inline
def _six_bits(block):
    """s0..s7, m0..m7 of the Q4_K or Q5_K block at `block`: u8x16."""
    head = load(u32x4, block)
    ab, c = shuffle(head, _AB), shuffle(head, _C)
    fours = mask(shr_lanes(c, _NIBBLE_OF), 0x0F0F0F0F)
    high = bor(fours, mask(shr(ab, 2), 0x30303030))  # s4..s7, m4..m7
    low = mask(ab, 0x3F3F3F3F)  # s0..s3, m0..m3
    return reinterpret(u8x16, merge(low, high, _S_THEN_M))


@inline
def unpack_scales_and_minima(block):
    """(d * s, -dmin * m) for each 16 weights of the Q4_K or Q5_K block at `block`: two f32x16."""
    six_bits = _six_bits(block)
    d, dmin = read_f16_pair(block)
    # Each twice: as the scales of two groups of 16.
    return (
        times_16(shuffle(six_bits, _TWICE), d),
        times_16(shuffle(six_bits, _UPPER_TWICE), -dmin),
    )


# In the order of fine8's columns (kernels/activation.py), lanes 0-7 hold low nibbles and lanes 8-15
# high ones. Where any byte is multiplied as unsigned, high nibbles stay where they are in it, worth
# sixteen times as much; else they are shifted.
_IN_COLUMNS = Lanes(*[(4 * j + i) // 2 for i in range(4) for j in range(4)])
_WORTH = Lanes(*[1.0] * 8, *[1 / 16 if ANY_U8 else 1.0] * 8)
_OWN_NIBBLE = Lanes(*[15] * 32, *[240] * 32)
# The words of 32 bits that are quarter c of each column, low nibbles and high ones.
_QUARTER_0, _QUARTER_1, _QUARTER_2, _QUARTER_3 = (
    Lanes(*[4 * (2 * j + i % 2) + c for i in range(4) for j in range(4)]) for c in range(4)
)


@inline
def scales_of_columns(block):
    """(d * s for each column, f32x16, -dmin * m for each 32 weights, f32x8)."""
    six_bits = _six_bits(block)
    d, dmin = read_f16_pair(block)
    m = convert(f32x8, convert(i32x8, upper(six_bits)))
    return times_16(shuffle(six_bits, _IN_COLUMNS), d), mul(m, splat(f32x8, -dmin))


@inline
def scales_of_nibbles(block):
    """The same for what `nibble_columns` returns."""
    scale, offset = scales_of_columns(block)
    return mul(scale, constant(f32x16, _WORTH)), offset


@inline
def _own_nibbles(words):
    packed = reinterpret(u8x64, words)
    return mask_lanes(packed, _OWN_NIBBLE) if ANY_U8 else mask(shr_words(packed, _FOUR_UP), 15)


@inline
def nibble_columns(qs):
    """The nibbles of 128 bytes in columns, as they are in their bytes: a tile."""
    a, b = load(u32x16, qs), load(u32x16, qs + 64)
    w0, w1 = _own_nibbles(merge(a, b, _QUARTER_0)), _own_nibbles(merge(a, b, _QUARTER_1))
    w2, w3 = _own_nibbles(merge(a, b, _QUARTER_2)), _own_nibbles(merge(a, b, _QUARTER_3))
    return four_vectors(w0, w1, w2, w3) if ANY_U8 else four_vectors(*at_most_32(w0, w1, w2, w3))


def bytes_of(first: int, second: int) -> Lanes:
    """Constants for 64 bytes: one for the first 32, another for the others."""
    return Lanes(*[first] * 32, *[second] * 32)


def words_of(first: int, second: int) -> Lanes:
    """The same for their 32 words of 16 bits."""
    return Lanes(*[first] * 16, *[second] * 16)


_FOUR_UP = words_of(0, 4)


@inline
def nibble_pair(qs):
    """The low nibbles of the 32 bytes at qs, then the high ones: u8x64."""
    return mask(shr_words(load_twice(u8x32, qs), _FOUR_UP), 15)
