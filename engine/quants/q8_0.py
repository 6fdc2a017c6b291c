"""Q8_0: 32 weights in 34 bytes, one scale, values -127..127.

d   f16       scale
qs  i8[32]

weight = d * qs
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import (
    Field,
    flip,
    interleave,
    load,
    read_f16,
    stack,
    store,
    u8x32,
    write_f32,
)
from engine.kernels.tile import STAGE, N, offset_at, scale_at, tile_dot_8bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.eight_blocks import BYTE_BIAS, EIGHTS, f16_scales, signed_bytes
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
BYTES = BLOCK.itemsize
_D, _FIRST, _SECOND = Field(0, BYTES), Field(2, BYTES), Field(18, BYTES)


def dequantize(blocks: Blocks) -> Floats:
    return blocks["d"].astype(np.float32)[:, None] * blocks["qs"].astype(np.float32)


@inline
def _scales(blocks):
    return f16_scales(blocks, _D, BYTE_BIAS)


@inline
def _weights(blocks):
    return signed_bytes(blocks, _FIRST, _SECOND)


_LAYOUT = 8 * BYTES, _scales, _weights


@part(6)
def dot_q8_0(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(EIGHTS, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_q8_0(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(EIGHTS, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


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
    few_input=FewInput.FINE16,
    dot=dot_q8_0,
    dot4=dot4_q8_0,
    unpack=unpack_q8_0,
    tile_dot=tile_dot_8bit,
)
