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
from engine.kernels.simd import read_f16, read_i32, read_u8, store
from engine.kernels.tile import tile_dot_7bit_16
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.byte_blocks import dot_byte_blocks, unpack_byte_blocks
from engine.quants.grids import from_runs_of_8, grid_of, signed, signs_of_bits
from engine.quants.layouts import eight_nibbles, nibbles_in_turn, odd_times

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
def _head(block, place):
    d = read_f16(block) * 0.125
    store(place, odd_times(eight_nibbles(read_i32(block + 74)), d))
    store(place + 32, odd_times(eight_nibbles(read_i32(block + 78)), d))


@inline
def _weights(block, place, g):
    grid, q, h = np.int64(GRID.ctypes.data), block + 2 + 4 * g, np.int64(read_u8(block + 66 + g))
    sizes = from_runs_of_8(
        grid,
        read_u8(q) | h << 8 & 0x300,
        read_u8(q + 1) | h << 6 & 0x300,
        read_u8(q + 2) | h << 4 & 0x300,
        read_u8(q + 3) | h << 2 & 0x300,
    )
    return signed(sizes, read_i32(block + 34 + 4 * g), BIAS)


@part(6)
def dot_iq2_s(w, row_bytes, n_rows, n_in, x, out):
    dot_byte_blocks(_head, _weights, 16, BIAS, BYTES, w, row_bytes, n_rows, n_in, x, out)


@part(6)
def unpack_iq2_s(w, row_bytes, n_rows, k0, kn, tile):
    unpack_byte_blocks(_head, _weights, 16, BIAS, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    "IQ2_S", 22, BLOCK, 256, 16, dequantize, FewInput.FINE8,
    dot_iq2_s, unpack_iq2_s, tile_dot_7bit_16,
)  # fmt: skip
