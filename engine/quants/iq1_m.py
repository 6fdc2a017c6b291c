"""IQ1_M: 256 weights in 56 bytes: sixteen groups of 16, each two runs of 8 from IQ1_S's grid.

qs      u8[32]    low eight bits of the runs' numbers in the grid
qh      u8[16]    a nibble for each run, the low one first: the number's high three bits, and the
                  sign of the shift: set = minus
scales  u16[4]    bits 0-11: scales s of four groups, three bits each; bits 12-15: four bits of d,
                  an f16, from the lowest up

weight = d * (2 s + 1) * (grid value + 1/8 or - 1/8), grid values being -1, 0 and 1
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import (
    Lanes,
    concat,
    mask,
    read_f16,
    read_i32,
    read_u8,
    read_u16,
    shr_lanes,
    splat,
    stack,
    u32x8,
    write_u16,
)
from engine.kernels.tile import tile_dot_5bit_16
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.grids import from_runs_of_8
from engine.quants.iq1_s import BIAS, EIGHTHS, GRID
from engine.quants.k_blocks import BY_16, unpack_blocks
from engine.quants.layouts import biased, nibbles_in_turn, odd_times
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])
BYTES = BLOCK.itemsize
# With the sign as twelfth bit of a run's number.
SHIFTED = np.concatenate([EIGHTHS + np.int8(2), EIGHTHS])


def dequantize(blocks: Blocks) -> Floats:
    a, b, c, e = (blocks["scales"][:, i] for i in range(4))
    d = (a >> 12 | b >> 8 & 0xF0 | c >> 4 & 0xF00 | e & 0xF000).view(np.float16)
    s = (blocks["scales"][:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 16)
    scale = d.astype(np.float32)[:, None] * (np.float32(2) * s.astype(np.float32) + np.float32(1))
    high = nibbles_in_turn(blocks["qh"]).astype(np.uint16)
    shift = np.where(high & 8, np.float32(-0.125), np.float32(0.125))
    values = GRID[blocks["qs"] | (high & 7) << 8] + shift[:, :, None]
    return (scale[:, :, None] * values.reshape(-1, 16, 16)).reshape(-1, 256)


_THREES = Lanes(0, 3, 6, 9, 16, 19, 22, 25)  # where the scales are in two words


@inline
def scales(block):
    """(scale, offset) for each 16 weights: two f32x16."""
    words, place = block + 48, stack(2)
    low = read_u16(words) >> 12 | read_u16(words + 2) >> 8 & 0xF0
    write_u16(place, low | read_u16(words + 4) >> 4 & 0xF00 | read_u16(words + 6) & 0xF000)
    d = read_f16(place) * 0.125
    first, second = splat(u32x8, read_i32(words)), splat(u32x8, read_i32(words + 4))
    scale = concat(
        odd_times(mask(shr_lanes(first, _THREES), 7), d),
        odd_times(mask(shr_lanes(second, _THREES), 7), d),
    )
    return biased(scale, BIAS)


@inline
def _group(block, g):
    """Weights 32 g .. 32 g + 31: u8x32."""
    grid, q = np.int64(SHIFTED.ctypes.data), block + 4 * g
    h = np.int64(read_u16(block + 32 + 2 * g))
    return from_runs_of_8(
        grid,
        read_u8(q) | h << 8 & 0xF00,
        read_u8(q + 1) | h << 4 & 0xF00,
        read_u8(q + 2) | h & 0xF00,
        read_u8(q + 3) | h >> 4 & 0xF00,
    )


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
def dot_iq1_m(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(BY_16, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_iq1_m(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(BY_16, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_iq1_m(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 16, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="IQ1_M",
    ggml_type=29,
    block=BLOCK,
    block_size=256,
    group=16,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_iq1_m,
    dot4=dot4_iq1_m,
    unpack=unpack_iq1_m,
    tile_dot=tile_dot_5bit_16,
)
