"""IQ1_S: 256 weights in 50 bytes: eight groups of 32, each four runs of 8 from a grid of 2048.

d   f16
qs  u8[32]    low eight bits of the runs' numbers in the grid
qh  u16[8]    a group:

        bits 0-11     the numbers' high three bits, run by run
        bits 12-14    scale s
        bit 15        the sign of the shift: set = minus

weight = d * (2 s + 1) * (grid value + 1/8 or - 1/8), grid values being -1, 0 and 1
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
    mask,
    plus_scalar,
    read_f16,
    read_u8,
    read_u16,
    shr,
    u16x8,
    u32x8,
)
from engine.kernels.tile import tile_dot_5bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.grids import from_runs_of_8, grid_of
from engine.quants.k_blocks import BY_16, unpack_blocks
from engine.quants.layouts import biased, odd_times, twice
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])
BYTES = BLOCK.itemsize
GRID = grid_of(quants.IQ1_S)
EIGHTHS = 8 * (GRID + 1)  # 8 times the weights with shift -1/8, and BIAS
BIAS = 9


def dequantize(blocks: Blocks) -> Floats:
    s = (blocks["qh"] >> 12 & 7).astype(np.float32)
    scale = blocks["d"].astype(np.float32)[:, None] * (np.float32(2) * s + np.float32(1))
    shift = np.where(blocks["qh"] >> 15, np.float32(-0.125), np.float32(0.125))
    high = blocks["qh"][:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7
    values = GRID[blocks["qs"] | high.reshape(-1, 32) << 8].reshape(-1, 8, 32)
    return (scale[:, :, None] * (values + shift[:, :, None])).reshape(-1, 256)


@inline
def scales(block):
    """(scale, offset) for each 16 weights: two f32x16."""
    s = mask(shr(convert(u32x8, load(u16x8, block + 34)), 12), 7)
    return biased(twice(odd_times(s, read_f16(block) * 0.125)), BIAS)


@inline
def _group(block, g):
    """Weights 32 g .. 32 g + 31: u8x32."""
    grid, q = np.int64(EIGHTHS.ctypes.data), block + 2 + 4 * g
    h = np.int64(read_u16(block + 34 + 2 * g))
    eighths = from_runs_of_8(
        grid,
        read_u8(q) | h << 8 & 0x700,
        read_u8(q + 1) | h << 5 & 0x700,
        read_u8(q + 2) | h << 2 & 0x700,
        read_u8(q + 3) | h >> 1 & 0x700,
    )
    return plus_scalar(eighths, 2 - (h >> 14 & 2))


@inline
def _two_groups(block, g):
    return concat(_group(block, g), _group(block, g + 1))


@inline
def weights(block):
    """The 256 weights, BIAS added to 8 times each: four u8x64."""
    return (
        _two_groups(block, 0),
        _two_groups(block, 2),
        _two_groups(block, 4),
        _two_groups(block, 6),
    )


_LAYOUT = BYTES, scales, weights


@part(6)
def dot_iq1_s(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(BY_16, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_iq1_s(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(BY_16, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_iq1_s(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 32, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="IQ1_S",
    ggml_type=19,
    block=BLOCK,
    block_size=256,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_iq1_s,
    dot4=dot4_iq1_s,
    unpack=unpack_iq1_s,
    tile_dot=tile_dot_5bit,
)
