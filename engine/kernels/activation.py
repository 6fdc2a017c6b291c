"""Input rows of a matrix product as integers, and the kernels that make them.

A row of n values (n a multiple of 32) is one run of memory. Its parts spare the products work: s
and h are what an offset in the weights is multiplied with.

    q8     many rows (prefill), where arithmetic is the limit
        q  i8[n]         values / d, rounded
        d  f32[n / 32]   scale of each 32, the largest of which becomes 127
        s  f32[n / 32]   d * sum of q over each 32
        h  f32[n / 16]   the same over each 16

    q16    few rows (decode), where memory is the limit and precision nearly free
        q  i16[n]        then d, s, h as above; the largest becomes 32767

    fine8  few rows for weights that must be unpacked fast (256 to a block, or values from a table):
           8 bits, but a scale for each 4, which loses a tenth of what a scale for each 32 does
        q  i8[n]
        d  f32[n / 4]
        s  f32[n / 32]
        h  f32[n / 16]

Weight types share these forms, so ops that read the same input share its quantised form.

Where 8 bits are not enough for many rows, a second q8 row ("plane") holds what the first one lost:
together they are worth 16 bits, at twice the arithmetic.
"""

from __future__ import annotations

import math

import numpy as np

from engine.jit import PROFILE, inline
from engine.kernels.op import FEW, fields, kernel, n_rows, take
from engine.kernels.simd import (
    L,
    Lanes,
    absolute,
    add,
    convert,
    div,
    dot,
    dot_signed,
    exp,
    f32x8,
    f32xL,
    flip,
    fma,
    i8x32,
    i8xL,
    i16xL,
    i32x8,
    i32xL,
    larger,
    load,
    max_lanes,
    mul,
    nearest,
    products,
    read_f32,
    read_i32,
    reinterpret,
    shuffle,
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
ZERO = np.float32(0)


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
def fine8_row_bytes(n):
    """Bytes of a row of n values in 8 bits with a scale for each 4."""
    return 2 * n + n // 8 + n // 4


@inline
def fine8_d(row, n):
    """Address of a fine8 row's scales."""
    return row + n


@inline
def fine8_s(row, n):
    """Address of a fine8 row's scaled sums of 32."""
    return row + 2 * n


@inline
def fine8_h(row, n):
    """Address of a fine8 row's scaled sums of 16."""
    return row + 2 * n + n // 8


@inline
def dot_fine(sums, w, x, d, scale):
    """sums + scale * (32 weights w, u8x32 of at most 128, times the 32 fine8 values at x), 8 lanes.

    d: address of the eight scales of x; scale: f32x8.
    """
    count = convert(f32x8, dot(zeros(i32x8), w, load(i8x32, x)))
    return fma(count, mul(load(f32x8, d), scale), sums)


# Where bytes above 128 would overflow the sums of pairs, they are multiplied as signed ones.
_SIGN_BYTES = PROFILE.dot == "maddubs"


@inline
def dot_fine_bytes(sums, w, bias, x, d, scale):
    """Like dot_fine for weights that stand for w - bias: at most 128, or any bytes with bias 128.

    What is left to take off is fine_bias(bias) * scale times the sum of the values.
    """
    if bias == 128 and _SIGN_BYTES:
        signed = reinterpret(i8x32, flip(w, 128))
        count = convert(f32x8, dot_signed(zeros(i32x8), signed, load(i8x32, x)))
        return fma(count, mul(load(f32x8, d), scale), sums)
    return dot_fine(sums, w, x, d, scale)


@inline
def fine_bias(bias):
    """The part of a bias that dot_fine_bytes leaves in its sums."""
    return 0.0 if bias == 128 and _SIGN_BYTES else 1.0 * bias


@inline
def dot_group(sums, w, x, scale):
    """sums + scale * (32 weights w, a WIDE tile, times the 32 q16 values at x), in f32xL."""
    return fma(convert(f32xL, total(products(w, x))), scale, sums)


@inline
def _quantise(x, n, row, first, last, kind, most):
    """Write values first..last of the n f32 at x as integers of `kind`, up to `most` in size.

    first, last: multiples of 32.
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


# The largest of each four neighbouring lanes, by two exchanges; then one lane of each four.
_SWAP_1 = Lanes(*[i ^ 1 for i in range(L)])
_SWAP_2 = Lanes(*[i ^ 2 for i in range(L)])
_EACH_4TH = Lanes(*range(0, L, 4))
_TINY = np.float32(1e-30)  # so that a row of zeros has a scale


@inline
def _quantise_fine(x, n, row, first, last):
    """Write values first..last (multiples of 32) of the n f32 at x into the fine8 row."""
    d_at, s_at, h_at = fine8_d(row, n), fine8_s(row, n), fine8_h(row, n)
    for i in range(first, last, 32):
        sum_32 = ZERO
        for half in range(2):
            sums = zeros(f32xL)
            for k in range(i + 16 * half, i + 16 * half + 16, L):
                v = load(f32xL, x + 4 * k)
                peak = larger(absolute(v), splat(f32xL, _TINY))
                peak = larger(peak, shuffle(peak, _SWAP_1))
                peak = larger(peak, shuffle(peak, _SWAP_2))
                q = nearest(mul(v, div(splat(f32xL, 127.0), peak)))
                d = mul(peak, splat(f32xL, 1.0 / 127.0))
                store(row + k, convert(i8xL, convert(i32xL, q)))
                store(d_at + k, shuffle(d, _EACH_4TH))
                sums = fma(q, d, sums)
            sum_16 = sum_lanes(sums)
            sum_32 += sum_16
            write_f32(h_at + i // 16 * 4 + 4 * half, sum_16)
        write_f32(s_at + i // 32 * 4, sum_32)


@inline
def _quantise_few(op, x, row, first, last):
    """Values first..last of row number `row` in the few-row forms that the op's readers want."""
    n = op.n_in
    if op.q16 != 0:
        _quantise(x, n, op.q16 + row * q16_row_bytes(n), first, last, i16xL, 32767.0)
    if op.fine8 != 0:
        _quantise_fine(x, n, op.fine8 + row * fine8_row_bytes(n), first, last)


@inline
def _quantise_many(op, x, row, first, last, planes):
    """Values first..last (at most SEGMENT) of row number `row` in 8 bits, in one plane or two."""
    if op.q8 == 0:
        return
    n = op.n_in
    q8 = op.q8 + row * planes * q8_row_bytes(n)
    _quantise(x, n, q8, first, last, i8xL, 127.0)
    if planes == 2:
        lost = stack(_SEGMENT_BYTES) - 4 * first  # what the first plane rounded away
        for i in range(first, last, L):
            d = splat(f32xL, read_f32(q8_d(q8, n) + i // 32 * 4))
            q = convert(f32xL, convert(i32xL, load(i8xL, q8 + i)))
            store(lost + 4 * i, sub(load(f32xL, x + 4 * i), mul(q, d)))
        _quantise(lost, n, q8 + q8_row_bytes(n), first, last, i8xL, 127.0)


@inline
def _quantise_for(op, rows, planes, x, row, first, last):
    """Values first..last of row number `row` in all forms that the op's readers want."""
    if rows <= FEW:
        _quantise_few(op, x, row, first, last)
    else:
        _quantise_many(op, x, row, first, last, planes)


@inline
def n_planes(op, batch):
    """q8 rows for one row."""
    return max(fields(op).planes, fields(batch).planes)


@inline
def inverse_rms(x, n, eps):
    """1 / rms of the n f32 at x, in all lanes."""
    squares = zeros(f32xL)
    for i in range(0, n, L):
        v = load(f32xL, x + 4 * i)
        squares = fma(v, v, squares)
    return splat(f32xL, 1.0 / math.sqrt(sum_lanes(squares) / n + eps))


@kernel
def rms_norm(op, batch, thread, n_threads):
    """Row by row x / rms(x) * weight, as f32 to out and as integers to q8, q16, fine8.

    x: f32[rows, n_in], weight: f32[n_in]; an output of 0 is not wanted. With rows_out, row i of the
    result is made of row row_out[i] of x.
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
        inverse = inverse_rms(x, n, o.eps)
        out = private if o.out == 0 else o.out + 4 * n * row
        for i in range(0, n, L):
            v = mul(load(f32xL, x + 4 * i), inverse)
            store(out + 4 * i, mul(v, load(f32xL, o.weight + 4 * i)))
        for i in range(0, n, SEGMENT):
            _quantise_for(o, rows, planes, out, row, i, min(i + SEGMENT, n))


@kernel
def add_rms_norm(op, batch, thread, n_threads):
    """out += x / rms(x) * weight, row by row. x, out: f32[rows, n_in]; weight: f32[n_in]."""
    o = fields(op)
    n = o.n_in
    rows = n_rows(op, batch)
    while True:
        row = take(op, 1)
        if row >= rows:
            break
        x, out = o.x + 4 * n * row, o.out + 4 * n * row
        inverse = inverse_rms(x, n, o.eps)
        for i in range(0, n, L):
            v = mul(mul(load(f32xL, x + 4 * i), inverse), load(f32xL, o.weight + 4 * i))
            store(out + 4 * i, add(load(f32xL, out + 4 * i), v))


@inline
def _silu(v):
    """v * sigmoid(v)."""
    return div(v, add(splat(f32xL, 1.0), exp(sub(zeros(f32xL), v))))


@inline
def _gelu(v):
    """GELU in its tanh form: v * sigmoid(2 u), where u = sqrt(2 / pi) * (v + 0.044715 v^3)."""
    cubic = fma(mul(mul(v, v), splat(f32xL, 0.044715)), v, v)
    twice_u = mul(cubic, splat(f32xL, 1.5957691216057308))
    return div(v, add(splat(f32xL, 1.0), exp(sub(zeros(f32xL), twice_u))))


@inline
def _activate_mul(op, batch, gelu):
    """x = activation(x) * y in place, and as integers to q8, q16, fine8 (0 = not wanted)."""
    o = fields(op)
    n = o.n_in
    segments = (n + SEGMENT - 1) // SEGMENT
    rows, planes = n_rows(op, batch), n_planes(op, batch)
    while True:
        item = take(op, 1)
        if item >= rows * segments:
            break
        row = item // segments
        first = item % segments * SEGMENT
        last = min(first + SEGMENT, n)
        gate, up = o.x + 4 * n * row, o.y + 4 * n * row
        for i in range(first, last, L):
            g = load(f32xL, gate + 4 * i)
            activated = _gelu(g) if gelu else _silu(g)
            store(gate + 4 * i, mul(activated, load(f32xL, up + 4 * i)))
        _quantise_for(o, rows, planes, gate, row, first, last)


@kernel
def silu_mul(op, batch, thread, n_threads):
    """x = silu(x) * y, x (gate) and y (up): f32[rows, n_in]; see _activate_mul."""
    _activate_mul(op, batch, False)


@kernel
def gelu_mul(op, batch, thread, n_threads):
    """x = gelu(x) * y, x (gate) and y (up): f32[rows, n_in]; see _activate_mul."""
    _activate_mul(op, batch, True)


@kernel
def quantise_rows(op, batch, thread, n_threads):
    """x as integers to q8, q16 and fine8. x: f32[rows, n_in]."""
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
        _quantise_for(o, rows, planes, o.x + 4 * n * row, row, first, last)
