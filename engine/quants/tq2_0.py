"""TQ2_0: 256 weights in 66 bytes, one scale, values -1, 0 and 1 in two bits each.

qs  u8[64]
d   f16       scale

Two halves of 128 weights. In half h, byte i = 0..31 of its 32 holds weights i, i + 32, i + 64 and
i + 96, from the lowest bits up.

weight = d * (two bits - 1)
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import f32x16, read_f16, splat
from engine.kernels.tile import tile_dot_4bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.k_blocks import BY_16, unpack_blocks
from engine.quants.layouts import at_most_32, biased
from engine.quants.q2_k import two_bits
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype([("qs", "u1", 64), ("d", "<f2")])
BYTES = BLOCK.itemsize
BIAS = 1


def dequantize(blocks: Blocks) -> Floats:
    bits = blocks["qs"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    values = bits.reshape(-1, 256).astype(np.float32) - np.float32(1)
    return blocks["d"].astype(np.float32)[:, None] * values


@inline
def scales(block):
    """(scale, offset) for each 16 weights: two f32x16."""
    return biased(splat(f32x16, read_f16(block + 64)), BIAS)


@inline
def weights(block):
    """The 256 weights, BIAS added to each: four u5x64."""
    w0, w1 = two_bits(block)
    w2, w3 = two_bits(block + 32)
    return at_most_32(w0, w1, w2, w3)


_LAYOUT = BYTES, scales, weights


@part(6)
def dot_tq2_0(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(BY_16, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_tq2_0(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(BY_16, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_tq2_0(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 32, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="TQ2_0",
    ggml_type=35,
    block=BLOCK,
    block_size=256,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_tq2_0,
    dot4=dot4_tq2_0,
    unpack=unpack_tq2_0,
    tile_dot=tile_dot_4bit,
)
