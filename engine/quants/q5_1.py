"""Q5_1: 32 weights in 24 bytes, scale and minimum.

d   f16       scale
m   f16       minimum
qh  u32       bit i: the fifth bit of weight i
qs  u8[16]    low nibbles: weights 0..15, high nibbles: weights 16..31

weight = d * five bits + m
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.activation import q8_d, q8_s
from engine.kernels.op import AHEAD, part
from engine.kernels.simd import (
    FOUR,
    ONE,
    WIDE,
    add,
    add_numbers,
    f32x1,
    f32xL,
    fma_rows,
    group_dot,
    interleave,
    load_bits,
    load_nibbles,
    prefetch,
    read_f16,
    read_f16_pair,
    stack,
    store,
    write_f32,
    write_sums,
    zero_sums,
)
from engine.kernels.tile import STAGE, N, offset_at, scale_at, tile_dot_5bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.layouts import five_bits

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)])
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    d = blocks["d"].astype(np.float32)[:, None]
    m = blocks["m"].astype(np.float32)[:, None]
    low = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=1)
    high = blocks["qh"][:, None] >> np.arange(32, dtype=np.uint32) & 1
    return d * (low | high << 4).astype(np.float32) + m


@inline
def _add_block(sums, offsets, block, x, d_x, s_x, x_bytes):
    d, m = read_f16_pair(block)
    weights = add(load_nibbles(block + 8), load_bits(WIDE, block + 4, 16, 0))
    sums = group_dot(sums, weights, x, d_x, x_bytes, d)
    return sums, fma_rows(offsets, m, s_x, x_bytes)


@inline
def _dot(rows, w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes):
    n = n_in // 32
    d_x, s_x = q8_d(x + n_in, n_in), q8_s(x + n_in, n_in)
    for r in range(n_rows):
        block = w + r * row_bytes
        even, odd = zero_sums(rows, f32xL), zero_sums(rows, f32xL)  # one would wait for itself
        offset, offset_odd = zero_sums(rows, f32x1), zero_sums(rows, f32x1)
        for b in range(0, n - 1, 2):
            prefetch(block + AHEAD)
            x_b, at = x + 64 * b, 4 * b
            even, offset = _add_block(even, offset, block, x_b, d_x + at, s_x + at, x_bytes)
            block, x_b, at = block + BYTES, x_b + 64, at + 4
            odd, offset_odd = _add_block(odd, offset_odd, block, x_b, d_x + at, s_x + at, x_bytes)
            block += BYTES
        if n % 2:
            x_b, at = x + 64 * (n - 1), 4 * (n - 1)
            even, offset = _add_block(even, offset, block, x_b, d_x + at, s_x + at, x_bytes)
        sums = add_numbers(add(even, odd), add(offset, offset_odd))
        write_sums(out + 4 * r, out_bytes, sums)


@part(6)
def dot_q5_1(w, row_bytes, n_rows, n_in, x, out):
    _dot(ONE, w, row_bytes, n_rows, n_in, x, 0, out, 0)


@part(8)
def dot4_q5_1(w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes):
    _dot(FOUR, w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes)


@part(6)
def unpack_q5_1(w, row_bytes, n_rows, k0, kn, tile):
    scale, offset = scale_at(tile, kn), offset_at(tile, kn, 32)
    rows = stack(STAGE)
    for b in range(kn // 32):
        for r in range(N):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 32 + b) * BYTES
            store(rows + 32 * r, five_bits(block + 8, block + 4))
            write_f32(scale + (b * N + r) * 4, read_f16(block))
            write_f32(offset + (b * N + r) * 4, read_f16(block + 2))
        interleave(rows, tile + 32 * N * b, N)


QUANT = QuantType(
    name="Q5_1",
    ggml_type=7,
    block=BLOCK,
    block_size=32,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.Q16,
    dot=dot_q5_1,
    dot4=dot4_q5_1,
    unpack=unpack_q5_1,
    tile_dot=tile_dot_5bit,
)
