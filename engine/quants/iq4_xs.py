"""IQ4_XS: 256 weights in 136 bytes: eight groups of 32 with 6-bit scales, values as in IQ4_NL.

d         f16       scale of the scales
scales_h  u16       bits 2 g and 2 g + 1: the high bits of group g's scale s
scales_l  u8[4]     its low four: group 2 i in the low nibble of byte i, 2 i + 1 in the high one
qs        u8[128]   16 bytes for a group: low nibbles weights 0..15, high nibbles weights 16..31

weight = d * (s - 32) * VALUES[nibble]
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import (
    Lanes,
    bor,
    convert,
    f32x8,
    i32x8,
    look_up,
    mask,
    mul,
    plus,
    read_f16,
    read_i32,
    read_u16,
    reinterpret,
    shl,
    shr_lanes,
    splat,
    store,
    u32x8,
)
from engine.kernels.tile import tile_dot_8bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.byte_blocks import dot_byte_blocks, unpack_byte_blocks
from engine.quants.iq4_nl import BIAS, BIASED, VALUES
from engine.quants.layouts import eight_nibbles, nibbles, nibbles_in_turn

BLOCK = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)])
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    low = nibbles_in_turn(blocks["scales_l"])
    high = blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scale = (low | high << 4).astype(np.float32) - np.float32(32)
    scale = blocks["d"].astype(np.float32)[:, None] * scale
    packed = blocks["qs"].reshape(-1, 8, 16)
    values = np.array(VALUES, np.float32)[np.concatenate([packed & 15, packed >> 4], axis=2)]
    return (scale[:, :, None] * values).reshape(-1, 256)


_HIGH = Lanes(*range(0, 16, 2))  # where the high bits of each scale are


@inline
def _head(block, place):
    low = eight_nibbles(read_i32(block + 4))
    high = mask(shr_lanes(splat(u32x8, read_u16(block + 2)), _HIGH), 3)
    s = plus(reinterpret(i32x8, bor(low, shl(high, 4))), -32)
    store(place, mul(convert(f32x8, s), splat(f32x8, read_f16(block))))


@inline
def _weights(block, place, g):
    return look_up(nibbles(block + 8 + 16 * g), BIASED)


@part(6)
def dot_iq4_xs(w, row_bytes, n_rows, n_in, x, out):
    dot_byte_blocks(_head, _weights, 32, BIAS, BYTES, w, row_bytes, n_rows, n_in, x, out)


@part(6)
def unpack_iq4_xs(w, row_bytes, n_rows, k0, kn, tile):
    unpack_byte_blocks(_head, _weights, 32, BIAS, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    "IQ4_XS", 23, BLOCK, 256, 32, dequantize, FewInput.FINE8,
    dot_iq4_xs, unpack_iq4_xs, tile_dot_8bit,
)  # fmt: skip
