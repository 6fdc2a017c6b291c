"""IQ2_XS: 256 weights in 74 bytes: sixteen groups of 16, each two runs of 8 from a grid of 512.

d       f16
qs      u16[32]    a run: bits 0-8 its number in the grid, bits 9-15 seven sign bits; the eighth
                   makes their number even
scales  u8[8]      scale s of group 2 i in the low nibble of byte i, of 2 i + 1 in the high one

weight = d * (s + 1/2) / 4 * grid value, which is 8, 25 or 43, or minus that where the bit is set
"""

from __future__ import annotations

import numpy as np
from gguf import quants

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import (
    concat,
    convert,
    load,
    read_f16,
    read_i32,
    read_i64,
    read_u16,
    reinterpret,
    shr,
    stack,
    store,
    u8x32,
    u16x32,
    u32x8,
)
from engine.kernels.tile import tile_dot_7bit_16
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.grids import (
    add_parity,
    from_runs_of_8,
    grid_of,
    parity_added,
    signed,
    signs_of_bits,
)
from engine.quants.k_blocks import BY_16, unpack_blocks
from engine.quants.layouts import biased, eight_nibbles, nibbles_in_turn, odd_times
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])
BYTES = BLOCK.itemsize
GRID = grid_of(quants.IQ2_XS)
BIAS = 43


def dequantize(blocks: Blocks) -> Floats:
    s = nibbles_in_turn(blocks["scales"]).astype(np.float32)
    scale = blocks["d"].astype(np.float32)[:, None] * np.float32(0.25) * (s + np.float32(0.5))
    signs = signs_of_bits(add_parity(blocks["qs"] >> 9))
    values = GRID[blocks["qs"] & 511].reshape(-1, 16, 16) * signs.reshape(-1, 16, 16)
    return (scale[:, :, None] * values).reshape(-1, 256)


@inline
def scales(block):
    """(scale, offset) for each 16 weights: two f32x16."""
    d = read_f16(block) * 0.125
    return biased(
        concat(
            odd_times(eight_nibbles(read_i32(block + 66)), d),
            odd_times(eight_nibbles(read_i32(block + 70)), d),
        ),
        BIAS,
    )


@inline
def _number(q):
    return read_u16(q) & 511


@inline
def _sizes(block, g):
    """Weights 32 g .. 32 g + 31 without their signs: u8x32."""
    grid, q = np.int64(GRID.ctypes.data), block + 2 + 8 * g
    return from_runs_of_8(grid, _number(q), _number(q + 2), _number(q + 4), _number(q + 6))


@inline
def _two_groups(block, signs, g):
    return signed(_sizes(block, g), _sizes(block, g + 1), read_i64(signs + 4 * g), BIAS)


@inline
def _signs(block):
    """The sign bits of all 256 weights, in their order: u32x8."""
    seven = convert(u8x32, shr(load(u16x32, block + 2), 9))
    return parity_added(reinterpret(u32x8, seven))


@inline
def weights(block):
    """The 256 weights, BIAS added to each: four u8x64."""
    signs = stack(32)
    store(signs, _signs(block))
    return (
        _two_groups(block, signs, 0),
        _two_groups(block, signs, 2),
        _two_groups(block, signs, 4),
        _two_groups(block, signs, 6),
    )


_LAYOUT = BYTES, scales, weights


@part(6)
def dot_iq2_xs(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(BY_16, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_iq2_xs(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(BY_16, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_iq2_xs(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 16, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="IQ2_XS",
    ggml_type=17,
    block=BLOCK,
    block_size=256,
    group=16,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_iq2_xs,
    dot4=dot4_iq2_xs,
    unpack=unpack_iq2_xs,
    tile_dot=tile_dot_7bit_16,
)
