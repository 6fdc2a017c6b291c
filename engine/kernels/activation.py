"""Input rows of a matrix product as integers, and the kernels that make them of activations.

A row of n values (n a multiple of 32) is one run of memory. Its parts spare the products work: s
and h are what an offset in the weights is multiplied with.

    q8     many rows (prefill), where arithmetic is the limit
        q  i8[n]         values / d, rounded
        d  f32[n / 32]   scale of each 32, the largest of which becomes 127
        s  f32[n / 32]   d * sum of q over each 32
        h  f32[n / 16]   the same over each 16

    fine8  few rows (decode), where memory is the limit: 8 bits too, but a scale for each 16, which
           loses a quarter of what a scale for each 32 does. Runs of 256 values, 512 bytes each; n
           is a multiple of 256:

        q  i8[256]       in the order drawn below
        d  f32[16]       scale of each 16, in the order of the drawing's columns
        h  f32[16]       d * sum of q over each 16, in their own order
        c  f32[16]       -32 h in the order of d: for weights that are 32 too large
        s  f32[8]        h of each 32; 32 bytes are left

           A column holds 16 neighbours, one quarter below the other, so that an integer product of
           four steps adds up all of a scale in one lane. k.c is quarter c of the k-th 16:

           q    0.0 4.0 8.0 12.0  1.0 5.0 9.0 13.0  2.0 6.0 10.0 14.0  3.0 7.0 11.0 15.0
                0.1 4.1 8.1 12.1  1.1 5.1 ...
                0.2 ...
                0.3 ...

    fine16 few rows, for blocks of 32 weights, eight of which are taken as one: 14 bits, whose upper
           and lower halves are summed one after the other. Runs of 256 values, 640 bytes each. A
           row that is not whole runs is there several times, one behind the other, so that all of
           them are (rows_in_line), or its last run is filled up with zeros:

        q  i8[256]       value / (128 d), rounded
        l  i8[256]       what is left, divided by d: -64..64
        d  f32[16]       scale of a block's values, for both of its columns
        h  f32[16]       d * sum of 128 q + l over a block, in the first of its columns, else 0

           Two columns are a block (0 - 7), k.c four values of block k:

           q    0.0 0.1 4.0 4.1  1.0 1.1 5.0 5.1  2.0 2.1 6.0 6.1  3.0 3.1 7.0 7.1
                0.2 0.3 4.2 4.3  1.2 1.3 ...
                0.4 0.5 ...
                0.6 0.7 ...

Weight types share these forms, so ops that read the same input share its quantised form.

Where 8 bits are not enough for many rows, a second q8 row ("plane") holds what the first one lost:
together they are worth 16 bits, at twice the arithmetic.
"""

from __future__ import annotations

import numpy as np

from engine.jit import anywhere, inline
from engine.kernels.op import are_few, fields, kernel, n_places, n_rows, take
from engine.kernels.simd import (
    PLANE_BITS,
    L,
    Lanes,
    absolute,
    add,
    convert,
    div,
    exp,
    f32x16,
    f32xL,
    fma,
    i8x16,
    i8xL,
    i32x16,
    i32xL,
    larger,
    load,
    lower,
    max_lanes,
    merge,
    mul,
    nearest,
    read_f32,
    reinterpret,
    smaller,
    splat,
    stack,
    store,
    sub,
    sum_lanes,
    u32x4,
    upper,
    write_f32,
    zeros,
)

# Bytes between rows. Rows of 4,096 or 8,192 values would otherwise meet in the same few sets of the
# L1 cache: products with four rows at once took up to 1.7 times as long.
_APART = 64

SEGMENT = 512  # values of a row that one thread takes at a time; a multiple of 256
_SEGMENT_BYTES = 4 * SEGMENT

FINE8_BYTES, FINE16_BYTES = 512, 640  # of a run of 256 values
FINE8_D, FINE8_H, FINE8_C, FINE8_H_32 = 256, 320, 384, 448  # bytes into it
FINE16_LOW, FINE16_D, FINE16_H = 256, 512, 576
FINE8_CENTRE = 32
BLOCK_OF_COLUMN = Lanes(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7)  # of fine16

# A line of rows: how many they are at most, and of how many values, four of which (30 kB) stay in
# the L1 cache.
MOST_IN_LINE, LONGEST_LINE = 8, 3072


@anywhere
def q8_row_bytes(n):
    """Bytes from one row of n values in 8 bits to the next."""
    return n + n // 2 + _APART


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


@anywhere
def fine8_row_bytes(n):
    """Bytes from one row of n values in 8 bits with a scale for each 16 to the next."""
    return n // 256 * FINE8_BYTES + _APART


@anywhere
def rows_in_line(n):
    """How many rows of n weights, one behind the other, are read as one of whole runs; so many
    times a fine16 row holds its values.

    1 where a row is whole runs, or shorter than one, which then would be of more than two rows, or
    where a line would be too long.
    """
    if n < 256:
        return 1
    rows, blocks = MOST_IN_LINE, n // 32
    while rows > 1 and blocks % 2 == 0:
        rows, blocks = rows // 2, blocks // 2
    return rows if rows * n <= LONGEST_LINE else 1


@anywhere
def fine16_row_bytes(n):
    """Bytes from one row of n values in two planes of 8 bits to the next."""
    return (rows_in_line(n) * n + 255) // 256 * FINE16_BYTES + _APART


@inline
def _quantise(x, n, row, first, last):
    """Write values first..last (multiples of 32) of the n f32 at x into the q8 row."""
    d_at, s_at, h_at = q8_d(row, n), q8_s(row, n), q8_h(row, n)
    for i in range(first, last, 32):
        peak = zeros(f32xL)
        for k in range(i, i + 32, L):
            peak = larger(absolute(load(f32xL, x + 4 * k)), peak)
        d = max_lanes(peak) / 127.0
        inverse = 1.0 / d if d > 0.0 else 0.0
        sum_32 = 0
        for half in range(2):
            count = zeros(i32xL)
            for k in range(i + 16 * half, i + 16 * half + 16, L):
                q = convert(i32xL, nearest(mul(load(f32xL, x + 4 * k), splat(f32xL, inverse))))
                store(row + k, convert(i8xL, q))
                count = add(count, q)
            part = sum_lanes(count)
            sum_32 += part
            write_f32(h_at + i // 16 * 4 + 4 * half, d * part)
        write_f32(d_at + i // 32 * 4, d)
        write_f32(s_at + i // 32 * 4, d * sum_32)


ZERO = np.float32(0)
_MINUS_CENTRE = np.float32(-FINE8_CENTRE)
_TINY = np.float32(1e-30)  # so that values which are all zero have a scale

# Two steps that turn four vectors of four words into the four vectors of their columns.
_LOW_WORDS, _HIGH_WORDS = Lanes(0, 4, 1, 5), Lanes(2, 6, 3, 7)
_LOW_PAIRS, _HIGH_PAIRS = Lanes(0, 1, 4, 5), Lanes(2, 3, 6, 7)


@inline
def _sixteen(x, run, k):
    """The k-th 16 of a run's values, f32 at x: writes their scale and sum, returns their q as four
    words.
    """
    v = load(f32x16, x + 64 * k)
    peak = max(max_lanes(absolute(v)), _TINY)
    q = convert(i32x16, nearest(mul(v, splat(f32x16, 127.0 / peak))))
    d = peak * (1.0 / 127.0)
    column, h = 4 * (k % 4 * 4 + k // 4), d * sum_lanes(q)
    write_f32(run + FINE8_D + column, d)
    write_f32(run + FINE8_H + 4 * k, h)
    write_f32(run + FINE8_C + column, h * _MINUS_CENTRE)
    return reinterpret(u32x4, convert(i8x16, q))


@inline
def _quantise_fine8(x, row, first, last):
    """Write values first..last (multiples of 256) of the f32 at x into the fine8 row."""
    for start in range(first, last, 256):
        run, values = row + start // 256 * FINE8_BYTES, x + 4 * start
        for k in range(4):
            q0, q1 = _sixteen(values, run, k), _sixteen(values, run, k + 4)
            q2, q3 = _sixteen(values, run, k + 8), _sixteen(values, run, k + 12)
            low, low_2 = merge(q0, q1, _LOW_WORDS), merge(q2, q3, _LOW_WORDS)
            high, high_2 = merge(q0, q1, _HIGH_WORDS), merge(q2, q3, _HIGH_WORDS)
            at = run + 16 * k
            store(at, merge(low, low_2, _LOW_PAIRS))
            store(at + 64, merge(low, low_2, _HIGH_PAIRS))
            store(at + 128, merge(high, high_2, _LOW_PAIRS))
            store(at + 192, merge(high, high_2, _HIGH_PAIRS))
        for k in range(8):
            h = read_f32(run + FINE8_H + 8 * k) + read_f32(run + FINE8_H + 8 * k + 4)
            write_f32(run + FINE8_H_32 + 4 * k, h)


_MOST_16 = np.float32(127 << PLANE_BITS)


@inline
def _quantise_fine16(x, n, row, first, last):
    """Write values first..last (multiples of 32) of the n f32 at x into the fine16 row."""
    in_line = rows_in_line(n)
    for i in range(first, last, 32):
        v, v_2 = load(f32x16, x + 4 * i), load(f32x16, x + 4 * i + 64)
        peak = max(max_lanes(larger(absolute(v), absolute(v_2))), _TINY)
        inverse, d = splat(f32x16, _MOST_16 / peak), peak / _MOST_16
        q, q_2 = nearest(mul(v, inverse)), nearest(mul(v_2, inverse))
        h = d * (sum_lanes(convert(i32x16, q)) + sum_lanes(convert(i32x16, q_2)))
        for at in range(i, i + in_line * n, n):
            _write_block(_place_of_block(row, at // 32), q, q_2, d, h)
    if last == n:
        nothing = zeros(f32x16)
        for block in range(in_line * n // 32, (in_line * n + 255) // 256 * 8):
            _write_block(_place_of_block(row, block), nothing, nothing, ZERO, ZERO)


@inline
def _place_of_block(row, block):
    """Address of the first values of a block."""
    return row + block // 8 * FINE16_BYTES + block % 4 * 16 + block % 8 // 4 * 8


@inline
def _write_block(place, q, q_2, d, h):
    """Write a block: its 32 whole numbers, their scale and sum."""
    _two_planes(q, place)
    _two_planes(q_2, place + 128)
    write_f32(place + FINE16_D, d)
    write_f32(place + FINE16_D + 4, d)
    write_f32(place + FINE16_H, h)
    write_f32(place + FINE16_H + 4, ZERO)


@inline
def _two_planes(q, place):
    """Write sixteen whole numbers to both planes, eight 64 bytes on."""
    high = nearest(mul(q, splat(f32x16, 1.0 / (1 << PLANE_BITS))))
    low = sub(q, mul(high, splat(f32x16, 1.0 * (1 << PLANE_BITS))))
    high_bytes = convert(i8x16, convert(i32x16, high))
    low_bytes = convert(i8x16, convert(i32x16, low))
    store(place, lower(high_bytes))
    store(place + 64, upper(high_bytes))
    store(place + FINE16_LOW, lower(low_bytes))
    store(place + FINE16_LOW + 64, upper(low_bytes))


@inline
def _quantise_few(op, x, row, first, last):
    """Values first..last of row number `row` in the few-row forms that the op's readers want."""
    if op.fine8 != 0:
        _quantise_fine8(x, op.fine8 + row * fine8_row_bytes(op.n_in), first, last)
    if op.fine16 != 0:
        _quantise_fine16(x, op.n_in, op.fine16 + row * fine16_row_bytes(op.n_in), first, last)


@inline
def _quantise_many(op, x, row, first, last, planes):
    """Values first..last (at most SEGMENT) of row number `row` in 8 bits, in one plane or two."""
    if op.q8 == 0:
        return
    n = op.n_in
    q8 = op.q8 + row * planes * q8_row_bytes(n)
    _quantise(x, n, q8, first, last)
    if planes == 2:
        lost = stack(_SEGMENT_BYTES) - 4 * first  # what the first plane rounded away
        for i in range(first, last, L):
            d = splat(f32xL, read_f32(q8_d(q8, n) + i // 32 * 4))
            q = convert(f32xL, convert(i32xL, load(i8xL, q8 + i)))
            store(lost + 4 * i, sub(load(f32xL, x + 4 * i), mul(q, d)))
        _quantise(lost, n, q8 + q8_row_bytes(n), first, last)


@inline
def quantise(op, planes, x, row, first, last):
    """Values first..last of row number `row` in all forms that the op's readers want."""
    if planes == 0:
        _quantise_few(op, x, row, first, last)
    else:
        _quantise_many(op, x, row, first, last, planes)


@inline
def n_planes(op, batch):
    """q8 rows for one row; 0 = few rows, in the forms for those."""
    return 0 if are_few(op, batch) else max(fields(batch).planes, fields(op).planes)


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
def _relu_squared(v):
    """max(v, 0)^2."""
    positive = larger(v, zeros(f32xL))
    return mul(positive, positive)


@inline
def soft_capped(v, cap, inverse):
    """cap * tanh(v / cap), with tanh u = 1 - 2 / (e^2u + 1). cap, inverse = 1 / cap: all lanes."""
    one = splat(f32xL, 1.0)
    u = mul(v, inverse)
    return mul(cap, sub(one, div(splat(f32xL, 2.0), add(exp(add(u, u)), one))))


_OAI_LIMIT, _OAI_SLOPE = 7.0, 1.702


@inline
def _oai_gate(v):
    """v * sigmoid(1.702 v), where v is 7 at most."""
    v = smaller(v, splat(f32xL, _OAI_LIMIT))
    slope = splat(f32xL, -_OAI_SLOPE)
    return div(v, add(splat(f32xL, 1.0), exp(mul(v, slope))))


@inline
def _oai_product(gate, v):
    """gate * (v + 1), where v is kept between -7 and 7."""
    v = larger(smaller(v, splat(f32xL, _OAI_LIMIT)), splat(f32xL, -_OAI_LIMIT))
    return mul(gate, add(v, splat(f32xL, 1.0)))


@inline
def _activate(op, batch, function, product):
    """x = product(function(x), y) in place, or function(x) where y is 0 (not gated); and as
    integers to q8, fine8, fine16. Runs over rows, or over places where there are any (routing.py).
    """
    o = fields(op)
    n = o.n_in
    segments = (n + SEGMENT - 1) // SEGMENT
    planes = n_planes(op, batch)
    items = n_places(op, batch) * segments
    while True:
        item = take(op, 1)
        if item >= items:
            break
        row = item // segments
        first = item % segments * SEGMENT
        last = min(first + SEGMENT, n)
        x, y = o.x + 4 * n * row, o.y + 4 * n * row
        if o.y != 0:
            for i in range(first, last, L):
                v = function(load(f32xL, x + 4 * i))
                store(x + 4 * i, product(v, load(f32xL, y + 4 * i)))
        else:
            for i in range(first, last, L):
                store(x + 4 * i, function(load(f32xL, x + 4 * i)))
        quantise(o, planes, x, row, first, last)


@kernel
def silu(op, batch, thread, n_threads):
    """x = silu(x) * y, x (gate) and y (up): f32[rows, n_in]; see _activate."""
    _activate(op, batch, _silu, mul)


@kernel
def gelu(op, batch, thread, n_threads):
    """x = gelu(x) * y, or gelu(x) where y is 0; see _activate."""
    _activate(op, batch, _gelu, mul)


@kernel
def relu_squared(op, batch, thread, n_threads):
    """x = max(x, 0)^2 * y, or max(x, 0)^2 where y is 0; see _activate."""
    _activate(op, batch, _relu_squared, mul)


@kernel
def swiglu_oai(op, batch, thread, n_threads):
    """x = min(x, 7) * sigmoid(1.702 min(x, 7)) * (1 + clamp(y, -7, 7)); see _activate."""
    _activate(op, batch, _oai_gate, _oai_product)


@kernel
def soft_cap(op, batch, thread, n_threads):
    """x = soft_cap * tanh(x / soft_cap) in place. x: f32[rows, n_in]."""
    o = fields(op)
    n = o.n_in
    segments = (n + SEGMENT - 1) // SEGMENT
    cap, inverse = splat(f32xL, o.soft_cap), splat(f32xL, 1.0 / o.soft_cap)
    items = n_rows(op, batch) * segments
    while True:
        item = take(op, 1)
        if item >= items:
            break
        row, first = item // segments, item % segments * SEGMENT
        x = o.x + 4 * n * row
        for i in range(first, min(first + SEGMENT, n), L):
            store(x + 4 * i, soft_capped(load(f32xL, x + 4 * i), cap, inverse))


@kernel
def quantise_rows(op, batch, thread, n_threads):
    """x as integers to q8, fine8, fine16. x: f32[rows, n_in]."""
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
        quantise(o, planes, o.x + 4 * n * row, row, first, last)
