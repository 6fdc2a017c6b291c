"""The tile: N rows of weights, unpacked once and then multiplied with many input rows.

A quantised tile of kn columns, in groups of `group` weights that share a scale:

    w      u8[kn / 4][N][4]     four neighbouring columns of row 0, the same of row 1, ...
    scale  f32[kn / group][N]   weight = scale * w + offset
    offset f32[kn / group][N]

One lane a row: four columns of all rows are one vector, to be multiplied with the same four inputs
in every lane. A float tile is f32[kn][N]. Both stay in the L1 or L2 cache, and are forgotten after
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
    i16x2L,
    i32xL,
    load_tile,
    outer_dot_signed,
    outer_dots,
    outer_fma,
    outer_scale,
    stack,
    store_tile,
    u8x4L,
    widen_part,
    zeros,
)

from numba import literally  # isort: skip  # after engine.jit

# What the registers hold: products of T input rows with J vectors of weights. Each input is loaded
# once for J vectors, each vector once for T rows.
T, J = (8, 1) if L == 16 else (4, 2)
N = J * L  # weight rows of a tile
K_CHUNK = 2048  # columns of a tile at most

# Bytes of stack in which an unpack function gathers N rows of 32 bytes before it interleaves them:
# once, twice, eight times.
STAGE, STAGE_2, STAGE_8 = N * 32, N * 64, N * 256

_SUMS_BYTES = T * N * 4
_WEIGHTS, _SCALES = Tile(u8x4L, J, J), Tile(f32xL, J, J)
_SUMS = Tile(f32xL, T * J, J)
_COUNTS = Tile(i32xL, T * J, J)
_PARTS = Tile(i16x2L, T * J, J) if PROFILE.dot == "maddubs" else _COUNTS
_SUMS_16_BIT = PROFILE.dot == "maddubs"


def tile_bytes(group: int) -> int:
    """Bytes of the largest tile; group 0 is a float tile."""
    return N * K_CHUNK * 4 if group == 0 else N * (K_CHUNK + K_CHUNK // group * 8)


@inline
def scale_at(tile, kn):
    """Address of a tile's scales."""
    return tile + N * kn


@inline
def offset_at(tile, kn, group):
    """Address of a tile's offsets."""
    return tile + N * kn + kn // group * 4 * N


@inline
def _finish(sums, out, out_stride, accumulate):
    if accumulate != 0:
        sums = add(sums, load_tile(_SUMS, out, out_stride))
    store_tile(out, out_stride, sums)


@inline
def _counts(w, x, x_stride, group, n_sums):
    """Integer products of one group: i32[T][N]. n_sums vectors of products fit in 16 bits."""
    counts = zeros(_COUNTS)
    if _SUMS_16_BIT:
        n = literally(n_sums)
        for k in range(0, group // 4, n):
            parts = outer_dots(zeros(_PARTS), w + k * 4 * N, x + 4 * k, x_stride, n)
            counts = widen_part(counts, parts)
    else:
        for k in range(0, group // 4, 4):
            counts = outer_dots(counts, w + k * 4 * N, x + 4 * k, x_stride, 4)
    return counts


@inline
def _dot_q8(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate, group, n_sums):
    scale, offset = scale_at(tile, kn), offset_at(tile, kn, group)
    waiting = stack(_SUMS_BYTES)  # the sums, while registers are full of a group's products
    for t in range(0, n_x, T):
        row = x + t * x_stride
        q = row + k0
        d = q8_d(row, n_in) + k0 // 32 * 4
        s = q8_s(row, n_in) + k0 // 32 * 4 if group == 32 else q8_h(row, n_in) + k0 // 16 * 4
        sums = zeros(_SUMS)
        for g in range(kn // group):
            offset_g = load_tile(_SCALES, offset + g * 4 * N, 0)
            sums = outer_fma(sums, offset_g, s + 4 * g, x_stride)
        store_tile(waiting, 4 * N, sums)
        for g in range(kn // group):
            counts = _counts(tile + g * group * N, q + g * group, x_stride, group, n_sums)
            scale_g = load_tile(_SCALES, scale + g * 4 * N, 0)
            d_g = d + g * group // 32 * 4
            sums = load_tile(_SUMS, waiting, 4 * N)
            sums = outer_scale(sums, counts, scale_g, d_g, x_stride)
            store_tile(waiting, 4 * N, sums)
        _finish(load_tile(_SUMS, waiting, 4 * N), out + t * out_stride, out_stride, accumulate)


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
                w = load_tile(_WEIGHTS, tile + (g * 8 + i) * 4 * N, 0)
                w = flip(w, 128)  # signed bytes
                counts = outer_dot_signed(counts, w, q + g * 32 + 4 * i, x_stride)
            sums = outer_scale(
                sums, counts, load_tile(_SCALES, scale + g * 4 * N, 0), d + 4 * g, x_stride
            )
        _finish(sums, out + t * out_stride, out_stride, accumulate)


@part(10)
def tile_dot_float(tile, kn, x, x_stride, n_in, k0, n_x, out, out_stride, accumulate):
    """Like tile_dot_4bit for a float tile and f32 input rows."""
    for t in range(0, n_x, T):
        row = x + t * x_stride + 4 * k0
        sums = zeros(_SUMS)
        for k in range(kn):
            sums = outer_fma(sums, load_tile(_SCALES, tile + k * 4 * N, 0), row + 4 * k, x_stride)
        _finish(sums, out + t * out_stride, out_stride, accumulate)
