"""Eight blocks of 32 weights taken as one of 256 (Q4_0 to Q8_0, IQ4_NL, MXFP4), for a dot product.

A type tells how they are unpacked, in two functions:

    scales(blocks)    (scale, offset) for fine16's columns (kernels/activation.py), two f32x16
    weights(blocks)   the 256 weights in fine16's order, a tile

What lies in the blocks is gathered in vectors, field by field (simd/eights.py).
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.activation import (
    BLOCK_OF_COLUMN,
    FINE16_BYTES,
    FINE16_D,
    FINE16_H,
    FINE16_LOW,
)
from engine.kernels.simd import (
    ANY_U8,
    PLANE_BITS,
    Lanes,
    add,
    add_fifth_bits,
    count_products,
    flip,
    fma_counts,
    fma_rows,
    four_vectors,
    i8x64,
    load_field,
    load_sixteens,
    look_up,
    mask,
    reinterpret,
    shl,
    shr_words,
    shuffle,
    u16x8,
    u16x16,
    u32x8,
    widen_f16,
)
from engine.quants.layouts import at_most_32, biased
from engine.quants.row_loops import add_shared, end_one

_FIRST, _SECOND = (Lanes(*[2 * block + k for block in BLOCK_OF_COLUMN.lanes]) for k in (0, 1))


@inline
def _unpack(scales, weights, blocks):
    scale, offset = scales(blocks)
    return weights(blocks), scale, offset


@inline
def _add(sums, rows, parts, x, x_bytes):
    w, scale, offset = parts
    high = count_products(rows, w, x, x_bytes)
    low = count_products(rows, w, x + FINE16_LOW, x_bytes)
    total = fma_rows(sums[0], offset, x + FINE16_H, x_bytes)
    counts = add(shl(high, PLANE_BITS), low)
    return fma_counts(total, counts, scale, x + FINE16_D, x_bytes), sums[1]


# The product, for dot_rows and dot4_rows of row_loops.py.
EIGHTS = 8, FINE16_BYTES, _unpack, _add, end_one, add_shared


@inline
def of_columns(scales, bias):
    """(scale, offset) of eight blocks' scales, f32x8, for weights with `bias` added: f32x16."""
    return biased(shuffle(scales, BLOCK_OF_COLUMN), bias)


@inline
def f16_scales(blocks, d, bias):
    """The same; d: the blocks' field of their scales, f16."""
    return of_columns(widen_f16(load_field(u16x8, blocks, d)), bias)


@inline
def f16_pairs(blocks, d_and_m):
    """(d, m) as (scale, offset). d_and_m: the blocks' field of two f16."""
    numbers = widen_f16(reinterpret(u16x16, load_field(u32x8, blocks, d_and_m)))
    return shuffle(numbers, _FIRST), shuffle(numbers, _SECOND)


@inline
def _nibbles(blocks, qs):
    a, b = load_sixteens(blocks, qs)
    return mask(a, 15), mask(b, 15), mask(shr_words(a, _FOUR), 15), mask(shr_words(b, _FOUR), 15)


_FOUR = Lanes(*[4] * 32)


@inline
def nibbles(blocks, qs):
    """The 256 weights, 0..15: a tile of u5x64. qs: the blocks' field of their nibbles."""
    w0, w1, w2, w3 = _nibbles(blocks, qs)
    return four_vectors(*at_most_32(w0, w1, w2, w3))


@inline
def five_bits(blocks, qs, qh):
    """The 256 weights, 0..31: a tile of u5x64. qh: the blocks' field of their fifth bits."""
    w0, w1, w2, w3 = _nibbles(blocks, qs)
    return four_vectors(*at_most_32(*add_fifth_bits(w0, w1, w2, w3, blocks, qh)))


@inline
def looked_up(blocks, qs, table):
    """Those that the 256 nibbles choose from a table of sixteen: four vectors."""
    w0, w1, w2, w3 = _nibbles(blocks, qs)
    return look_up(w0, table), look_up(w1, table), look_up(w2, table), look_up(w3, table)


# Some CPUs do not multiply bytes above 127 as unsigned: there they are signed.
BYTE_BIAS = 128 if ANY_U8 else 0  # what `signed_bytes` adds


@inline
def _signed(v):
    return flip(v, 128) if ANY_U8 else reinterpret(i8x64, v)


@inline
def signed_bytes(blocks, first, second):
    """The 256 weights, i8, as a tile of i8x64, or with BYTE_BIAS added as one of u8x64.

    first, second: the blocks' fields of 16 weights each.
    """
    a, b = load_sixteens(blocks, first)
    c, d = load_sixteens(blocks, second)
    return four_vectors(_signed(a), _signed(b), _signed(c), _signed(d))
