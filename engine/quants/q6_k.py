"""Q6_K: 256 weights in 210 bytes: sixteen groups of 16, each with an 8-bit scale, values -32..31.

ql      u8[128]   low four bits
qh      u8[64]    high two bits
scales  i8[16]
d       f16

Two halves of 128 weights. In half h, for i = 0..31 (ql from 64 h, qh from 32 h):

    weight       low bits            high bits
    i            ql[i]      & 15     qh[i]      & 3
    i + 32       ql[i + 32] & 15     qh[i] >> 2 & 3
    i + 64       ql[i]      >> 4     qh[i] >> 4 & 3
    i + 96       ql[i + 32] >> 4     qh[i] >> 6

weight = d * scale * (six bits - 32)
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import (
    bor,
    columns,
    f32x16,
    i8x16,
    load,
    load_twice,
    mask,
    mask_lanes,
    mul,
    read_f16,
    reinterpret,
    shl_words,
    shr,
    shr_words,
    shuffle,
    splat,
    u6x64,
    u8x32,
    u8x64,
)
from engine.kernels.tile import tile_dot_6bit_16
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.k_blocks import CENTRED, COLUMNS, unpack_blocks
from engine.quants.layouts import (
    bytes_of,
    times_16,
    words_of,
)
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    low = blocks["ql"].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = blocks["qh"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    values = (low | high << 4).astype(np.float32).reshape(-1, 16, 16) - np.float32(32)
    scale = blocks["d"].astype(np.float32)[:, None] * blocks["scales"].astype(np.float32)
    return (scale[:, :, None] * values).reshape(-1, 256)


@inline
def scales(block):
    """d * scale and -32 d * scale of the sixteen groups: two f32x16."""
    scale = times_16(load(i8x16, block + 192), read_f16(block + 208))
    return scale, mul(scale, splat(f32x16, -32.0))


# Where the high bits of i and i + 32, and of i + 64 and i + 96, are, and how far from bit 4.
_BITS_0, _UP_0 = bytes_of(3, 12), words_of(4, 2)
_BITS_1, _DOWN_1 = bytes_of(48, 192), words_of(0, 2)


@inline
def _half(ql, qh):
    low, h = load(u8x64, ql), load_twice(u8x32, qh)
    return (
        bor(mask(low, 15), shl_words(mask_lanes(h, _BITS_0), _UP_0)),
        bor(shr(low, 4), shr_words(mask_lanes(h, _BITS_1), _DOWN_1)),
    )


@inline
def weights(block):
    """The 256 weights, 0..63: four u6x64."""
    w0, w1 = _half(block, block + 128)
    w2, w3 = _half(block + 64, block + 160)
    return (
        reinterpret(u6x64, w0),
        reinterpret(u6x64, w1),
        reinterpret(u6x64, w2),
        reinterpret(u6x64, w3),
    )


@inline
def _scales_of_columns(block):
    return times_16(shuffle(load(i8x16, block + 192), COLUMNS), read_f16(block + 208))


@inline
def _columns(block):
    return columns(*weights(block))


_LAYOUT = BYTES, _scales_of_columns, _columns


@part(6)
def dot_q6_k(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(CENTRED, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_q6_k(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(CENTRED, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_q6_k(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 16, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="Q6_K",
    ggml_type=14,
    block=BLOCK,
    block_size=256,
    group=16,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_q6_k,
    dot4=dot4_q6_k,
    unpack=unpack_q6_k,
    tile_dot=tile_dot_6bit_16,
)
