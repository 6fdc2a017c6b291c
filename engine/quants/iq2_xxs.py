"""IQ2_XXS: 256 weights in 66 bytes: eight groups of 32, each four runs of 8 from a grid of 256.

d   f16
qs  u8[8][8]    a group: four bytes, the runs' numbers in the grid; then a u32:

        bits 0-27     seven sign bits for each run; the eighth makes their number even
        bits 28-31    scale s

weight = d * (s + 1/2) / 4 * grid value, which is 8, 25 or 43, or minus that where the bit is set
"""

from __future__ import annotations

import numpy as np
from gguf import quants

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import (
    Lanes,
    load,
    merge,
    read_f16,
    read_i64,
    read_u8,
    shr,
    stack,
    store,
    u32x8,
)
from engine.kernels.tile import tile_dot_7bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.grids import (
    add_parity,
    from_runs_of_8,
    grid_of,
    seven_bits,
    sign_bits,
    signed,
    signs_of_bits,
)
from engine.quants.k_blocks import BY_16, unpack_blocks
from engine.quants.layouts import biased, odd_times, twice
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", (8, 8))])
BYTES = BLOCK.itemsize
GRID = grid_of(quants.IQ2_XXS)
BIAS = 43


def dequantize(blocks: Blocks) -> Floats:
    words = blocks["qs"].view("<u4")
    d = blocks["d"].astype(np.float32)[:, None] * np.float32(0.25)
    scale = d * ((words[:, :, 1] >> 28).astype(np.float32) + np.float32(0.5))
    signs = signs_of_bits(add_parity(seven_bits(words[:, :, 1])))
    values = GRID[blocks["qs"][:, :, :4]].reshape(-1, 8, 32) * signs.reshape(-1, 8, 32)
    return (scale[:, :, None] * values).reshape(-1, 256)


_SECOND = Lanes(*range(1, 16, 2))  # of each group's two words


@inline
def _words(block):
    """The second word of each group: u32x8."""
    return merge(load(u32x8, block + 2), load(u32x8, block + 34), _SECOND)


@inline
def scales(block):
    """(scale, offset) for each 16 weights: two f32x16."""
    return biased(twice(odd_times(shr(_words(block), 28), read_f16(block) * 0.125)), BIAS)


@inline
def _sizes(block, g):
    """Weights 32 g .. 32 g + 31 without their signs: u8x32."""
    grid, q = np.int64(GRID.ctypes.data), block + 2 + 8 * g
    return from_runs_of_8(grid, read_u8(q), read_u8(q + 1), read_u8(q + 2), read_u8(q + 3))


@inline
def _two_groups(block, signs, g):
    return signed(_sizes(block, g), _sizes(block, g + 1), read_i64(signs + 4 * g), BIAS)


@inline
def weights(block):
    """The 256 weights, BIAS added to each: four u8x64."""
    signs = stack(32)
    store(signs, sign_bits(_words(block)))
    return (
        _two_groups(block, signs, 0),
        _two_groups(block, signs, 2),
        _two_groups(block, signs, 4),
        _two_groups(block, signs, 6),
    )


_LAYOUT = BYTES, scales, weights


@part(6)
def dot_iq2_xxs(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(BY_16, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_iq2_xxs(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(BY_16, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_iq2_xxs(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 32, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="IQ2_XXS",
    ggml_type=16,
    block=BLOCK,
    block_size=256,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_iq2_xxs,
    dot4=dot4_iq2_xxs,
    unpack=unpack_iq2_xxs,
    tile_dot=tile_dot_7bit,
)
