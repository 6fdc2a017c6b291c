"""Q4_0: 32 weights in 18 bytes, one scale, values -8..7.

d   f16       scale
qs  u8[16]    low nibbles: weights 0..15, high nibbles: weights 16..31

weight = d * (nibble - 8)
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import (
    Field,
    interleave,
    read_f16,
    stack,
    store,
    write_f32,
)
from engine.kernels.tile import STAGE, N, offset_at, scale_at, tile_dot_4bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.eight_blocks import EIGHTS, f16_scales
from engine.quants.eight_blocks import nibbles as nibbles_of_eight
from engine.quants.layouts import nibbles
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
BYTES = BLOCK.itemsize
_D, _QS = Field(0, BYTES), Field(2, BYTES)


def dequantize(blocks: Blocks) -> Floats:
    d = blocks["d"].astype(np.float32)[:, None]
    nibbles = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=1)
    return d * (nibbles.astype(np.float32) - np.float32(8))


@inline
def _scales(blocks):
    return f16_scales(blocks, _D, 8)


@inline
def _weights(blocks):
    return nibbles_of_eight(blocks, _QS)


_LAYOUT = 8 * BYTES, _scales, _weights


@part(6)
def dot_q4_0(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(EIGHTS, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_q4_0(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(EIGHTS, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_q4_0(w, row_bytes, n_rows, k0, kn, tile):
    scale, offset = scale_at(tile, kn), offset_at(tile, kn, 32)
    rows = stack(STAGE)
    for b in range(kn // 32):
        for r in range(N):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 32 + b) * BYTES
            store(rows + 32 * r, nibbles(block + 2))
            d = read_f16(block)
            write_f32(scale + (b * N + r) * 4, d)
            write_f32(offset + (b * N + r) * 4, -8.0 * d)
        interleave(rows, tile + 32 * N * b, N)


QUANT = QuantType(
    name="Q4_0",
    ggml_type=2,
    block=BLOCK,
    block_size=32,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.FINE16,
    dot=dot_q4_0,
    dot4=dot4_q4_0,
    unpack=unpack_q4_0,
    tile_dot=tile_dot_4bit,
)
