"""IQ3_S: 256 weights in 110 bytes: eight groups of 32, each eight runs of 4 from a grid of 512.

d       f16
qs      u8[64]    low eight bits of the runs' numbers in the grid
qh      u8[8]     their ninth bits, a byte for each group
signs   u8[32]    a bit for each weight, the lowest first
scales  u8[4]     scale s of group 2 i in the low nibble of byte i, of 2 i + 1 in the high one

weight = d * (2 s + 1) * grid value, 1 to 15 and odd, or minus that where the bit is set
"""

from __future__ import annotations

import numpy as np
from gguf import quants

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import load_pieces, read_f16, read_i32, read_i64, read_u8, u8x32
from engine.kernels.tile import tile_dot_5bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.grids import grid_of, signed, signs_of_bits
from engine.quants.k_blocks import BY_16, unpack_blocks
from engine.quants.layouts import biased, eight_nibbles, nibbles_in_turn, odd_times, twice
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype(
    [("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]
)
BYTES = BLOCK.itemsize
GRID = grid_of(quants.IQ3_S)
BIAS = 15


def dequantize(blocks: Blocks) -> Floats:
    s = nibbles_in_turn(blocks["scales"]).astype(np.float32)
    scale = blocks["d"].astype(np.float32)[:, None] * (np.float32(2) * s + np.float32(1))
    ninth = np.unpackbits(blocks["qh"], axis=1, bitorder="little").astype(np.uint16)
    values = GRID[blocks["qs"] | ninth << 8].reshape(-1, 256) * signs_of_bits(blocks["signs"])
    return (scale[:, :, None] * values.reshape(-1, 8, 32)).reshape(-1, 256)


@inline
def scales(block):
    """(scale, offset) for each 16 weights: two f32x16."""
    scale = odd_times(eight_nibbles(read_i32(block + 106)), read_f16(block))
    return biased(twice(scale), BIAS)


@inline
def _run(q, high):
    """Address of a run; high: its number's ninth bit in bit 8."""
    return np.int64(GRID.ctypes.data) + 4 * (read_u8(q) | high & 0x100)


@inline
def _sizes(block, g):
    """Weights 32 g .. 32 g + 31 without their signs: u8x32."""
    q, h = block + 2 + 8 * g, np.int64(read_u8(block + 66 + g))
    first = _run(q, h << 8), _run(q + 1, h << 7), _run(q + 2, h << 6), _run(q + 3, h << 5)
    last = _run(q + 4, h << 4), _run(q + 5, h << 3), _run(q + 6, h << 2), _run(q + 7, h << 1)
    return load_pieces(u8x32, (*first, *last))


@inline
def _two_groups(block, g):
    bits = read_i64(block + 74 + 4 * g)
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
def dot_iq3_s(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(BY_16, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_iq3_s(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(BY_16, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_iq3_s(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 32, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="IQ3_S",
    ggml_type=21,
    block=BLOCK,
    block_size=256,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_iq3_s,
    dot4=dot4_iq3_s,
    unpack=unpack_iq3_s,
    tile_dot=tile_dot_5bit,
)
