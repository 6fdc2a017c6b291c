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
    convert,
    load,
    read_f16,
    read_i32,
    read_u16,
    reinterpret,
    shr,
    store,
    u8x32,
    u16x32,
    u32x8,
)
from engine.kernels.tile import tile_dot_7bit_16
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.byte_blocks import EXTRA, dot_byte_blocks, unpack_byte_blocks
from engine.quants.grids import (
    add_parity,
    from_runs_of_8,
    grid_of,
    parity_added,
    signed,
    signs_of_bits,
)
from engine.quants.layouts import eight_nibbles, nibbles_in_turn, odd_times

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
def _head(block, place):
    d = read_f16(block) * 0.125
    store(place, odd_times(eight_nibbles(read_i32(block + 66)), d))
    store(place + 32, odd_times(eight_nibbles(read_i32(block + 70)), d))
    seven = convert(u8x32, shr(load(u16x32, block + 2), 9))
    store(place + EXTRA, parity_added(reinterpret(u32x8, seven)))


@inline
def _number(q):
    return read_u16(q) & 511


@inline
def _weights(block, place, g):
    grid, q = np.int64(GRID.ctypes.data), block + 2 + 8 * g
    sizes = from_runs_of_8(grid, _number(q), _number(q + 2), _number(q + 4), _number(q + 6))
    return signed(sizes, read_i32(place + EXTRA + 4 * g), BIAS)


@part(6)
def dot_iq2_xs(w, row_bytes, n_rows, n_in, x, out):
    dot_byte_blocks(_head, _weights, 16, BIAS, BYTES, w, row_bytes, n_rows, n_in, x, out)


@part(6)
def unpack_iq2_xs(w, row_bytes, n_rows, k0, kn, tile):
    unpack_byte_blocks(_head, _weights, 16, BIAS, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    "IQ2_XS", 17, BLOCK, 256, 16, dequantize, FewInput.FINE8,
    dot_iq2_xs, unpack_iq2_xs, tile_dot_7bit_16,
)  # fmt: skip
