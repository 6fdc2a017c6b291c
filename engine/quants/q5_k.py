"""Q5_K: 256 weights in 176 bytes: eight groups of 32, each with a 6-bit scale and a 6-bit minimum.

d       f16       scale of the scales
dmin    f16       scale of the minima
scales  u8[12]    as in Q4_K
qh      u8[32]    bit g of byte i: the fifth bit of weight i of group g
qs      u8[128]   32 bytes hold two groups: low nibbles 2j, high nibbles 2j + 1

weight = d * s * five bits - dmin * m
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import (
    bor,
    columns,
    load_twice,
    mask_lanes,
    shl_words,
    shr_words,
    u8x32,
)
from engine.kernels.tile import tile_dot_5bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.k_blocks import BY_32, unpack_blocks
from engine.quants.layouts import (
    at_most_32,
    bytes_of,
    nibble_pair,
    scales_and_minima,
    scales_of_columns,
    words_of,
)
from engine.quants.layouts import (
    unpack_scales_and_minima as scales,
)
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
)
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    s, m = scales_and_minima(blocks["scales"])
    scale = blocks["d"].astype(np.float32)[:, None] * s.astype(np.float32)
    minimum = blocks["dmin"].astype(np.float32)[:, None] * m.astype(np.float32)
    packed = blocks["qs"].reshape(-1, 4, 1, 32)
    low = np.concatenate([packed & 15, packed >> 4], axis=2).reshape(-1, 8, 32)
    high = blocks["qh"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    values = scale[:, :, None] * (low | high << 4).astype(np.float32) - minimum[:, :, None]
    return values.reshape(-1, 256)


# Where the fifth bits of the groups 2 j and 2 j + 1 are, and how far from bit 4.
_BIT_0, _UP_0 = bytes_of(1, 2), words_of(4, 3)
_BIT_1, _UP_1 = bytes_of(4, 8), words_of(2, 1)
_BIT_2, _DOWN_2 = bytes_of(16, 32), words_of(0, 1)
_BIT_3, _DOWN_3 = bytes_of(64, 128), words_of(2, 3)


@inline
def weights(block):
    """The 256 weights, 0..31: four u5x64."""
    h = load_twice(u8x32, block + 16)
    return at_most_32(
        bor(nibble_pair(block + 48), shl_words(mask_lanes(h, _BIT_0), _UP_0)),
        bor(nibble_pair(block + 80), shl_words(mask_lanes(h, _BIT_1), _UP_1)),
        bor(nibble_pair(block + 112), shr_words(mask_lanes(h, _BIT_2), _DOWN_2)),
        bor(nibble_pair(block + 144), shr_words(mask_lanes(h, _BIT_3), _DOWN_3)),
    )


@inline
def _columns(block):
    return columns(*weights(block))


_LAYOUT = BYTES, scales_of_columns, _columns


@part(6)
def dot_q5_k(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(BY_32, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_q5_k(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(BY_32, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_q5_k(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 32, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="Q5_K",
    ggml_type=13,
    block=BLOCK,
    block_size=256,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_q5_k,
    dot4=dot4_q5_k,
    unpack=unpack_q5_k,
    tile_dot=tile_dot_5bit,
)
