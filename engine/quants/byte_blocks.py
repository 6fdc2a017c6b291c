"""Dot product and tile for blocks of 256 weights that unpack to bytes, 32 at a time.

The types that share this differ in two functions, which each of them hands in:

    head(block, place)          what is read once for a block, written to `place`: the scales,
                                f32[8] or f32[16] of its groups of 32 or 16, and at place + EXTRA
                                what weights() wants to find there
    weights(block, place, g)    weights 32 g .. 32 g + 31 as u8x32, `bias` added to each
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.activation import dot_fine_bytes, fine8_d, fine8_h, fine8_s, fine_bias
from engine.kernels.op import AHEAD
from engine.kernels.simd import (
    L,
    Lanes,
    add,
    f32x2,
    f32x8,
    fma,
    interleave,
    load,
    mul,
    prefetch,
    read_f32,
    shuffle,
    splat,
    stack,
    store,
    sum_lanes,
    write_f32,
    zeros,
)
from engine.kernels.tile import STAGE_2, STAGE_8, offset_at, scale_at

PLACE, EXTRA = 192, 64  # bytes of a block's place; where the scales end in it

_PAIR = Lanes(0, 0, 0, 0, 1, 1, 1, 1)  # two neighbouring groups' scales, each for half the lanes


@inline
def _scale(place, g, group):
    """The scales of 32 weights, each in its lanes."""
    if group == 16:
        return shuffle(load(f32x2, place + 8 * g), _PAIR)
    return splat(f32x8, read_f32(place + 4 * g))


@inline
def dot_byte_blocks(head, weights, group, bias, block_bytes, w, row_bytes, n_rows, n_in, x, out):
    """The type's `dot`. group: weights that share a scale, 32 or 16."""
    d_x, sums_x = fine8_d(x, n_in), fine8_s(x, n_in) if group == 32 else fine8_h(x, n_in)
    n_scales = 256 // group
    place = stack(PLACE)
    for r in range(n_rows):
        block = w + r * row_bytes
        even, odd = zeros(f32x8), zeros(f32x8)  # two sums: one would wait for itself
        offsets = zeros(f32x8)
        for b in range(n_in // 256):
            for line in range(0, block_bytes, 64):
                prefetch(block + AHEAD + line)
            head(block, place)
            if fine_bias(bias) != 0.0:
                for i in range(0, n_scales, 8):
                    sum_x = load(f32x8, sums_x + 4 * (n_scales * b + i))
                    offsets = fma(load(f32x8, place + 4 * i), sum_x, offsets)
            for g in range(0, 8, 2):
                x_g, d_g = x + 256 * b + 32 * g, d_x + 256 * b + 32 * g
                q, scale = weights(block, place, g), _scale(place, g, group)
                even = dot_fine_bytes(even, q, bias, x_g, d_g, scale)
                q, scale = weights(block, place, g + 1), _scale(place, g + 1, group)
                odd = dot_fine_bytes(odd, q, bias, x_g + 32, d_g + 32, scale)
            block += block_bytes
        total = fma(offsets, splat(f32x8, -fine_bias(bias)), add(even, odd))
        write_f32(out + 4 * r, sum_lanes(total))


@inline
def unpack_byte_blocks(head, weights, group, bias, block_bytes, w, row_bytes, n_rows, k0, kn, tile):
    """The type's `unpack`."""
    scale_out, offset_out = scale_at(tile, kn), offset_at(tile, kn, group)
    n_scales = 256 // group
    place = stack(PLACE)
    rows = stack(STAGE_8)  # eight runs of L rows of 32 bytes
    scales, offsets = stack(STAGE_2), stack(STAGE_2)  # one run or two of L rows of eight floats
    for b in range(kn // 256):
        for r in range(L):
            block = w + min(r, n_rows - 1) * row_bytes + (k0 // 256 + b) * block_bytes
            head(block, place)
            for run in range(n_scales // 8):
                scale = load(f32x8, place + 32 * run)
                store(scales + (run * L + r) * 32, scale)
                store(offsets + (run * L + r) * 32, mul(scale, splat(f32x8, -1.0 * bias)))
            for g in range(8):
                store(rows + (g * L + r) * 32, weights(block, place, g))
        for g in range(8):
            interleave(rows + g * L * 32, tile + (8 * b + g) * 32 * L)
        for run in range(n_scales // 8):
            at = (n_scales * b + 8 * run) * 4 * L
            interleave(scales + run * L * 32, scale_out + at)
            interleave(offsets + run * L * 32, offset_out + at)
