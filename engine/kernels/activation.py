"""Input rows of a matrix product as integers, and the kernels that make them.

Few rows (decoding) are rounded to 16 bits: memory is what limits them, and precision costs nothing.
Many rows (prefill) are rounded to 8 bits. A row of n values (n a multiple of 32) is one run of
memory; d, s and h spare the kernels work:

    q  i16[n] or i8[n]   values / d, rounded
    d  f32[n / 32]       scale of each 32: the largest is 32767 or 127
    s  f32[n / 32]       d * sum of q over each 32: what an offset in the weights is multiplied with
    h  f32[n / 16]       the same over each 16

All weight types share these formats, so ops that read the same input share its quantised form.

Where 8 bits are not enough, a second q8 row ("plane") holds what the first one lost: together they
are worth 16 bits, at twice the arithmetic.
"""

from __future__ import annotations

import math

from engine.jit import inline
from engine.kernels.op import FEW, fields, kernel, n_rows, take
from engine.kernels.simd import (
    L,
    absolute,
    add,
    convert,
    div,
    exp,
    f32xL,
    fma,
    i8xL,
    i16xL,
    i32xL,
    larger,
    load,
    max_lanes,
    mul,
    nearest,
    products,
    read_f32,
    read_i32,
    splat,
    stack,
    store,
    sub,
    sum_lanes,
    total,
    write_f32,
    zeros,
)

SEGMENT = 512  # values of a row that one thread takes at a time; a multiple of 32
_SEGMENT_BYTES = 4 * SEGMENT


@inline
def q8_row_bytes(n):
    """Bytes of a row of n values in 8 bits."""
    return n + n // 2


@inline
def q16_row_bytes(n):
    """Bytes of a row of n values in 16 bits."""
    return 2 * n + n // 2


@inline
def q8_d(row, n):
    """Address of a q8 row's scales; a q16 row's: q8_d(row + n, n), and so on."""
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
    """sums + scale * (32 weights w, a WIDE tile, times the 32 q16 values at x); sums, scale:
    f32xL.
    """
    return fma(convert(f32xL, total(products(w, x))), scale, sums)


@inline
def _quantise(x, n, row, first, last, kind, most):
    """Write values first..last (multiples of 32) of the n f32 at x as integers of `kind`, up to
    `most` in size.
    """
    q_bytes = 1 if most == 127.0 else 2
    d_at = row + q_bytes * n
    s_at, h_at = d_at + n // 8, d_at + n // 4
    for i in range(first, last, 32):
        peak = zeros(f32xL)
        for k in range(i, i + 32, L):
            peak = larger(absolute(load(f32xL, x + 4 * k)), peak)
        d = max_lanes(peak) / most
        inverse = 1.0 / d if d > 0.0 else 0.0
        sum_32 = 0
        for half in range(2):
            count = zeros(i32xL)
            for k in range(i + 16 * half, i + 16 * half + 16, L):
                q = convert(i32xL, nearest(mul(load(f32xL, x + 4 * k), splat(f32xL, inverse))))
                store(row + q_bytes * k, convert(kind, q))
                count = add(count, q)
            part = sum_lanes(count)
            sum_32 += part
            write_f32(h_at + i // 16 * 4 + 4 * half, d * part)
        write_f32(d_at + i // 32 * 4, d)
        write_f32(s_at + i // 32 * 4, d * sum_32)


@inline
def _quantise_part(x, n, rows, row, first, last, few, planes):
    """Values first..last (at most SEGMENT) of row number `row`: in 16 bits, or in `planes` times 8
    bits.
    """
    if few:
        _quantise(x, n, rows + row * q16_row_bytes(n), first, last, i16xL, 32767.0)
        return
    q8 = rows + row * planes * q8_row_bytes(n)
    _quantise(x, n, q8, first, last, i8xL, 127.0)
    if planes == 2:
        lost = stack(_SEGMENT_BYTES) - 4 * first  # what the first plane rounded away
        for i in range(first, last, L):
            d = splat(f32xL, read_f32(q8_d(q8, n) + i // 32 * 4))
            q = convert(f32xL, convert(i32xL, load(i8xL, q8 + i)))
            store(lost + 4 * i, sub(load(f32xL, x + 4 * i), mul(q, d)))
        _quantise(lost, n, q8 + q8_row_bytes(n), first, last, i8xL, 127.0)


@inline
def n_planes(op, batch):
    """q8 rows for one row."""
    return max(fields(op).planes, fields(batch).planes)


@kernel
def rms_norm(op, batch, thread, n_threads):
    """Row by row x / rms(x) * weight, as f32 to out and as integers to quantised (0 = not wanted).

    x: f32[rows, n_in], weight: f32[n_in]. With rows_out, row i of the result is made of row
       row_out[i] of x.
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
        if o.quantised != 0:
            for i in range(0, n, SEGMENT):
                last = min(i + SEGMENT, n)
                _quantise_part(out, n, o.quantised, row, i, last, rows <= FEW, planes)


@kernel
def silu_mul(op, batch, thread, n_threads):
    """x = silu(x) * y in place, and as integers to quantised (0 = not wanted).

    x (gate), y (up): f32[rows, n_in].
    """
    o = fields(op)
    n = o.n_in
    segments = (n + SEGMENT - 1) // SEGMENT
    rows, planes = n_rows(op, batch), n_planes(op, batch)
    items = rows * segments
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
        if o.quantised != 0:
            _quantise_part(gate, n, o.quantised, row, first, last, rows <= FEW, planes)


@kernel
def quantise_rows(op, batch, thread, n_threads):
    """x as integers to quantised. x: f32[rows, n_in]."""
    o = fields(op)
    n = o.n_in
    segments = (n + SEGMENT - 1) // SEGMENT
    rows, planes = n_rows(op, batch), n_planes(op, batch)
    items = rows * segments
    while True:
        item = take(op, 1)
        if item >= items:
            break
        row = item // segments
        first = item % segments * SEGMENT
        last = min(first + SEGMENT, n)
        _quantise_part(o.x + 4 * n * row, n, o.quantised, row, first, last, rows <= FEW, planes)
