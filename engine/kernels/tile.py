"""The tile: L rows of weights, unpacked once and then multiplied with many input rows.

A quantised tile of kn columns, in groups of `group` weights that share a scale:

    w      u8[kn / 4][L][4]     four neighbouring columns of row 0, the same of row 1, ...
    scale  f32[kn / group][L]   weight = scale * w + offset
    offset f32[kn / group][L]

One lane a row: four columns of all rows are one vector, to be multiplied with the same four inputs
in every lane. A float tile is f32[kn][L]. Both stay in the L1 or L2 cache, and are forgotten after
the op.

The products (`tile_dot_*`, all with the same arguments) run over T input rows at a time, held in
registers. How many u8 x i8 products may be summed in 16 bits before they are widened depends on the
weights' bits, hence one function each.
"""

from __future__ import annotations

from engine.jit import PROFILE, inline
from engine.kernels.activation import q8_d, q8_h, q8_s
from engine.kernels.op import part
from engine.kernels.simd import (
    ANY_U8,
    L,
    Tile,
    add,
    f32xL,
    flip,
    i8x4L,
    i16x2L,
    i32xL,
    load,
    load_tile,
    outer_dot,
    outer_dot_signed,
    outer_fma,
    outer_scale,
    reinterpret,
    store_tile,
    u8x4L,
    widen_part,
    zeros,
)

T = 8 if L == 16 else 4  # input rows at a time; what the registers hold
K_CHUNK = 2048  # columns of a tile at most

# Bytes of stack in which an unpack function gathers L rows of 32 bytes before it interleaves them:
# once, twice, eight times.
STAGE, STAGE_2, STAGE_8 = L * 32, L * 64, L * 256

_SUMS = Tile(f32xL, T)
_COUNTS = Tile(i32xL, T)
_PARTS = Tile(i16x2L, T) if PROFILE.dot == "maddubs" else _COUNTS
_SUMS_16_BIT = PROFILE.dot == "maddubs"


def tile_bytes(group: int) -> int:
    """Bytes of the largest tile; group 0 is a float tile."""
    return L * K_CHUNK * 4 if group == 0 else L * (K_CHUNK + K_CHUNK // group * 8)


@inline
def scale_at(tile, kn):
    """Address of a tile's scales."""
    return tile + L * kn


@inline
def offset_at(tile, kn, group):
    """Address of a tile's offsets."""
    return tile + L * kn + kn // group * 4 * L


@inline
def _finish(sums, out, out_stride, accumulate):
    if accumulate != 0:
        sums = add(sums, load_tile(_SUMS, out, out_stride))
    store_tile(out, out_stride, sums)


@inline
def _counts(w, x, x_stride, group, n_sums):
    """Integer products of one group: i32[T][L]. n_sums vectors of products fit in 16 bits."""
    counts = zeros(_COUNTS)
    if _SUMS_16_BIT:
        for k in range(0, group // 4, n_sums):
            parts = zeros(_PARTS)
            for i in range(k, k + n_sums):
                parts = outer_dot(parts, load(u8x4L, w + i * 4 * L), x + 4 * i, x_stride)
            counts = widen_part(counts, parts)
    else:
        for i in range(group // 4):
            counts = outer_dot(counts, load(u8x4L, w + i * 4 * L), x + 4 * i, x_stride)
    return counts


@inline
def _dot_q8(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate, group, n_sums):
    scale, offset = scale_at(tile, kn), offset_at(tile, kn, group)
    for t in range(0, n_x, T):
        row = x + t * x_stride
        q = row + k0
        d = q8_d(row, n_in) + k0 // 32 * 4
        s = q8_s(row, n_in) + k0 // 32 * 4 if group == 32 else q8_h(row, n_in) + k0 // 16 * 4
        sums = zeros(_SUMS)
        for g in range(kn // group):
            counts = _counts(tile + g * group * L, q + g * group, x_stride, group, n_sums)
            d_g = d + g * group // 32 * 4
            sums = outer_scale(sums, counts, load(f32xL, scale + g * 4 * L), d_g, x_stride)
            sums = outer_fma(sums, load(f32xL, offset + g * 4 * L), s + 4 * g, x_stride)
        _finish(sums, out + t * out_stride, out_stride, accumulate)


@part(10)
def tile_dot_4bit(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate):
    """out[t, lane] (+)= sum over columns k0..k0+kn of x[t] * weights[lane], weights below 16.

    x: q8 rows of n_in values. Rows up to the next multiple of T are read and written: buffers are
    that long.
    """
    _dot_q8(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate, 32, 8)


@part(10)
def tile_dot_5bit(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate):
    """Like tile_dot_4bit for weights below 32."""
    _dot_q8(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate, 32, 4)


@part(10)
def tile_dot_5bit_16(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate):
    """Like tile_dot_5bit for groups of 16."""
    _dot_q8(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate, 16, 4)


@part(10)
def tile_dot_6bit_16(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate):
    """Like tile_dot_4bit for weights below 64 in groups of 16."""
    _dot_q8(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate, 16, 2)


@part(10)
def tile_dot_7bit(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate):
    """Like tile_dot_4bit for weights of at most 127."""
    _dot_q8(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate, 32, 1)


@part(10)
def tile_dot_7bit_16(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate):
    """Like tile_dot_7bit for groups of 16."""
    _dot_q8(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate, 16, 1)


@part(10)
def tile_dot_8bit(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate):
    """Like tile_dot_4bit for any u8 weights whose offset is -128 scales: signed bytes, that is."""
    if ANY_U8:
        _dot_q8(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate, 32, 8)
        return
    scale = scale_at(tile, kn)
    for t in range(0, n_x, T):
        row = x + t * x_stride
        q = row + k0
        d = q8_d(row, n_in) + k0 // 32 * 4
        sums = zeros(_SUMS)
        for g in range(kn // 32):
            counts = zeros(_COUNTS)
            for i in range(8):
                w = load(u8x4L, tile + (g * 8 + i) * 4 * L)
                w = reinterpret(i8x4L, flip(w, 128))
                counts = outer_dot_signed(counts, w, q + g * 32 + 4 * i, x_stride)
            sums = outer_scale(sums, counts, load(f32xL, scale + g * 4 * L), d + 4 * g, x_stride)
        _finish(sums, out + t * out_stride, out_stride, accumulate)


@part(10)
def tile_dot_float(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate):
    """Like tile_dot_4bit for a float tile and f32 input rows."""
    for t in range(0, n_x, T):
        row = x + t * x_stride + 4 * k0
        sums = zeros(_SUMS)
        for k in range(kn):
            sums = outer_fma(sums, load(f32xL, tile + k * 4 * L), row + 4 * k, x_stride)
        _finish(sums, out + t * out_stride, out_stride, accumulate)
