"""Q8_0: 32 weights in 34 bytes, one scale, values -127..127.

d   f16       scale
qs  i8[32]

weight = d * qs
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.activation import q8_d
from engine.kernels.op import AHEAD, part
from engine.kernels.simd import (
    FOUR,
    ONE,
    WIDE_SIGNED,
    add,
    f32xL,
    flip,
    group_dot,
    interleave,
    load,
    load_wide,
    prefetch,
    read_f16,
    stack,
    store,
    u8x32,
    write_f32,
    write_sums,
    zero_sums,
)
from engine.kernels.tile import STAGE, N, offset_at, scale_at, tile_dot_8bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType

BLOCK = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    return blocks["d"].astype(np.float32)[:, None] * blocks["qs"].astype(np.float32)


@inline
def _add_block(sums, block, x, d_x, x_bytes):
    weights = load_wide(WIDE_SIGNED, block + 2)
    return group_dot(sums, weights, x, d_x, x_bytes, read_f16(block))


@inline
def _dot(rows, w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes):
    n = n_in // 32
    d_x = q8_d(x + n_in, n_in)
    for r in range(n_rows):
        block = w + r * row_bytes
        even, odd = zero_sums(rows, f32xL), zero_sums(rows, f32xL)  # one would wait for itself
        for b in range(0, n - 1, 2):
            prefetch(block + AHEAD)
            prefetch(block + AHEAD + BYTES)
            even = _add_block(even, block, x + 64 * b, d_x + 4 * b, x_bytes)
            odd = _add_block(odd, block + BYTES, x + 64 * b + 64, d_x + 4 * b + 4, x_bytes)
            block += 2 * BYTES
        if n % 2:
            even = _add_block(even, block, x + 64 * (n - 1), d_x + 4 * (n - 1), x_bytes)
        write_sums(out + 4 * r, out_bytes, add(even, odd))


@part(6)
def dot_q8_0(w, row_bytes, n_rows, n_in, x, out):
    _dot(ONE, w, row_bytes, n_rows, n_in, x, 0, out, 0)


@part(8)
def dot4_q8_0(w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes):
    _dot(FOUR, w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes)


@part(6)
def unpack_q8_0(w, row_bytes, n_rows, k0, kn, tile):
    scale, offset = scale_at(tile, kn), offset_at(tile, kn, 32)
    rows = stack(STAGE)
    for b in range(kn // 32):
        for r in range(N):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 32 + b) * BYTES
            store(rows + 32 * r, flip(load(u8x32, block + 2), 128))  # i8 -> u8, 128 more
            d = read_f16(block)
            write_f32(scale + (b * N + r) * 4, d)
            write_f32(offset + (b * N + r) * 4, -128.0 * d)
        interleave(rows, tile + 32 * N * b, N)


QUANT = QuantType(
    name="Q8_0",
    ggml_type=8,
    block=BLOCK,
    block_size=32,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.Q16,
    dot=dot_q8_0,
    dot4=dot4_q8_0,
    unpack=unpack_q8_0,
    tile_dot=tile_dot_8bit,
)
