"""Products of a mixture of experts: each pair of a row and an expert (routing.py) with that
expert's weights. Only the weights of experts that some row takes are read.

A few rows: a run of an expert's weight rows, straight from the mapped file, meets its pairs one by
one, at the speed of memory. Many rows: an expert's input rows are laid side by side (`gather`),
and N of its weight rows at a time are unpacked to a tile that is multiplied with them all.
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.activation import SEGMENT
from engine.kernels.atomics import call_address
from engine.kernels.matmul import (
    MOST_ROWS,
    ROW_STEP,
    input_bytes,
    input_planes,
    multiply_tile,
    out_bytes,
    rows_of_turn,
    write_products,
)
from engine.kernels.op import (
    are_few,
    cancelled,
    fields,
    kernel,
    n_places,
    n_rows,
    take,
    take_from_shares,
)
from engine.kernels.simd import (
    L,
    add,
    div,
    exp,
    f32xL,
    fma,
    load,
    read_f32,
    read_i32,
    splat,
    store,
    sub,
    u8x16,
    zeros,
)
from engine.kernels.tile import N


@kernel
def gather(op, batch, thread, n_threads):
    """Copy the input rows of all pairs to their places, where there are many rows.

    x: q8 rows, or f32 rows where float_x; out: the same, by place.
    """
    o = fields(op)
    if are_few(op, batch):
        return
    n_bytes = input_planes(op, batch) * input_bytes(o)
    places = n_places(op, batch)
    while True:
        place = take(op, 1)
        if place >= places:
            break
        row = read_i32(o.source + 4 * place)
        if row < 0:
            continue
        x, out = o.x + row * n_bytes, o.out + place * n_bytes
        for i in range(0, n_bytes, 16):
            store(out + i, load(u8x16, x + i))


@inline
def _read_run(op, batch, thread, n_threads):
    """The product for few rows: runs of weight rows, expert by expert."""
    o = fields(op)
    scratch = o.scratch + thread * o.scratch_bytes
    n_present = read_i32(o.present)
    most = MOST_ROWS if n_rows(op, batch) == 1 else ROW_STEP
    turn = rows_of_turn(n_present * o.n_out, most, n_threads)
    n_turns = (o.n_out + turn - 1) // turn
    items = n_present * n_turns
    while True:
        item = take_from_shares(op, 1, items, thread, n_threads)
        if item >= items or cancelled(batch):
            break
        expert, first = read_i32(o.present + 4 + item // n_turns * 4), item % n_turns * turn
        n = min(turn, o.n_out - first)
        w = o.weight + expert * o.expert_bytes + first * o.row_bytes
        bias = 0 if o.bias == 0 else o.bias + expert * 4 * o.n_out
        for place in range(read_i32(o.first + 4 * expert), read_i32(o.first + 4 * expert + 4)):
            row = place if o.by_place != 0 else read_i32(o.source + 4 * place)
            x = o.x_few + row * o.x_few_bytes
            call_address(o.dot, (w, o.row_bytes, n, o.n_in, x, scratch))
            write_products(o, bias, o.out + place * out_bytes(o.n_out), first, n, scratch)


@kernel
def expert_matmul(op, batch, thread, n_threads):
    """out[place] = weight[expert] @ x + bias[expert], for all pairs.

    weight: n_expert times n_out rows of n_in; bias: f32[n_expert, n_out]; x: q8 rows, or f32 rows
    where float_x, by place; x_few: the few-row form that the weights' type wants, by row or
    (by_place) by place; out: f32[places, n_out rounded up to 16].
    """
    o = fields(op)
    if are_few(op, batch):
        _read_run(op, batch, thread, n_threads)
        return
    tile = o.scratch + thread * o.scratch_bytes
    planes = input_planes(op, batch)
    n_tiles = (o.n_out + N - 1) // N
    items = read_i32(o.present) * n_tiles
    while True:
        item = take(op, 1)
        if item >= items or cancelled(batch):
            break
        expert, first = read_i32(o.present + 4 + item // n_tiles * 4), item % n_tiles * N
        weight = o.weight + expert * o.expert_bytes
        bias = 0 if o.bias == 0 else o.bias + expert * 4 * o.n_out
        place = read_i32(o.first + 4 * expert)
        rows = read_i32(o.first + 4 * expert + 4) - place
        x = o.x + place * planes * input_bytes(o)
        out = o.out + place * out_bytes(o.n_out)
        multiply_tile(o, planes, weight, bias, first, x, rows, out, tile)


@inline
def _share(o, row):
    """What the shared expert's result is multiplied with: the sigmoid of z, in all lanes."""
    one = splat(f32xL, 1.0)
    if o.z == 0:
        return one
    v = splat(f32xL, read_f32(o.z + row * out_bytes(1)))
    return div(one, add(one, exp(sub(zeros(f32xL), v))))


@kernel
def combine(op, batch, thread, n_threads):
    """out[row] = the sum of factor * x over the row's pairs, or out += that (accumulate).

    x: f32[places, n_out]; y: f32[rows, n_out], the shared expert's result, 0 = none; z: f32[rows,
    16], of which the first is the logit of its factor, 0 = the factor is 1.
    """
    o = fields(op)
    rows, n = n_rows(op, batch), o.n_out
    segments = (n + SEGMENT - 1) // SEGMENT
    while True:
        item = take(op, 1)
        if item >= rows * segments:
            break
        row, start = item // segments, item % segments * SEGMENT
        pairs = row * o.n_used
        out = o.out + 4 * n * row
        for i in range(start, min(start + SEGMENT, n), L):
            v = zeros(f32xL)
            for pair in range(pairs, pairs + o.n_used):
                x = o.x + 4 * (read_i32(o.place + 4 * pair) * n + i)
                v = fma(load(f32xL, x), splat(f32xL, read_f32(o.factor + 4 * pair)), v)
            if o.y != 0:
                v = fma(load(f32xL, o.y + 4 * (n * row + i)), _share(o, row), v)
            if o.accumulate != 0:
                v = add(v, load(f32xL, out + 4 * i))
            store(out + 4 * i, v)
