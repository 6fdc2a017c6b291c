"""Q3_K: 256 weights in 110 bytes: sixteen groups of 16, each with a 6-bit scale, values -4..3.

hmask   u8[32]    bit j of byte i: the third bit of weight 32 j + i
qs      u8[64]    low two bits
scales  u8[12]    s0..s15, six bits each:

        byte 0..3     low nibbles of s0..s3 in bits 0-3, of s8..s11 in bits 4-7
        byte 4..7     low nibbles of s4..s7 in bits 0-3, of s12..s15 in bits 4-7
        byte 8..11    high bits of s0..s3 in bits 0-1, of s4..s7 in bits 2-3, of s8..s11 in
                      bits 4-5, of s12..s15 in bits 6-7

d       f16

Two halves of 128 weights. In half h, byte i = 0..31 of its 32 of qs holds weights i, i + 32, i + 64
and i + 96, from the lowest bits up.

weight = d * (s - 32) * (three bits - 4)
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import (
    Lanes,
    bor,
    f32x16,
    i8x16,
    load,
    load_twice,
    mask,
    mask_lanes,
    mul,
    plus,
    read_f16,
    reinterpret,
    shl,
    shl_words,
    shr_lanes,
    shr_words,
    shuffle,
    splat,
    u8x32,
    u32x4,
)
from engine.kernels.tile import tile_dot_5bit_16
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.k_blocks import BY_16, unpack_blocks
from engine.quants.layouts import (
    at_most_32,
    bytes_of,
    times_16,
    words_of,
)
from engine.quants.q2_k import two_bits
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    nibbles, pairs = blocks["scales"][:, :8], blocks["scales"][:, 8:]
    low = np.concatenate([nibbles & 15, nibbles >> 4], axis=1)
    high = pairs[:, None, :] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    scale = (low | high.reshape(-1, 16) << 4).astype(np.float32) - np.float32(32)
    scale = blocks["d"].astype(np.float32)[:, None] * scale
    low = blocks["qs"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    high = blocks["hmask"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    values = low.reshape(-1, 16, 16) | high.reshape(-1, 16, 16) << 2
    values = scale[:, :, None] * (values.astype(np.float32) - np.float32(4))
    return values.reshape(-1, 256)


# Of four 32-bit words: the last four bytes of qs, then bytes 0-3, 4-7 and 8-11 of the scales.
_NIBBLES, _PAIRS = Lanes(1, 2, 1, 2), Lanes(3, 3, 3, 3)
_NIBBLE_OF, _PAIR_OF = Lanes(0, 0, 4, 4), Lanes(0, 2, 4, 6)  # what they are shifted right by


@inline
def scales(block):
    """d * (s - 32) and -4 d * (s - 32) of the sixteen groups: two f32x16."""
    words = load(u32x4, block + 92)
    low = mask(shr_lanes(shuffle(words, _NIBBLES), _NIBBLE_OF), 0x0F0F0F0F)
    high = mask(shr_lanes(shuffle(words, _PAIRS), _PAIR_OF), 0x03030303)
    raw = plus(reinterpret(i8x16, bor(low, shl(high, 4))), -32)
    scale = times_16(raw, read_f16(block + 108))
    return scale, mul(scale, splat(f32x16, -4.0))


# Where the third bits of the groups of 32 are, two by two, and how far from bit 2.
_BIT_0, _UP_0 = bytes_of(1, 2), words_of(2, 1)
_BIT_1, _DOWN_1 = bytes_of(4, 8), words_of(0, 1)
_BIT_2, _DOWN_2 = bytes_of(16, 32), words_of(2, 3)
_BIT_3, _DOWN_3 = bytes_of(64, 128), words_of(4, 5)


@inline
def weights(block):
    """The 256 weights, 0..7: four u5x64."""
    h = load_twice(u8x32, block)
    w0, w1 = two_bits(block + 32)
    w2, w3 = two_bits(block + 64)
    return at_most_32(
        bor(w0, shl_words(mask_lanes(h, _BIT_0), _UP_0)),
        bor(w1, shr_words(mask_lanes(h, _BIT_1), _DOWN_1)),
        bor(w2, shr_words(mask_lanes(h, _BIT_2), _DOWN_2)),
        bor(w3, shr_words(mask_lanes(h, _BIT_3), _DOWN_3)),
    )


_LAYOUT = BYTES, scales, weights


@part(6)
def dot_q3_k(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(BY_16, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_q3_k(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(BY_16, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_q3_k(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 16, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="Q3_K",
    ggml_type=11,
    block=BLOCK,
    block_size=256,
    group=16,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_q3_k,
    dot4=dot4_q3_k,
    unpack=unpack_q3_k,
    tile_dot=tile_dot_5bit_16,
)
