"""Input rows of a matrix product as integers, and the kernels that make them of activations.

A row of n values (n a multiple of 32) is one run of memory. Its parts spare the products work: s
and h are what an offset in the weights is multiplied with.

    q8     many rows (prefill), where arithmetic is the limit
        q  i8[n]         values / d, rounded
        d  f32[n / 32]   scale of each 32, the largest of which becomes 127
        s  f32[n / 32]   d * sum of q over each 32
        h  f32[n / 16]   the same over each 16

    q16    few rows (decode), where memory is the limit and precision nearly free
        q  i16[n]        then d, s, h as above; the largest becomes 32767

    fine8  few rows for weights that must be unpacked fast (256 to a block): 8 bits, but a scale for
           each 8, which loses a fifth of what a scale for each 32 does
        q  i8[n]         each 128 in the order drawn below
        d  f32[n / 8]
        s  f32[n / 32]   in their own order, as above
        h  f32[n / 16]

           Of each 16 values, quarters 0 and 2 share a scale, and 1 and 3: that makes two steps of
           an integer product add up in one lane. k.c is quarter c of the k-th 16 of 128:

           q    0.0 0.1 4.0 4.1  1.0 1.1 5.0 5.1  2.0 2.1 6.0 6.1  3.0 3.1 7.0 7.1
                0.2 0.3 4.2 4.3  1.2 1.3 5.2 5.3  2.2 2.3 6.2 6.3  3.2 3.3 7.2 7.3
           d    one for each column

Weight types share these forms, so ops that read the same input share its quantised form.

Where 8 bits are not enough for many rows, a second q8 row ("plane") holds what the first one lost:
together they are worth 16 bits, at twice the arithmetic.
"""

from __future__ import annotations

import numpy as np

from engine.jit import inline
from engine.kernels.op import are_few, fields, kernel, n_places, n_rows, take
from engine.kernels.simd import (
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
    i16xL,
    i32x16,
    i32xL,
    larger,
    load,
    lower,
    max_lanes,
    mul,
    nearest,
    read_f32,
    shuffle,
    smaller,
    splat,
    stack,
    store,
    sub,
    sum_lanes,
    upper,
    write_f32,
    zeros,
)

# Bytes between rows. Rows of 4,096 or 8,192 values would otherwise meet in the same few sets of the
# L1 cache: products with four rows at once took up to 1.7 times as long.
_APART = 64

SEGMENT = 512  # values of a row that one thread takes at a time; a multiple of 32
_SEGMENT_BYTES = 4 * SEGMENT
ZERO = np.float32(0)


@inline
def q8_row_bytes(n):
    """Bytes from one row of n values in 8 bits to the next."""
    return n + n // 2 + _APART


@inline
def q16_row_bytes(n):
    """Bytes from one row of n values in 16 bits to the next."""
    return 2 * n + n // 2 + _APART


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
    return n + n // 2 + n // 8 + n // 4


@inline
def fine8_d(row, n):
    """Address of a fine8 row's scales."""
    return row + n


@inline
def fine8_s(row, n):
    """Address of a fine8 row's scaled sums of 32."""
    return row + n + n // 2


@inline
def fine8_h(row, n):
    """Address of a fine8 row's scaled sums of 16."""
    return row + n + n // 2 + n // 8


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


# The largest of the eight lanes that share a scale, by three exchanges; then one lane of each.
_SWAP_1, _SWAP_2, _SWAP_8 = (Lanes(*[i ^ bit for i in range(16)]) for bit in (1, 2, 8))
_ONE_OF_EACH = Lanes(0, 4)
_TINY = np.float32(1e-30)  # so that a row of zeros has a scale


@inline
def _quantise_fine(x, n, row, first, last):
    """Write values first..last (multiples of 128) of the n f32 at x into the fine8 row."""
    d_at, s_at, h_at = fine8_d(row, n), fine8_s(row, n), fine8_h(row, n)
    for i in range(first, last, 32):
        sum_32 = ZERO
        for half in range(2):
            at = i + 16 * half
            v = load(f32x16, x + 4 * at)
            peak = larger(absolute(v), splat(f32x16, _TINY))
            peak = larger(peak, shuffle(peak, _SWAP_1))
            peak = larger(peak, shuffle(peak, _SWAP_2))
            peak = larger(peak, shuffle(peak, _SWAP_8))
            q = nearest(mul(v, div(splat(f32x16, 127.0), peak)))
            d = mul(peak, splat(f32x16, 1.0 / 127.0))
            k = at % 128 // 16
            column = k % 4 * 4 + k // 4 * 2  # of the drawing above
            q_bytes = convert(i8x16, convert(i32x16, q))
            place = row + at // 128 * 128 + 4 * column
            store(place, lower(q_bytes))
            store(place + 64, upper(q_bytes))
            store(d_at + at // 128 * 64 + 4 * column, shuffle(d, _ONE_OF_EACH))
            sum_16 = sum_lanes(mul(q, d))
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
    integers to q8, q16, fine8. Runs over rows, or over places where there are any (routing.py).
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
        quantise(o, planes, o.x + 4 * n * row, row, first, last)
