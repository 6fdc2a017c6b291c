"""IQ2_S: 256 weights in 82 bytes: sixteen groups of 16, each two runs of 8 from a grid of 1024.

d       f16
qs      u8[32]     low eight bits of the runs' numbers in the grid
signs   u8[32]     a bit for each weight, the lowest first
qh      u8[8]      high two bits of the numbers, of four runs from the lowest bits up
scales  u8[8]      scale s of group 2 i in the low nibble of byte i, of 2 i + 1 in the high one

weight = d * (s + 1/2) / 4 * grid value, which is 8, 25 or 43, or minus that where the bit is set
"""

from __future__ import annotations

import numpy as np
from gguf import quants

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import concat, read_f16, read_i32, read_i64, read_u8
from engine.kernels.tile import tile_dot_7bit_16
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.grids import from_runs_of_8, grid_of, signed, signs_of_bits
from engine.quants.k_blocks import BY_16, unpack_blocks
from engine.quants.layouts import biased, eight_nibbles, nibbles_in_turn, odd_times
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype(
    [("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)]
)
BYTES = BLOCK.itemsize
GRID = grid_of(quants.IQ2_S)
BIAS = 43


def dequantize(blocks: Blocks) -> Floats:
    s = nibbles_in_turn(blocks["scales"]).astype(np.float32)
    scale = blocks["d"].astype(np.float32)[:, None] * np.float32(0.25) * (s + np.float32(0.5))
    high = blocks["qh"][:, :, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    number = blocks["qs"] | high.reshape(-1, 32).astype(np.uint16) << 8
    values = GRID[number].reshape(-1, 256) * signs_of_bits(blocks["signs"])
    return (scale[:, :, None] * values.reshape(-1, 16, 16)).reshape(-1, 256)


@inline
def scales(block):
    """(scale, offset) for each 16 weights: two f32x16."""
    d = read_f16(block) * 0.125
    return biased(
        concat(
            odd_times(eight_nibbles(read_i32(block + 74)), d),
            odd_times(eight_nibbles(read_i32(block + 78)), d),
        ),
        BIAS,
    )


@inline
def _sizes(block, g):
    """Weights 32 g .. 32 g + 31 without their signs: u8x32."""
    grid, q, h = np.int64(GRID.ctypes.data), block + 2 + 4 * g, np.int64(read_u8(block + 66 + g))
    return from_runs_of_8(
        grid,
        read_u8(q) | h << 8 & 0x300,
        read_u8(q + 1) | h << 6 & 0x300,
        read_u8(q + 2) | h << 4 & 0x300,
        read_u8(q + 3) | h << 2 & 0x300,
    )


@inline
def _two_groups(block, g):
    bits = read_i64(block + 34 + 4 * g)
    return signed(_sizes(block, g), _sizes(block, g + 1), bits, BIAS)


@inline
def weights(block):
    """The 256 weights, BIAS added to each: four u8x64."""
    return (
        _two_groups(block, 0),
        _two_groups(block, 2),
        _two_groups(block, 4),
        _two_groups(block, 6),
    )


_LAYOUT = BYTES, scales, weights


@part(6)
def dot_iq2_s(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(BY_16, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_iq2_s(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(BY_16, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_iq2_s(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 16, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="IQ2_S",
    ggml_type=22,
    block=BLOCK,
    block_size=256,
    group=16,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_iq2_s,
    dot4=dot4_iq2_s,
    unpack=unpack_iq2_s,
    tile_dot=tile_dot_7bit_16,
)
