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
from engine.kernels.simd import f32x8, load, mask, read_f16, shr_scalar, splat, store, u8x32
from engine.kernels.tile import tile_dot_4bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.byte_blocks import dot_byte_blocks, unpack_byte_blocks

BLOCK = np.dtype([("qs", "u1", 64), ("d", "<f2")])
BYTES = BLOCK.itemsize
BIAS = 1


def dequantize(blocks: Blocks) -> Floats:
    bits = blocks["qs"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    values = bits.reshape(-1, 256).astype(np.float32) - np.float32(1)
    return blocks["d"].astype(np.float32)[:, None] * values


@inline
def _head(block, place):
    store(place, splat(f32x8, read_f16(block + 64)))


@inline
def _weights(block, place, g):
    return mask(shr_scalar(load(u8x32, block + g // 4 * 32), g % 4 * 2), 3)


@part(6)
def dot_tq2_0(w, row_bytes, n_rows, n_in, x, out):
    dot_byte_blocks(_head, _weights, 32, BIAS, BYTES, w, row_bytes, n_rows, n_in, x, out)


@part(6)
def unpack_tq2_0(w, row_bytes, n_rows, k0, kn, tile):
    unpack_byte_blocks(_head, _weights, 32, BIAS, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    "TQ2_0", 35, BLOCK, 256, 32, dequantize, FewInput.FINE8,
    dot_tq2_0, unpack_tq2_0, tile_dot_4bit,
)  # fmt: skip
