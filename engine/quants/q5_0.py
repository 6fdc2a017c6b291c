"""Q5_0: 32 weights in 22 bytes, one scale, values -16..15.

d   f16       scale
qh  u32       bit i: the fifth bit of weight i
qs  u8[16]    low nibbles: weights 0..15, high nibbles: weights 16..31

weight = d * (five bits - 16)
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.activation import q8_d
from engine.kernels.op import AHEAD, part
from engine.kernels.simd import (
    FOUR,
    ONE,
    WIDE,
    add,
    f32xL,
    group_dot,
    interleave,
    load_bits,
    load_nibbles,
    prefetch,
    read_f16,
    stack,
    store,
    write_f32,
    write_sums,
    zero_sums,
)
from engine.kernels.tile import STAGE, N, offset_at, scale_at, tile_dot_5bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.layouts import five_bits

BLOCK = np.dtype([("d", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)])
BYTES = BLOCK.itemsize
SIXTEEN = np.float32(16)


def dequantize(blocks: Blocks) -> Floats:
    d = blocks["d"].astype(np.float32)[:, None]
    low = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=1)
    high = blocks["qh"][:, None] >> np.arange(32, dtype=np.uint32) & 1
    return d * ((low | high << 4).astype(np.float32) - SIXTEEN)


@inline
def _add_block(sums, block, x, d_x, x_bytes):
    # 16 less where the fifth bit is not set: then no offset is left to take off.
    weights = add(load_nibbles(block + 6), load_bits(WIDE, block + 2, 0, -16))
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
            even = _add_block(even, block, x + 64 * b, d_x + 4 * b, x_bytes)
            odd = _add_block(odd, block + BYTES, x + 64 * b + 64, d_x + 4 * b + 4, x_bytes)
            block += 2 * BYTES
        if n % 2:
            even = _add_block(even, block, x + 64 * (n - 1), d_x + 4 * (n - 1), x_bytes)
        write_sums(out + 4 * r, out_bytes, add(even, odd))


@part(6)
def dot_q5_0(w, row_bytes, n_rows, n_in, x, out):
    _dot(ONE, w, row_bytes, n_rows, n_in, x, 0, out, 0)


@part(8)
def dot4_q5_0(w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes):
    _dot(FOUR, w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes)


@part(6)
def unpack_q5_0(w, row_bytes, n_rows, k0, kn, tile):
    scale, offset = scale_at(tile, kn), offset_at(tile, kn, 32)
    rows = stack(STAGE)
    for b in range(kn // 32):
        for r in range(N):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 32 + b) * BYTES
            store(rows + 32 * r, five_bits(block + 6, block + 2))
            d = read_f16(block)
            write_f32(scale + (b * N + r) * 4, d)
            write_f32(offset + (b * N + r) * 4, -SIXTEEN * d)
        interleave(rows, tile + 32 * N * b, N)


QUANT = QuantType(
    name="Q5_0",
    ggml_type=6,
    block=BLOCK,
    block_size=32,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.Q16,
    dot=dot_q5_0,
    dot4=dot4_q5_0,
    unpack=unpack_q5_0,
    tile_dot=tile_dot_5bit,
)
