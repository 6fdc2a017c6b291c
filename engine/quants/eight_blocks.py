"""Eight blocks of 32 weights taken as one of 256 (Q4_0 to Q8_0, IQ4_NL, MXFP4), for a dot product.

What lies in the blocks, a number of bytes (`step`) apart, is gathered in vectors.
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.activation import FINE16_BYTES
from engine.kernels.simd import (
    ANY_U8,
    PLANE_BITS,
    Lanes,
    add,
    add_16_where,
    concat,
    count_products,
    flip,
    fma_counts,
    fma_rows,
    four_vectors,
    i8x64,
    load,
    load_pieces,
    look_up,
    mask,
    merge,
    reinterpret,
    shl,
    shr_words,
    shuffle,
    u8x16,
    u8x64,
    u16x8,
    u16x16,
    u32x8,
    widen_f16,
)
from engine.quants.layouts import at_most_32, biased
from engine.quants.row_loops import dot1_rows, dot4_rows, write


@inline
def places(at, step):
    """Addresses in all eight blocks."""
    return (
        *(at, at + step, at + 2 * step, at + 3 * step),
        *(at + 4 * step, at + 5 * step, at + 6 * step, at + 7 * step),
    )


# The blocks in the order of fine16's columns (kernels/activation.py).
_COLUMNS = Lanes(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7)
_FIRST, _SECOND = (Lanes(*[2 * block + k for block in _COLUMNS.lanes]) for k in (0, 1))


@inline
def _unpack_eight(scales, weights, blocks):
    scale, offset = scales(blocks)
    return weights(blocks), scale, offset


@inline
def _add_eight(sums, rows, parts, x, x_bytes):
    w, scale, offset = parts
    high = count_products(rows, w, x, x_bytes)
    low = count_products(rows, w, x + 256, x_bytes)
    total = fma_rows(sums[0], offset, x + 576, x_bytes)
    counts = add(shl(high, PLANE_BITS), low)
    return fma_counts(total, counts, scale, x + 512, x_bytes), sums[1]


@inline
def dot_eights(scales, weights, block_bytes, w, row_bytes, n_rows, n_in, x, out):
    """QuantType.dot."""
    sizes, to = (8 * block_bytes, FINE16_BYTES), (x, 0, out, 0)
    at = w, row_bytes, n_rows, n_in
    dot1_rows(_unpack_eight, _add_eight, write, scales, weights, sizes, at, to)


@inline
def dot4_eights(
    scales, weights, block_bytes, w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes
):
    """QuantType.dot4."""
    sizes, to = (8 * block_bytes, FINE16_BYTES), (x, x_bytes, out, out_bytes)
    at = w, row_bytes, n_rows, n_in
    dot4_rows(n_x, _unpack_eight, _add_eight, write, scales, weights, sizes, at, to)


@inline
def of_columns(scales, bias):
    """(scale, offset) of eight blocks' scales, f32x8, for weights with `bias` added: f32x16."""
    return biased(shuffle(scales, _COLUMNS), bias)


@inline
def f16_scales(at, step, bias):
    """The same; at: address of the first block's scale, f16."""
    return of_columns(widen_f16(load_pieces(u16x8, places(at, step))), bias)


@inline
def f16_pairs(at, step):
    """(d, m) as (scale, offset). at: address of the first block's d and m, two f16."""
    numbers = widen_f16(reinterpret(u16x16, load_pieces(u32x8, places(at, step))))
    return shuffle(numbers, _FIRST), shuffle(numbers, _SECOND)


@inline
def _sixteens(at, step):
    """The sixteen bytes at each of eight places: of every second eight, and the other ones."""
    first = concat(
        concat(load(u8x16, at), load(u8x16, at + step)),
        concat(load(u8x16, at + 2 * step), load(u8x16, at + 3 * step)),
    )
    at += 4 * step
    last = concat(
        concat(load(u8x16, at), load(u8x16, at + step)),
        concat(load(u8x16, at + 2 * step), load(u8x16, at + 3 * step)),
    )
    return merge(first, last, _LOW_EIGHTS), merge(first, last, _HIGH_EIGHTS)


_LOW_EIGHTS = Lanes(*[k + 16 * i + j for i in range(4) for k in (0, 64) for j in range(8)])
_HIGH_EIGHTS = Lanes(*[k + 16 * i + j for i in range(4) for k in (8, 72) for j in range(8)])


@inline
def _nibbles(qs, step):
    a, b = _sixteens(qs, step)
    return mask(a, 15), mask(b, 15), mask(shr_words(a, _FOUR), 15), mask(shr_words(b, _FOUR), 15)


_FOUR = Lanes(*[4] * 32)


@inline
def nibbles(qs, step):
    """The 256 weights, 0..15: a tile of u5x64. qs: address of the first block's nibbles."""
    w0, w1, w2, w3 = _nibbles(qs, step)
    return four_vectors(*at_most_32(w0, w1, w2, w3))


# The k-th byte of each column's word, eight times: k-th bytes of a block have its next eight bits.
_BYTE_0, _BYTE_1, _BYTE_2, _BYTE_3 = (Lanes(*[i // 8 * 8 + k for i in range(64)]) for k in range(4))


@inline
def five_bits(qs, qh, step):
    """The 256 weights, 0..31: a tile of u5x64. qh: address of the first block's fifth bits."""
    w0, w1, w2, w3 = _nibbles(qs, step)
    bits = reinterpret(u8x64, shuffle(load_pieces(u32x8, places(qh, step)), _COLUMNS))
    return four_vectors(
        *at_most_32(
            add_16_where(w0, shuffle(bits, _BYTE_0)),
            add_16_where(w1, shuffle(bits, _BYTE_1)),
            add_16_where(w2, shuffle(bits, _BYTE_2)),
            add_16_where(w3, shuffle(bits, _BYTE_3)),
        )
    )


@inline
def looked_up(qs, step, table):
    """Those that the 256 nibbles choose from a table of sixteen: four vectors."""
    w0, w1, w2, w3 = _nibbles(qs, step)
    return look_up(w0, table), look_up(w1, table), look_up(w2, table), look_up(w3, table)


# Some CPUs do not multiply bytes above 127 as unsigned: there they are signed.
BYTE_BIAS = 128 if ANY_U8 else 0  # what `signed_bytes` adds


@inline
def _signed(v):
    return flip(v, 128) if ANY_U8 else reinterpret(i8x64, v)


@inline
def signed_bytes(qs, step):
    """The 256 weights, i8, as a tile of i8x64, or with BYTE_BIAS added as one of u8x64."""
    a, b = _sixteens(qs, step)
    c, d = _sixteens(qs + 16, step)
    return four_vectors(_signed(a), _signed(b), _signed(c), _signed(d))
