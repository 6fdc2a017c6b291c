"""Norms: RMS norm, and layer norm (`centred`), which subtracts the mean first and may have a bias.

(x - mean) / sqrt(mean square of that + eps) * weight + bias        mean = 0 for RMS norm
"""

from __future__ import annotations

import math

from engine.jit import inline
from engine.kernels.activation import SEGMENT, n_planes, quantise
from engine.kernels.op import fields, kernel, n_rows, take
from engine.kernels.simd import (
    L,
    add,
    f32xL,
    fma,
    load,
    mul,
    read_i32,
    splat,
    store,
    sub,
    sum_lanes,
    zeros,
)


@inline
def _mean(x, n):
    """The mean of the n f32 at x, in all lanes."""
    sums = zeros(f32xL)
    for i in range(0, n, L):
        sums = add(load(f32xL, x + 4 * i), sums)
    return splat(f32xL, sum_lanes(sums) / n)


@inline
def _inverse_spread(x, n, mean, eps):
    """1 / sqrt(mean square about `mean` + eps) of the n f32 at x, in all lanes."""
    squares = zeros(f32xL)
    for i in range(0, n, L):
        v = sub(load(f32xL, x + 4 * i), mean)
        squares = fma(v, v, squares)
    return splat(f32xL, 1.0 / math.sqrt(sum_lanes(squares) / n + eps))


@inline
def _normalise(x, n, out, weight, bias, eps, centred, accumulate):
    """The norm of the n f32 at x, to `out` (which may be x) or added to it. bias: 0 = none."""
    mean = _mean(x, n) if centred != 0 else zeros(f32xL)
    inverse = _inverse_spread(x, n, mean, eps)
    for i in range(0, n, L):
        v = mul(sub(load(f32xL, x + 4 * i), mean), inverse)
        v = mul(v, load(f32xL, weight + 4 * i))
        if bias != 0:
            v = add(v, load(f32xL, bias + 4 * i))
        if accumulate != 0:
            v = add(v, load(f32xL, out + 4 * i))
        store(out + 4 * i, v)


@inline
def norm_head(head, weight, head_dim, eps, centred):
    """Normalise one head, f32[head_dim] at `head`, in place; weight 0 = not at all."""
    if weight != 0:
        _normalise(head, head_dim, head, weight, 0, eps, centred, 0)


@kernel
def norm(op, batch, thread, n_threads):
    """Normalise row by row, as f32 to out and as integers to q8, fine8, fine16.

    x: f32[rows, n_in], weight, bias: f32[n_in]; an output of 0 is not wanted; out may be x. With
    rows_out, row i of the result is made of row row_out[i] of x. With accumulate, out += the norm.
    """
    o = fields(op)
    n = o.n_in
    rows, planes = n_rows(op, batch), n_planes(op, batch)
    private = o.scratch + thread * o.scratch_bytes  # f32[n_in], where nobody wants the floats
    while True:
        row = take(op, 1)
        if row >= rows:
            break
        source = row
        if o.rows_out != 0:
            source = read_i32(fields(batch).row_out + 4 * row)
        out = private if o.out == 0 else o.out + 4 * n * row
        x = o.x + 4 * n * source
        _normalise(x, n, out, o.weight, o.bias, o.eps, o.centred, o.accumulate)
        for i in range(0, n, SEGMENT):
            quantise(o, planes, out, row, i, min(i + SEGMENT, n))
