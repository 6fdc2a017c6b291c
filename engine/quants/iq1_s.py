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
    convert,
    load,
    mask,
    plus_scalar,
    read_f16,
    read_u8,
    read_u16,
    shr,
    store,
    u16x8,
    u32x8,
)
from engine.kernels.tile import tile_dot_5bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.byte_blocks import dot_byte_blocks, unpack_byte_blocks
from engine.quants.grids import from_runs_of_8, grid_of
from engine.quants.layouts import odd_times

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
def _head(block, place):
    s = mask(shr(convert(u32x8, load(u16x8, block + 34)), 12), 7)
    store(place, odd_times(s, read_f16(block) * 0.125))


@inline
def _weights(block, place, g):
    grid, q, h = (
        np.int64(EIGHTHS.ctypes.data),
        block + 2 + 4 * g,
        np.int64(read_u16(block + 34 + 2 * g)),
    )
    eighths = from_runs_of_8(
        grid,
        read_u8(q) | h << 8 & 0x700,
        read_u8(q + 1) | h << 5 & 0x700,
        read_u8(q + 2) | h << 2 & 0x700,
        read_u8(q + 3) | h >> 1 & 0x700,
    )
    return plus_scalar(eighths, 2 - (h >> 14 & 2))


@part(6)
def dot_iq1_s(w, row_bytes, n_rows, n_in, x, out):
    dot_byte_blocks(_head, _weights, 32, BIAS, BYTES, w, row_bytes, n_rows, n_in, x, out)


@part(6)
def unpack_iq1_s(w, row_bytes, n_rows, k0, kn, tile):
    unpack_byte_blocks(_head, _weights, 32, BIAS, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    "IQ1_S", 19, BLOCK, 256, 32, dequantize, FewInput.FINE8,
    dot_iq1_s, unpack_iq1_s, tile_dot_5bit,
)  # fmt: skip
