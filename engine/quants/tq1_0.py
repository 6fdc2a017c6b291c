"""TQ1_0: 256 weights in 54 bytes, one scale, values -1, 0 and 1: five to a byte, in base three.

qs  u8[48]
qh  u8[4]
d   f16       scale

A byte is a fraction of 256 whose first five digits in base three are weights + 1: digit n is
(byte * 3^n mod 256) * 3 / 256, rounded down. Byte i = 0..31 holds weights i + 32 n, byte i = 32..47
weights 128 + i + 16 n, and byte i of qh the four weights 240 + i + 4 n.

weight = d * (digit - 1)
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.op import part
from engine.kernels.simd import (
    concat,
    convert,
    f32x16,
    load,
    load_wide,
    mask,
    mul,
    read_f16,
    read_i32,
    reinterpret,
    shr,
    splat,
    u8x16,
    u8x32,
    u16x32,
    u32x4,
)
from engine.kernels.tile import tile_dot_4bit
from engine.quants.base import Blocks, FewInput, Floats, QuantType
from engine.quants.k_blocks import BY_16, unpack_blocks
from engine.quants.layouts import biased
from engine.quants.row_loops import dot4_rows, dot_rows

BLOCK = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])
BYTES = BLOCK.itemsize
BIAS = 1

_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)
# 3^n for each of 256 weights, in their order.
_POWER = np.concatenate(
    [np.repeat(_POWERS, 32), np.repeat(_POWERS, 16), np.repeat(_POWERS[:4], 4)]
).astype(np.uint16)


def dequantize(blocks: Blocks) -> Floats:
    first, second = np.tile(blocks["qs"][:, :32], 5), np.tile(blocks["qs"][:, 32:], 5)
    packed = np.concatenate([first, second, np.tile(blocks["qh"], 4)], axis=1)
    digits = (packed * _POWER & 255) * np.uint16(3) >> 8
    return blocks["d"].astype(np.float32)[:, None] * (digits.astype(np.float32) - np.float32(1))


@inline
def scales(block):
    """(scale, offset) for each 16 weights: two f32x16."""
    return biased(splat(f32x16, read_f16(block + 52)), BIAS)


@inline
def _digits(packed, g):
    """Weights 32 g .. 32 g + 31 from their bytes, u16x32: u8x32."""
    power = load(u16x32, np.int64(_POWER.ctypes.data) + 64 * g)
    rest = mul(mask(mul(packed, power), 255), splat(u16x32, 3))
    return convert(u8x32, shr(rest, 8))


@inline
def weights(block):
    """The 256 weights, BIAS added to each: four u8x64."""
    sixteen = load(u8x16, block + 32)
    four = reinterpret(u8x16, splat(u32x4, read_i32(block + 48)))
    first = load_wide(u16x32, block)  # of groups 0-4
    second = convert(u16x32, concat(sixteen, sixteen))  # of 5 and 6
    last = convert(u16x32, concat(sixteen, four))
    return (
        concat(_digits(first, 0), _digits(first, 1)),
        concat(_digits(first, 2), _digits(first, 3)),
        concat(_digits(first, 4), _digits(second, 5)),
        concat(_digits(second, 6), _digits(last, 7)),
    )


_LAYOUT = BYTES, scales, weights


@part(6)
def dot_tq1_0(w, row_bytes, n_rows, n_in, x, out):
    dot_rows(BY_16, _LAYOUT, (w, row_bytes, n_rows, n_in), (x, 0, out, 0))


@part(9)
def dot4_tq1_0(w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes):
    at = w, row_bytes, n_rows, n_in
    dot4_rows(BY_16, _LAYOUT, at, n_x, (x, x_bytes, out, out_bytes))


@part(6)
def unpack_tq1_0(w, row_bytes, n_rows, k0, kn, tile):
    unpack_blocks(scales, weights, 32, BYTES, w, row_bytes, n_rows, k0, kn, tile)


QUANT = QuantType(
    name="TQ1_0",
    ggml_type=34,
    block=BLOCK,
    block_size=256,
    group=32,
    dequantize=dequantize,
    few_input=FewInput.FINE8,
    dot=dot_tq1_0,
    dot4=dot4_tq1_0,
    unpack=unpack_tq1_0,
    tile_dot=tile_dot_4bit,
)
