"""Q8_0: 32 weights in 34 bytes, one scale, values -127..127.

d   f16       scale
qs  i8[32]

weight = d * qs
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.activation import dot_group, q8_d
from engine.kernels.op import AHEAD, part
from engine.kernels.simd import (
    WIDE_SIGNED,
    L,
    add,
    f32xL,
    flip,
    interleave,
    load,
    load_wide,
    prefetch,
    read_f16,
    read_f32,
    splat,
    stack,
    store,
    sum_lanes,
    u8x32,
    write_f32,
    zeros,
)
from engine.kernels.tile import STAGE, offset_at, scale_at, tile_dot_8bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType

BLOCK = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    return blocks["d"].astype(np.float32)[:, None] * blocks["qs"].astype(np.float32)


@inline
def _add_block(sums, block, x, d_x):
    scale = splat(f32xL, read_f16(block) * read_f32(d_x))
    return dot_group(sums, load_wide(WIDE_SIGNED, block + 2), x, scale)


@part(6)
def dot_q8_0(w, row_bytes, n_rows, n_in, x, out):
    n = n_in // 32
    d_x = q8_d(x + n_in, n_in)
    for r in range(n_rows):
        block = w + r * row_bytes
        even, odd = zeros(f32xL), zeros(f32xL)  # two sums: one would wait for itself
        for b in range(0, n - 1, 2):
            prefetch(block + AHEAD)
            prefetch(block + AHEAD + BYTES)
            even = _add_block(even, block, x + 64 * b, d_x + 4 * b)
            odd = _add_block(odd, block + BYTES, x + 64 * b + 64, d_x + 4 * b + 4)
            block += 2 * BYTES
        if n % 2:
            even = _add_block(even, block, x + 64 * (n - 1), d_x + 4 * (n - 1))
        write_f32(out + 4 * r, sum_lanes(add(even, odd)))


@part(6)
def unpack_q8_0(w, row_bytes, n_rows, k0, kn, tile):
    scale, offset = scale_at(tile, kn), offset_at(tile, kn, 32)
    rows = stack(STAGE)
    for b in range(kn // 32):
        for r in range(L):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 32 + b) * BYTES
            store(rows + 32 * r, flip(load(u8x32, block + 2), 128))  # i8 -> u8, 128 more
            d = read_f16(block)
            write_f32(scale + (b * L + r) * 4, d)
            write_f32(offset + (b * L + r) * 4, -128.0 * d)
        interleave(rows, tile + 32 * L * b)


QUANT = QuantType(
    "Q8_0", 8, BLOCK, 32, 32, dequantize, FewInput.Q16, dot_q8_0, unpack_q8_0, tile_dot_8bit
)
