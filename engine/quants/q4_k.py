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
from engine.kernels.op import part
from engine.kernels.tile import tile_dot_4bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.k_blocks import BY_32, unpack_blocks
from engine.quants.layouts import (
    at_most_32,
    nibble_columns,
    nibble_pair,
    scales_and_minima,
    scales_of_nibbles,
)
from engine.quants.layouts import (
    unpack_scales_and_minima as scales,
)
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    s, m = scales_and_minima(blocks["scales"])
    scale = blocks["d"].astype(np.float32)[:, None] * s.astype(np.float32)
    minimum = blocks["dmin"].astype(np.float32)[:, None] * m.astype(np.float32)
    packed = blocks["qs"].reshape(-1, 4, 1, 32)
    nibbles = np.concatenate([packed & 15, packed >> 4], axis=2).reshape(-1, 8, 32)
    values = scale[:, :, None] * nibbles.astype(np.float32) - minimum[:, :, None]
    return values.reshape(-1, 256)


@inline
def weights(block):
    """The 256 weights, 0..15: four u5x64."""
    return at_most_32(
        nibble_pair(block + 16),
        nibble_pair(block + 48),
        nibble_pair(block + 80),
        nibble_pair(block + 112),
    )


@inline
def _columns(block):
    return nibble_columns(block + 16)


_LAYOUT = BYTES, scales_of_nibbles, _columns


@part(6)
def dot_q4_k(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(BY_32, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_q4_k(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(BY_32, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_q4_k(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 32, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="Q4_K",
    ggml_type=12,
    block=BLOCK,
    block_size=256,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_q4_k,
    dot4=dot4_q4_k,
    unpack=unpack_q4_k,
    tile_dot=tile_dot_4bit,
)
