"""Eight blocks of 32 weights taken as one of 256 (Q4_0 to Q8_0, IQ4_NL, MXFP4), for k_blocks.py.

What lies in the blocks, a number of bytes (`step`) apart, is gathered in vectors.
"""

from __future__ import annotations

import numpy as np

from engine.jit import PROFILE, inline
from engine.kernels.simd import (
    Lanes,
    add_16_where,
    concat,
    flip,
    i8x32,
    load,
    load_pieces,
    load_twice,
    mask,
    read_i32,
    reinterpret,
    shr_lanes,
    shuffle,
    u8x16,
    u8x32,
    u8x64,
    u16x8,
    u16x16,
    u32x8,
    u32x16,
    widen_f16,
)
from engine.quants.layouts import at_most_32, biased, twice


@inline
def places(at, step):
    """Addresses in all eight blocks."""
    return (
        *(at, at + step, at + 2 * step, at + 3 * step),
        *(at + 4 * step, at + 5 * step, at + 6 * step, at + 7 * step),
    )


@inline
def f16_scales(at, step, bias):
    """(scale, offset) for each 16 weights, unpacked with `bias` added: two f32x16.

    at: address of the first block's scale, f16.
    """
    return biased(twice(widen_f16(load_pieces(u16x8, places(at, step)))), bias)


_FIRST_TWICE, _SECOND_TWICE = (Lanes(*[i // 2 * 2 + k for i in range(16)]) for k in (0, 1))


@inline
def f16_pairs(at, step):
    """(d, m) for each 16 weights: two f32x16. at: address of the first block's d, m, two f16."""
    pairs = load_pieces(u32x8, places(at, step))
    numbers = widen_f16(reinterpret(u16x16, pairs))
    return shuffle(numbers, _FIRST_TWICE), shuffle(numbers, _SECOND_TWICE)


_DOWN = Lanes(*[0, 0, 0, 0, 4, 4, 4, 4] * 2)


@inline
def _two_nibbles(qs, step):
    """The low nibbles of the sixteen bytes at qs, the high ones, then those of the next block."""
    packed = concat(load_twice(u8x16, qs), load_twice(u8x16, qs + step))
    return mask(reinterpret(u8x64, shr_lanes(reinterpret(u32x16, packed), _DOWN)), 15)


@inline
def nibbles(qs, step):
    """The 256 weights, 0..15: four u5x64. qs: address of the first block's nibbles."""
    return at_most_32(
        _two_nibbles(qs, step),
        _two_nibbles(qs + 2 * step, step),
        _two_nibbles(qs + 4 * step, step),
        _two_nibbles(qs + 6 * step, step),
    )


@inline
def _two_five_bits(qs, qh, step):
    low, high = np.int64(read_i32(qh)) & 0xFFFFFFFF, np.int64(read_i32(qh + step)) << 32
    return add_16_where(_two_nibbles(qs, step), low | high)


@inline
def five_bits(qs, qh, step):
    """The 256 weights, 0..31: four u5x64. qh: address of the first block's fifth bits."""
    return at_most_32(
        _two_five_bits(qs, qh, step),
        _two_five_bits(qs + 2 * step, qh + 2 * step, step),
        _two_five_bits(qs + 4 * step, qh + 4 * step, step),
        _two_five_bits(qs + 6 * step, qh + 6 * step, step),
    )


# Bytes above 128 would overflow the 16-bit sums of some CPUs: there they are multiplied as signed.
SIGNED = PROFILE.dot == "maddubs"
BYTE_BIAS = 0 if SIGNED else 128  # what `signed_bytes` adds


@inline
def _two_bytes(qs, step):
    if SIGNED:
        return concat(load(i8x32, qs), load(i8x32, qs + step))
    return flip(concat(load(u8x32, qs), load(u8x32, qs + step)), 128)


@inline
def signed_bytes(qs, step):
    """The 256 weights, i8, as four i8x64, or with BYTE_BIAS added as four u8x64."""
    return (
        _two_bytes(qs, step),
        _two_bytes(qs + 2 * step, step),
        _two_bytes(qs + 4 * step, step),
        _two_bytes(qs + 6 * step, step),
    )
