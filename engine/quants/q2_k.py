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
from engine.kernels.op import part
from engine.kernels.simd import (
    load,
    load_twice,
    mask,
    read_f16_pair,
    shr,
    shr_words,
    u8x16,
    u8x32,
)
from engine.kernels.tile import tile_dot_5bit_16
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.k_blocks import BY_16, unpack_blocks
from engine.quants.layouts import (
    at_most_32,
    times_16,
    words_of,
)
from engine.quants.row_loops import dot4_rows, dot_rows

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
def scales(block):
    """d * s and -dmin * m of the sixteen groups: two f32x16."""
    packed = load(u8x16, block)
    d, dmin = read_f16_pair(block + 80)
    return times_16(mask(packed, 15), d), times_16(shr(packed, 4), -dmin)


_DOWN_0, _DOWN_1 = words_of(0, 2), words_of(4, 6)


@inline
def two_bits(qs):
    """The 128 weights of the 32 bytes at qs, 0..3: two u8x64."""
    q = load_twice(u8x32, qs)
    return mask(shr_words(q, _DOWN_0), 3), mask(shr_words(q, _DOWN_1), 3)


@inline
def weights(block):
    """The 256 weights, 0..3: four u5x64."""
    w0, w1 = two_bits(block + 16)
    w2, w3 = two_bits(block + 48)
    return at_most_32(w0, w1, w2, w3)


_LAYOUT = BYTES, scales, weights


@part(6)
def dot_q2_k(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(BY_16, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_q2_k(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(BY_16, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_q2_k(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 16, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="Q2_K",
    ggml_type=10,
    block=BLOCK,
    block_size=256,
    group=16,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_q2_k,
    dot4=dot4_q2_k,
    unpack=unpack_q2_k,
    tile_dot=tile_dot_5bit_16,
)
