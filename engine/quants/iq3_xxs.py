"""IQ3_XXS: 256 weights in 98 bytes: eight groups of 32, each eight runs of 4 from a grid of 256.

d      f16
qs     u8[64]    the runs' numbers in the grid
words  u32[8]    a group:

        bits 0-27     seven sign bits for each 8 weights; the eighth makes their number even
        bits 28-31    scale s

weight = d * (s + 1/2) / 2 * grid value, 4 to 62, or minus that where the bit is set
"""

from __future__ import annotations

import numpy as np
from gguf import quants

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import (
    load,
    load_pieces,
    read_f16,
    read_i64,
    read_u8,
    shr,
    stack,
    store,
    u8x32,
    u32x8,
)
from engine.kernels.tile import tile_dot_7bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.grids import add_parity, grid_of, seven_bits, sign_bits, signed, signs_of_bits
from engine.quants.k_blocks import BY_16, unpack_blocks
from engine.quants.layouts import biased, odd_times, twice
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("words", "<u4", 8)])
BYTES = BLOCK.itemsize
GRID = grid_of(quants.IQ3_XXS)
BIAS = 62


def dequantize(blocks: Blocks) -> Floats:
    d = blocks["d"].astype(np.float32)[:, None] * np.float32(0.5)
    scale = d * ((blocks["words"] >> 28).astype(np.float32) + np.float32(0.5))
    signs = signs_of_bits(add_parity(seven_bits(blocks["words"])))
    values = GRID[blocks["qs"]].reshape(-1, 256) * signs
    return (scale[:, :, None] * values.reshape(-1, 8, 32)).reshape(-1, 256)


@inline
def scales(block):
    """(scale, offset) for each 16 weights: two f32x16."""
    s = shr(load(u32x8, block + 66), 28)
    return biased(twice(odd_times(s, read_f16(block) * 0.25)), BIAS)


@inline
def _run(q):
    return np.int64(GRID.ctypes.data) + 4 * read_u8(q)


@inline
def _sizes(block, g):
    """Weights 32 g .. 32 g + 31 without their signs: u8x32."""
    q = block + 2 + 8 * g
    first = _run(q), _run(q + 1), _run(q + 2), _run(q + 3)
    return load_pieces(u8x32, (*first, _run(q + 4), _run(q + 5), _run(q + 6), _run(q + 7)))


@inline
def _two_groups(block, signs, g):
    return signed(_sizes(block, g), _sizes(block, g + 1), read_i64(signs + 4 * g), BIAS)


@inline
def weights(block):
    """The 256 weights, BIAS added to each: four u8x64."""
    signs = stack(32)
    store(signs, sign_bits(load(u32x8, block + 66)))
    return (
        _two_groups(block, signs, 0),
        _two_groups(block, signs, 2),
        _two_groups(block, signs, 4),
        _two_groups(block, signs, 6),
    )


_LAYOUT = BYTES, scales, weights


@part(6)
def dot_iq3_xxs(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(BY_16, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_iq3_xxs(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(BY_16, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_iq3_xxs(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 32, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="IQ3_XXS",
    ggml_type=18,
    block=BLOCK,
    block_size=256,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_iq3_xxs,
    dot4=dot4_iq3_xxs,
    unpack=unpack_iq3_xxs,
    tile_dot=tile_dot_7bit,
)
