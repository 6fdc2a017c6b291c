"""Input rows of a matrix product in 8 bits ("q8 rows"), and the kernels that make them.

A q8 row of n values (n a multiple of 32) is one run of memory; d, s and h spare the kernels work:

    q  i8[n]         values / d, rounded, -127..127
    d  f32[n / 32]   scale of each 32
    s  f32[n / 32]   d * sum of q over each 32: what an offset in the weights is multiplied with
    h  f32[n / 16]   the same over each 16

All weight types share this one format, so ops that read the same input share its quantised form.

Where 8 bits are not enough, a second q8 row ("plane") holds what the first one lost: together they are worth 16 bits,
at twice the arithmetic and the same memory traffic.
"""

from __future__ import annotations

import math

from engine.jit import inline
from engine.kernels.op import fields, kernel, n_rows, take
from engine.kernels.simd import (
    L,
    absolute,
    add,
    convert,
    div,
    dot,
    exp,
    f32x8,
    f32xL,
    fma,
    i8x32,
    i8xL,
    i32x8,
    i32xL,
    larger,
    load,
    max_lanes,
    mul,
    nearest,
    read_f32,
    read_i32,
    splat,
    store,
    sub,
    sum_lanes,
    write_f32,
    zeros,
)

SEGMENT = 512  # values of a row that one thread takes at a time; a multiple of 32


@inline
def q8_row_bytes(n):
    """Bytes of a q8 row of n values."""
    return n + n // 2


@inline
def q8_d(row, n):
    """Address of a q8 row's scales."""
    return row + n


@inline
def q8_s(row, n):
    """Address of a q8 row's scaled sums of 32."""
    return row + n + n // 8


@inline
def q8_h(row, n):
    """Address of a q8 row's scaled sums of 16."""
    return row + n + n // 4


@inline
def dot_group(sums, w, x, scale):
    """sums + scale * (32 weights w, u8x32 of at most 128, times the 32 q8 values at x), spread over eight lanes."""
    count = dot(zeros(i32x8), w, load(i8x32, x))
    return fma(convert(f32x8, count), scale, sums)


@inline
def quantise(x, n, q8, first, last):
    """Write values first..last (multiples of 32) of the n f32 at x into the q8 row."""
    d_at, s_at, h_at = q8_d(q8, n), q8_s(q8, n), q8_h(q8, n)
    for i in range(first, last, 32):
        peak = zeros(f32xL)
        for k in range(i, i + 32, L):
            peak = larger(absolute(load(f32xL, x + 4 * k)), peak)
        d = max_lanes(peak) / 127.0
        inverse = 1.0 / d if d > 0.0 else 0.0
        total = 0
        for half in range(2):
            count = zeros(i32xL)
            for k in range(i + 16 * half, i + 16 * half + 16, L):
                q = convert(i32xL, nearest(mul(load(f32xL, x + 4 * k), splat(f32xL, inverse))))
                store(q8 + k, convert(i8xL, q))
                count = add(count, q)
            part = sum_lanes(count)
            total += part
            write_f32(h_at + i // 16 * 4 + 4 * half, d * part)
        write_f32(d_at + i // 32 * 4, d)
        write_f32(s_at + i // 32 * 4, d * total)


@inline
def quantise_planes(x, n, q8, planes):
    """Quantise the n f32 at x to one q8 row, or to two, at q8; with two, x is left as what both together lost."""
    quantise(x, n, q8, 0, n)
    if planes == 2:
        for i in range(0, n, L):
            d = splat(f32xL, read_f32(q8_d(q8, n) + i // 32 * 4))
            q = convert(f32xL, convert(i32xL, load(i8xL, q8 + i)))
            store(x + 4 * i, sub(load(f32xL, x + 4 * i), mul(q, d)))
        quantise(x, n, q8 + q8_row_bytes(n), 0, n)


@kernel
def rms_norm(op, batch, thread, n_threads):
    """Row by row x / rms(x) * weight, as f32 to out and in 8 bits to q8 (0 = not wanted).

    x: f32[rows, n_in], weight: f32[n_in]. With rows_out, row i of the result is made of row row_out[i] of x.
    With two planes, `out` must be 0: its floats are used up.
    """
    o = fields(op)
    n = o.n_in
    rows = n_rows(op, batch)
    private = o.scratch + thread * o.scratch_bytes  # f32[n_in], where nobody wants the floats
    while True:
        row = take(op, 1)
        if row >= rows:
            break
        source = row
        if o.rows_out != 0:
            source = read_i32(fields(batch).row_out + 4 * row)
        x = o.x + 4 * n * source
        squares = zeros(f32xL)
        for i in range(0, n, L):
            v = load(f32xL, x + 4 * i)
            squares = fma(v, v, squares)
        inverse = splat(f32xL, 1.0 / math.sqrt(sum_lanes(squares) / n + o.eps))
        out = private if o.out == 0 else o.out + 4 * n * row
        for i in range(0, n, L):
            v = mul(load(f32xL, x + 4 * i), inverse)
            store(out + 4 * i, mul(v, load(f32xL, o.weight + 4 * i)))
        if o.q8 != 0:
            quantise_planes(out, n, o.q8 + row * o.planes * q8_row_bytes(n), o.planes)


@kernel
def silu_mul(op, batch, thread, n_threads):
    """x = silu(x) * y in place, and in 8 bits to q8 (0 = not wanted). x (gate), y (up): f32[rows, n_in]."""
    o = fields(op)
    n = o.n_in
    segments = (n + SEGMENT - 1) // SEGMENT
    items = n_rows(op, batch) * segments
    while True:
        item = take(op, 1)
        if item >= items:
            break
        row = item // segments
        first = item % segments * SEGMENT
        last = min(first + SEGMENT, n)
        gate, up = o.x + 4 * n * row, o.y + 4 * n * row
        for i in range(first, last, L):
            g = load(f32xL, gate + 4 * i)
            one = splat(f32xL, 1.0)
            silu = div(g, add(one, exp(sub(zeros(f32xL), g))))
            store(gate + 4 * i, mul(silu, load(f32xL, up + 4 * i)))
        if o.q8 != 0:
            quantise(gate, n, o.q8 + row * q8_row_bytes(n), first, last)


@kernel
def quantise_rows(op, batch, thread, n_threads):
    """x in 8 bits to q8. x: f32[rows, n_in]."""
    o = fields(op)
    n = o.n_in
    segments = (n + SEGMENT - 1) // SEGMENT
    items = n_rows(op, batch) * segments
    while True:
        item = take(op, 1)
        if item >= items:
            break
        row = item // segments
        first = item % segments * SEGMENT
        last = min(first + SEGMENT, n)
        quantise(o.x + 4 * n * row, n, o.q8 + row * q8_row_bytes(n), first, last)
