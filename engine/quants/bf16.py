"""BF16: the upper 16 bits of 32-bit floats.

A block is one weight; products are taken in f32, with f32 inputs.
"""

from __future__ import annotations

import numpy as np

from engine.kernels.op import AHEAD, part
from engine.kernels.simd import (
    L,
    add,
    f32x8,
    fma,
    interleave,
    load,
    load_bf16,
    prefetch,
    stack,
    store,
    sum_lanes,
    write_f32,
    zeros,
)
from engine.kernels.tile import STAGE, tile_dot_float
from engine.quants.base import Blocks, FewInput, Floats, QuantType

BLOCK = np.dtype("<u2")
BYTES = BLOCK.itemsize


def dequantize(blocks: Blocks) -> Floats:
    return (blocks.astype(np.uint32) << 16).view(np.float32).reshape(-1, 1)


@part(6)
def dot_bf16(w, row_bytes, n_rows, n_in, x, out):
    for r in range(n_rows):
        row = w + r * row_bytes
        even, odd = zeros(f32x8), zeros(f32x8)
        for k in range(0, n_in, 16):
            prefetch(row + BYTES * k + AHEAD)
            even = fma(load_bf16(f32x8, row + BYTES * k), load(f32x8, x + 4 * k), even)
            odd = fma(load_bf16(f32x8, row + BYTES * (k + 8)), load(f32x8, x + 4 * k + 32), odd)
        write_f32(out + 4 * r, sum_lanes(add(even, odd)))


@part(6)
def unpack_bf16(w, row_bytes, n_rows, k0, kn, tile):
    rows = stack(STAGE)
    for k in range(0, kn, 8):
        for r in range(L):
            at = w + min(r, n_rows - 1) * row_bytes + BYTES * (k0 + k)
            store(rows + 32 * r, load_bf16(f32x8, at))
        interleave(rows, tile + 4 * L * k)


QUANT = QuantType(
    "BF16", 30, BLOCK, 1, 0, dequantize, FewInput.FLOATS, dot_bf16, unpack_bf16, tile_dot_float
)
