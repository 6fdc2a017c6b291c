"""BF16: the upper 16 bits of 32-bit floats.

A block is one weight; products are taken in f32, with f32 inputs.
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.op import AHEAD, part
from engine.kernels.simd import (
    FOUR,
    ONE,
    TWO,
    add,
    f32x8,
    fma_rows,
    interleave,
    load_bf16,
    prefetch,
    stack,
    store,
    write_sums,
    zero_sums,
)
from engine.kernels.tile import STAGE, N, tile_dot_float
from engine.quants.base import Blocks, FewInput, Floats, QuantType

BLOCK = np.dtype("<u2")
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    return (blocks.astype(np.uint32) << 16).view(np.float32).reshape(-1, 1)


@inline
def _dot(rows, w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes):
    for r in range(n_rows):
        row = w + r * row_bytes
        even, odd = zero_sums(rows, f32x8), zero_sums(rows, f32x8)  # one would wait for itself
        for k in range(0, n_in, 16):
            prefetch(row + BYTES * k + AHEAD)
            even = fma_rows(even, load_bf16(f32x8, row + BYTES * k), x + 4 * k, x_bytes)
            odd = fma_rows(odd, load_bf16(f32x8, row + BYTES * (k + 8)), x + 4 * k + 32, x_bytes)
        write_sums(out + 4 * r, out_bytes, add(even, odd))


@part(6)
def dot_bf16(w, row_bytes, n_rows, n_in, x, out):
    _dot(ONE, w, row_bytes, n_rows, n_in, x, 0, out, 0)


@part(9)
def dot4_bf16(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    if n_x <= 2:
        _dot(TWO, w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes)
    else:
        _dot(FOUR, w, row_bytes, n_rows, n_in, x, x_bytes, out, out_bytes)


@part(6)
def unpack_bf16(w, row_bytes, n_rows, k0, kn, tile):
    rows = stack(STAGE)
    for k in range(0, kn, 8):
        for r in range(N):
            at = w + min(r, n_rows - 1) * row_bytes + BYTES * (k0 + k)
            store(rows + 32 * r, load_bf16(f32x8, at))
        interleave(rows, tile + 4 * N * k, N)


QUANT = QuantType(
    name="BF16",
    ggml_type=30,
    block=BLOCK,
    block_size=1,
    group=0,
    dequantize=dequantize,
    few_input=FewInput.FLOATS,
    dot=dot_bf16,
    dot4=dot4_bf16,
    unpack=unpack_bf16,
    tile_dot=tile_dot_float,
)
