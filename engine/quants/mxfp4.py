"""MXFP4: 32 weights in 17 bytes: 4-bit floats (1 bit sign, 2 exponent, 1 mantissa), one scale.

e   u8        scale: a power of two
qs  u8[16]    low nibbles: weights 0..15, high nibbles: weights 16..31

weight = 2^(e - 128) * VALUES[nibble], VALUES being the floats doubled: integers
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import (
    Field,
    Lanes,
    convert,
    f32x8,
    four_vectors,
    i32x8,
    load_field,
    look_up,
    plus,
    read_f32,
    read_u8,
    reinterpret,
    shl,
    splat,
    u8x8,
    where_less,
)
from engine.kernels.tile import tile_dot_5bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.eight_blocks import EIGHTS, looked_up, of_columns
from engine.quants.layouts import at_most_32, nibbles
from engine.quants.nibble_tables import unpack_nibble_tables
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype([("e", "u1"), ("qs", "u1", 16)])
BYTES = BLOCK.itemsize
_E, _QS = Field(0, BYTES), Field(1, BYTES)
VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
BIAS = 12
SIGNED = Lanes(*VALUES)
BIASED = Lanes(*(value + BIAS for value in VALUES))
SCALES = np.ldexp(np.float32(1), np.arange(256) - 128)  # all of them; the first two are denormal


def dequantize(blocks: Blocks) -> Floats:
    nibbles = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=1)
    return SCALES[blocks["e"]][:, None] * np.array(VALUES, np.float32)[nibbles]


@inline
def _scale(block):
    return read_f32(np.int64(SCALES.ctypes.data) + 4 * read_u8(block))


@inline
def _weights(block):
    return look_up(nibbles(block + 1), SIGNED)


@inline
def _eight_scales(blocks):
    e = convert(i32x8, load_field(u8x8, blocks, _E))
    normal, denormal = shl(plus(e, -1), 23), shl(plus(e, 1), 21)  # the floats' bits
    bits = where_less(e, splat(i32x8, 2), denormal, normal)
    return of_columns(reinterpret(f32x8, bits), BIAS)


@inline
def _eight_weights(blocks):
    return four_vectors(*at_most_32(*looked_up(blocks, _QS, BIASED)))


_LAYOUT = 8 * BYTES, _eight_scales, _eight_weights


@part(6)
def dot_mxfp4(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(EIGHTS, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_mxfp4(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(EIGHTS, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_mxfp4(w, row_bytes, n_rows, k0, kn, tile):
    unpack_nibble_tables(_scale, _weights, BIAS, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="MXFP4",
    ggml_type=39,
    block=BLOCK,
    block_size=32,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.FINE16,
    dot=dot_mxfp4,
    dot4=dot4_mxfp4,
    unpack=unpack_mxfp4,
    tile_dot=tile_dot_5bit,
)
