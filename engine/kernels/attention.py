"""Attention over the KV pages, in flash form, all in f32.

Flash form is page after page, with a running maximum and a running sum of the weights.

An item of work is one KV head and a few neighbouring rows of the batch. All query heads that share
the KV head, of all these rows, are the item's "queries": a page is read once for all of them, R
queries at a time in registers.

    per page:   scores[R, PAGE] = queries . K      K's vectors are positions: no sum across lanes
                probs = exp(scores - max)          positions that a row may not see become 0
                out[R, head_dim] = out * correction + probs . V
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.activation import soft_capped
from engine.kernels.kv_page import PAGE, k_at, v_at
from engine.kernels.op import cancelled, fields, kernel, n_rows, take
from engine.kernels.simd import (
    L,
    Tile,
    add,
    exp,
    f32xL,
    i32xL,
    lane_index,
    larger,
    load,
    load_tile,
    load_tile_f16,
    max_lanes,
    mul,
    outer_fma,
    plus_scalar,
    read_f32,
    read_i32,
    read_i64,
    scale_rows,
    splat,
    stack,
    store,
    store_tile,
    sub,
    sum_lanes,
    where_less,
    write_f32,
    write_i32,
    zeros,
)

ROWS = 8  # of the batch, at most, in one item
R = 4  # queries at a time
_J = 4 if L == 16 else 2  # neighbouring vectors at a time: R * _J sums fit in the registers
_COLUMNS, _COLUMN = Tile(f32xL, _J, _J), Tile(f32xL, 1, 1)
_GRID, _GRID_1 = Tile(f32xL, R * _J, _J), Tile(f32xL, R, 1)  # R queries
_LINE, _LINE_1 = Tile(f32xL, _J, _J), Tile(f32xL, 1, 1)  # one query
_PROBS_BYTES = R * PAGE * 4
_FACTORS_BYTES = 64
# A score that is no score, and what the running maximum starts from: finite, so that differences
# stay numbers, and apart, so that a page of which a query sees nothing gives it weights of 0.
_NEVER, _LOWEST = -1e30, -1e29
ALL = 1 << 30  # a window without an end


def scratch_bytes(n_head: int, n_head_kv: int, head_dim: int) -> int:
    """Bytes of scratch that one thread needs."""
    n_queries = (n_head // n_head_kv * ROWS + R - 1) // R * R
    return n_queries * (2 * head_dim + 3) * 4


@inline
def _scores(grid, q, head_dim, keys, probs):
    """probs[r, t] = q[r] . key t, for all PAGE positions."""
    for t in range(0, PAGE, _J * L):
        sums = zeros(grid)
        for d in range(head_dim):
            column = load_tile_f16(_COLUMNS, keys + (d * PAGE + t) * 2, 0)
            sums = outer_fma(sums, column, q + 4 * d, 4 * head_dim)
        store_tile(probs + 4 * t, 4 * PAGE, sums)


@inline
def _softmax_step(scores, n_hidden, n_visible, soft_cap, state):
    """Turn PAGE scores of one query into weights, and bring its state (maximum, sum) up to date.

    The first n_hidden positions lie before the window, those from n_visible on in the future.

    Returns what the query's earlier output is to be multiplied with.
    """
    never = splat(f32xL, _NEVER)
    first, limit = splat(i32xL, n_hidden), splat(i32xL, n_visible)
    peak = never
    for t in range(0, PAGE, L):
        place = plus_scalar(lane_index(i32xL), t)
        s = load(f32xL, scores + 4 * t)
        if soft_cap != 0.0:
            s = soft_capped(s, splat(f32xL, soft_cap), splat(f32xL, 1.0 / soft_cap))
        s = where_less(place, limit, s, never)
        s = where_less(place, first, never, s)
        store(scores + 4 * t, s)
        peak = larger(s, peak)
    old = read_f32(state)
    new = max(old, max_lanes(peak))
    total = zeros(f32xL)
    for t in range(0, PAGE, L):
        p = exp(sub(load(f32xL, scores + 4 * t), splat(f32xL, new)))
        store(scores + 4 * t, p)
        total = add(total, p)
    correction = sum_lanes(exp(splat(f32xL, old - new))) / L
    write_f32(state, new)
    write_f32(state + 4, read_f32(state + 4) * correction + sum_lanes(total))
    return correction


@inline
def _weigh(grid, columns, out, head_dim, d, factors, probs, values, n_visible):
    """out[r, d..] = out * factors[r] + probs[r] . values, for the dimensions of one grid."""
    sums = scale_rows(load_tile(grid, out + 4 * d, 4 * head_dim), factors)
    for t in range(n_visible):
        column = load_tile_f16(columns, values + (t * head_dim + d) * 2, 0)
        sums = outer_fma(sums, column, probs + 4 * t, 4 * PAGE)
    store_tile(out + 4 * d, 4 * head_dim, sums)


@inline
def _attend_page(
    grid, grid_1, n, q, out, states, limits, window, soft_cap, head_dim, keys, values, start, probs,
    factors,
):  # fmt: skip
    """Take one page into account for n (R or 1) queries.

    limits: i32, how many tokens of the chat each may see.
    """
    _scores(grid, q, head_dim, keys, probs)
    most = 0
    for r in range(n):
        limit = read_i32(limits + 4 * r) - start
        n_visible = min(max(limit, 0), PAGE)
        most = max(most, n_visible)
        factor = _softmax_step(
            probs + 4 * PAGE * r, limit - window, n_visible, soft_cap, states + 8 * r
        )
        write_f32(factors + 4 * r, factor)
    d = 0
    while d + _J * L <= head_dim:
        _weigh(grid, _COLUMNS, out, head_dim, d, factors, probs, values, most)
        d += _J * L
    while d < head_dim:
        _weigh(grid_1, _COLUMN, out, head_dim, d, factors, probs, values, most)
        d += L


@kernel
def attention(op, batch, thread, n_threads):
    """out = softmax(queries . keys * scale) . values, over the chat's tokens up to the row's own.

    x: f32[rows, n_head, head_dim]; out: the same shape; keys and values: in the rows' pages, at
    layer_offset; soft_cap: of the scores, 0 = none.
    """
    o = fields(op)
    b = fields(batch)
    rows, n_kv, head_dim = n_rows(op, batch), o.n_head_kv, o.head_dim
    group = o.n_head // n_kv
    probs, factors = stack(_PROBS_BYTES), stack(_FACTORS_BYTES)

    # This thread's scratch: up to ROWS * group queries, their outputs, (maximum, sum), limits.
    n_most = (ROWS * group + R - 1) // R * R
    queries = o.scratch + thread * o.scratch_bytes
    outputs = queries + n_most * head_dim * 4
    states = outputs + n_most * head_dim * 4
    limits = states + n_most * 8

    blocks = (rows + ROWS - 1) // ROWS
    while True:
        item = take(op, 1)
        if item >= blocks * n_kv or cancelled(batch):
            break
        block, head = blocks - 1 - item // n_kv, item % n_kv  # the longest first
        row, end = block * ROWS, min(block * ROWS + ROWS, rows)
        while row < end:
            table = read_i64(b.pages + 8 * row)
            stop = row
            last = 0
            while stop < end and read_i64(b.pages + 8 * stop) == table:
                last = max(last, read_i32(b.pos + 4 * stop))
                stop += 1
            n = (stop - row) * group
            padded = (n + R - 1) // R * R if n > 1 else 1
            for i in range(padded):
                r, h = row + min(i, n - 1) // group, head * group + min(i, n - 1) % group
                x = o.x + (r * o.n_head + h) * head_dim * 4
                for d in range(0, head_dim, L):
                    scaled = mul(load(f32xL, x + 4 * d), splat(f32xL, o.scale))
                    store(queries + (i * head_dim + d) * 4, scaled)
                    store(outputs + (i * head_dim + d) * 4, zeros(f32xL))
                write_f32(states + 8 * i, _LOWEST)
                write_f32(states + 8 * i + 4, 0.0)
                write_i32(limits + 4 * i, read_i32(b.pos + 4 * r) + 1)
            first = max(read_i32(b.pos + 4 * row) + 1 - o.window, 0)
            for p in range(first // PAGE, last // PAGE + 1):
                layer = read_i64(table + 8 * p) + o.layer_offset
                keys, values = k_at(layer, head, head_dim), v_at(layer, head, n_kv, head_dim)
                if n == 1:
                    _attend_page(
                        _LINE, _LINE_1, 1, queries, outputs, states, limits, o.window,
                        o.soft_cap, head_dim, keys, values, p * PAGE, probs, factors,
                    )  # fmt: skip
                    continue
                for i in range(0, padded, R):
                    q, out = queries + i * head_dim * 4, outputs + i * head_dim * 4
                    _attend_page(
                        _GRID, _GRID_1, R, q, out, states + 8 * i, limits + 4 * i, o.window,
                        o.soft_cap, head_dim, keys, values, p * PAGE, probs, factors,
                    )  # fmt: skip
            for i in range(n):
                r, h = row + i // group, head * group + i % group
                out = o.out + (r * o.n_head + h) * head_dim * 4
                inverse = splat(f32xL, 1.0 / read_f32(states + 8 * i + 4))
                for d in range(0, head_dim, L):
                    store(out + 4 * d, mul(load(f32xL, outputs + (i * head_dim + d) * 4), inverse))
            row = stop
