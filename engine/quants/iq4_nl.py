"""IQ4_NL: 32 weights in 18 bytes, one scale, values from a table of sixteen that lie closer at 0.

d   f16       scale
qs  u8[16]    low nibbles: weights 0..15, high nibbles: weights 16..31

weight = d * VALUES[nibble]
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import ANY_U8, Field, Lanes, four_vectors, look_up, read_f16
from engine.kernels.tile import tile_dot_8bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.eight_blocks import EIGHTS, f16_scales, looked_up
from engine.quants.layouts import nibbles
from engine.quants.nibble_tables import unpack_nibble_tables
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
BYTES = BLOCK.itemsize
_D, _QS = Field(0, BYTES), Field(2, BYTES)
VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
BIAS = 128
SIGNED = Lanes(*VALUES)
BIASED = Lanes(*(value + BIAS for value in VALUES))


def dequantize(blocks: Blocks) -> Floats:
    d = blocks["d"].astype(np.float32)[:, None]
    nibbles = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=1)
    return d * np.array(VALUES, np.float32)[nibbles]


@inline
def _weights(block):
    return look_up(nibbles(block + 2), SIGNED)


# Some CPUs do not multiply bytes above 127 as unsigned: there they are signed.
_TABLE, _TABLE_BIAS = (BIASED, BIAS) if ANY_U8 else (SIGNED, 0)


@inline
def _eight_scales(blocks):
    return f16_scales(blocks, _D, _TABLE_BIAS)


@inline
def _eight_weights(blocks):
    return four_vectors(*looked_up(blocks, _QS, _TABLE))


_LAYOUT = 8 * BYTES, _eight_scales, _eight_weights


@part(6)
def dot_iq4_nl(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(EIGHTS, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_iq4_nl(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(EIGHTS, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_iq4_nl(w, row_bytes, n_rows, k0, kn, tile):
    unpack_nibble_tables(read_f16, _weights, BIAS, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="IQ4_NL",
    ggml_type=20,
    block=BLOCK,
    block_size=32,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.FINE16,
    dot=dot_iq4_nl,
    dot4=dot4_iq4_nl,
    unpack=unpack_iq4_nl,
    tile_dot=tile_dot_8bit,
)
