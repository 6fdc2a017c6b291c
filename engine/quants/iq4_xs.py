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
    ANY_U8,
    Lanes,
    bor,
    convert,
    f32x8,
    f32x16,
    i32x8,
    load,
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
    shr_words,
    shuffle,
    splat,
    u8x32,
    u32x8,
    zeros,
)
from engine.kernels.tile import tile_dot_8bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.iq4_nl import BIAS, BIASED, SIGNED, VALUES
from engine.quants.k_blocks import BY_16, unpack_blocks
from engine.quants.layouts import biased, eight_nibbles, nibbles_in_turn, twice
from engine.quants.row_loops import dot4_rows, dot_rows

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
_SIXTEENS_TWICE = Lanes(*[i // 32 * 16 + i % 16 for i in range(64)])
_DOWN = Lanes(*[i // 8 % 2 * 4 for i in range(32)])  # what their 16-bit words are shifted by


@inline
def _scale(block):
    """d * (s - 32) for each 16 weights: f32x16."""
    low = eight_nibbles(read_i32(block + 4))
    high = mask(shr_lanes(splat(u32x8, read_u16(block + 2)), _HIGH), 3)
    s = plus(reinterpret(i32x8, bor(low, shl(high, 4))), -32)
    return twice(mul(convert(f32x8, s), splat(f32x8, read_f16(block))))


@inline
def _codes(block):
    """The 256 nibbles in the weights' order: four u8x64."""
    qs = block + 8
    return (
        _two_groups(qs),
        _two_groups(qs + 32),
        _two_groups(qs + 64),
        _two_groups(qs + 96),
    )


@inline
def _two_groups(qs):
    return mask(shr_words(shuffle(load(u8x32, qs), _SIXTEENS_TWICE), _DOWN), 15)


@inline
def scales(block):
    """(scale, offset) for each 16 weights: two f32x16."""
    return biased(_scale(block), BIAS)


@inline
def weights(block):
    """The 256 weights, BIAS added to each: four u8x64."""
    w0, w1, w2, w3 = _codes(block)
    return look_up(w0, BIASED), look_up(w1, BIASED), look_up(w2, BIASED), look_up(w3, BIASED)


@inline
def _signed_scales(block):
    return _scale(block), zeros(f32x16)


@inline
def _signed_weights(block):
    w0, w1, w2, w3 = _codes(block)
    return look_up(w0, SIGNED), look_up(w1, SIGNED), look_up(w2, SIGNED), look_up(w3, SIGNED)


# Some CPUs do not multiply bytes above 127 as unsigned: there they are signed.
_few = (_signed_scales, _signed_weights) if not ANY_U8 else (scales, weights)
_few_scales, _few_weights = _few


_LAYOUT = BYTES, _few_scales, _few_weights


@part(6)
def dot_iq4_xs(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(BY_16, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_iq4_xs(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(BY_16, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_iq4_xs(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 32, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="IQ4_XS",
    ggml_type=23,
    block=BLOCK,
    block_size=256,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_iq4_xs,
    dot4=dot4_iq4_xs,
    unpack=unpack_iq4_xs,
    tile_dot=tile_dot_8bit,
)
