"""Attention over the KV pages, in flash form, all in f32.

Flash form is page after page, with a running maximum and a running sum of the weights.

An item of work is one KV head and a few neighbouring rows of the batch. All query heads that share
the KV head, of all these rows, are the item's "queries": a page is read once for all of them, R
queries at a time in registers.

    per page:   scores[R, PAGE] = queries . K      K's vectors are positions: no sum across lanes
                probs = exp(scores - max)          positions that a row may not see become 0
                out[R, head_dim] = out * correction + probs . V

Where the rows are so few that there would not be an item for each thread (decode), the positions
are divided into parts as well, each an item. Who finishes a KV head's last part merges them.
"""

from __future__ import annotations

from engine.jit import anywhere, inline
from engine.kernels.activation import soft_capped
from engine.kernels.atomics import fetch_add
from engine.kernels.kv_page import (
    F16,
    F32,
    PAGE,
    Q8_0,
    k_at,
    k_scales_at,
    load_numbers,
    number_bytes,
    v_at,
    v_scales_at,
)
from engine.kernels.op import ARRIVED_BYTES, cancelled, fields, kernel, n_rows, page_at, take
from engine.kernels.simd import (
    L,
    Tile,
    add,
    exp,
    f32xL,
    fma,
    i32xL,
    lane_index,
    larger,
    load,
    load_f16,
    load_tile,
    max_lanes,
    mul,
    outer_fma,
    plus_scalar,
    prefetch_l2,
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
PART = 2  # pages of a part of the positions, at least
MAX_PARTS = 16
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


@anywhere
def _max_queries(group):
    """Room for the queries of one item: each chat's are rounded up to R."""
    return (ROWS * group + R - 1) // R * R + R


@anywhere
def _result_bytes(n_queries, head_dim):
    """Bytes of an item's result: outputs f32[n_queries][head_dim], states f32[n_queries][2]."""
    return n_queries * (head_dim + 2) * 4


def scratch_bytes(n_head: int, n_head_kv: int, head_dim: int) -> int:
    """Bytes of scratch that one thread needs: queries, limits, a result. For Python."""
    n_queries = int(_max_queries(n_head // n_head_kv))
    return n_queries * (head_dim + 1) * 4 + int(_result_bytes(n_queries, head_dim))


def results_bytes(n_head: int, n_head_kv: int, head_dim: int) -> int:
    """Bytes of an op's results for parts. For Python."""
    n_queries = int(_max_queries(n_head // n_head_kv))
    return n_head_kv * MAX_PARTS * int(_result_bytes(n_queries, head_dim))


@inline
def _fetch(address, n_bytes):
    """Ask for memory that is read next: pages lie apart, which the CPU does not foresee."""
    for i in range(0, n_bytes, 64):
        prefetch_l2(address + i)


@inline
def _scores(kv_type, grid, q, head_dim, keys, probs, values):
    """probs[r, t] = q[r] . key t, for all PAGE positions; the page's values are fetched."""
    row_bytes = PAGE * number_bytes(kv_type)
    for t in range(0, PAGE, _J * L):
        sums = zeros(grid)
        for d in range(head_dim):
            if t == 0:
                _fetch(values + d * row_bytes, row_bytes)
            column = load_numbers(kv_type, _COLUMNS, keys, d * PAGE + t)
            sums = outer_fma(sums, column, q + 4 * d, 4 * head_dim)
        store_tile(probs + 4 * t, 4 * PAGE, sums)


@inline
def _softmax_step(kv_type, scores, n_hidden, n_visible, soft_cap, state, k_scales, v_scales):
    """Turn PAGE scores of one query into weights, and bring its state (maximum, sum) up to date.

    The first n_hidden positions lie before the window, those from n_visible on in the future.
    k_scales, v_scales: what the scores, and the weights at last, are multiplied with (q8_0).

    Returns what the query's earlier output is to be multiplied with.
    """
    never = splat(f32xL, _NEVER)
    first, limit = splat(i32xL, n_hidden), splat(i32xL, n_visible)
    peak = never
    for t in range(0, PAGE, L):
        place = plus_scalar(lane_index(i32xL), t)
        s = load(f32xL, scores + 4 * t)
        if kv_type == Q8_0:
            s = mul(s, load_f16(f32xL, k_scales + 2 * t))
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
        total = add(total, p)
        if kv_type == Q8_0:
            p = mul(p, load_f16(f32xL, v_scales + 2 * t))
        store(scores + 4 * t, p)
    correction = sum_lanes(exp(splat(f32xL, old - new))) / L
    write_f32(state, new)
    write_f32(state + 4, read_f32(state + 4) * correction + sum_lanes(total))
    return correction


@inline
def _weigh(kv_type, grid, columns, out, head_dim, d, factors, probs, values, n_visible, ahead):
    """out[r, d..] = out * factors[r] + probs[r] . values, for the dimensions of one grid.

    ahead: the next page's keys, fetched meanwhile.
    """
    sums = scale_rows(load_tile(grid, out + 4 * d, 4 * head_dim), factors)
    for t in range(n_visible):
        if d == 0:
            _fetch(ahead + t * head_dim * number_bytes(kv_type), head_dim * number_bytes(kv_type))
        column = load_numbers(kv_type, columns, values, t * head_dim + d)
        sums = outer_fma(sums, column, probs + 4 * t, 4 * PAGE)
    store_tile(out + 4 * d, 4 * head_dim, sums)


@inline
def _attend_page(
    kv_type, grid, grid_1, n, q, out, states, limits, window, soft_cap,
    layer, head, n_kv, head_dim, start, probs, factors, next_layer,
):  # fmt: skip
    """Take one page into account for n (R or 1) queries.

    limits: i32, how many tokens of the chat each may see; layer: address of the layer's part of the
    page; start: position of its first token; next_layer: as `layer`, of the page after it.
    """
    keys = k_at(kv_type, layer, head, head_dim)
    values = v_at(kv_type, layer, head, n_kv, head_dim)
    k_scales = k_scales_at(layer, head, n_kv, head_dim)
    v_scales = v_scales_at(layer, head, n_kv, head_dim)
    ahead = k_at(kv_type, next_layer, head, head_dim)
    _scores(kv_type, grid, q, head_dim, keys, probs, values)
    most = 0
    for r in range(n):
        limit = read_i32(limits + 4 * r) - start
        n_visible = min(max(limit, 0), PAGE)
        most = max(most, n_visible)
        line, state, n_hidden = probs + 4 * PAGE * r, states + 8 * r, limit - window
        factor = _softmax_step(
            kv_type, line, n_hidden, n_visible, soft_cap, state, k_scales, v_scales
        )
        write_f32(factors + 4 * r, factor)
    d = 0
    while d + _J * L <= head_dim:
        _weigh(kv_type, grid, _COLUMNS, out, head_dim, d, factors, probs, values, most, ahead)
        d += _J * L
    while d < head_dim:
        _weigh(kv_type, grid_1, _COLUMN, out, head_dim, d, factors, probs, values, most, ahead)
        d += L


@inline
def _pages_of_part(n_pages):
    """Pages of one part of n_pages. They depend on nothing else: neither who else is in the batch
    nor how many threads there are may change in which order a row's sums are taken.
    """
    return max((n_pages + MAX_PARTS - 1) // MAX_PARTS, PART)


@inline
def _n_parts(n_pages):
    """Into how many parts n_pages are divided."""
    of_part = _pages_of_part(n_pages)
    return max((n_pages + of_part - 1) // of_part, 1)


@inline
def _n_pages(pos, window):
    """How many pages a row at this position looks at."""
    return pos // PAGE - max(pos + 1 - window, 0) // PAGE + 1


@inline
def _most_parts(batch, rows, window):
    """The most parts that one of these rows has."""
    most = 1
    for row in range(rows):
        most = max(most, _n_parts(_n_pages(read_i32(fields(batch).pos + 4 * row), window)))
    return most


@inline
def _merge(result, n_results, result_bytes, states, head_dim, out, sink):
    """One query's attention f32[head_dim] at `out`, from its results for n_results parts.

    result: address of the first part's output; states: of the first part's (maximum, sum); sink:
    address of one more score, of a token whose value is 0; 0 = none.
    """
    peak = read_f32(states) if sink == 0 else max(read_f32(states), read_f32(sink))
    for i in range(1, n_results):
        peak = max(peak, read_f32(states + i * result_bytes))
    total = read_f32(states) * 0
    for i in range(n_results):
        state = states + i * result_bytes
        factor = sum_lanes(exp(splat(f32xL, read_f32(state) - peak))) / L
        write_f32(state, factor)
        total += factor * read_f32(state + 4)
    if sink != 0:
        total += sum_lanes(exp(splat(f32xL, read_f32(sink) - peak))) / L
    inverse = splat(f32xL, 1.0 / total)
    for d in range(0, head_dim, L):
        sums = zeros(f32xL)
        for i in range(n_results):
            output = load(f32xL, result + i * result_bytes + 4 * d)
            sums = fma(output, splat(f32xL, read_f32(states + i * result_bytes)), sums)
        store(out + 4 * d, mul(sums, inverse))


@inline
def _attention(kv_type, op, batch, thread):
    o = fields(op)
    b = fields(batch)
    rows, n_kv, head_dim = n_rows(op, batch), o.n_head_kv, o.head_dim
    group = o.n_head // n_kv
    probs, factors = stack(_PROBS_BYTES), stack(_FACTORS_BYTES)
    n_most = _max_queries(group)
    result_bytes = _result_bytes(n_most, head_dim)

    queries = o.scratch + thread * o.scratch_bytes
    limits = queries + n_most * head_dim * 4
    own_result = limits + n_most * 4

    blocks = (rows + ROWS - 1) // ROWS
    n_parts = _most_parts(batch, rows, o.window) if blocks == 1 else 1
    while True:
        item = take(op, 1)
        if item >= blocks * n_kv * n_parts or cancelled(batch):
            break
        part, head = item % n_parts, item // n_parts % n_kv
        block = blocks - 1 - item // n_parts // n_kv  # the longest first
        results = own_result if n_parts == 1 else o.results + head * MAX_PARTS * result_bytes
        result = results + part * result_bytes
        block_row, end = block * ROWS, min(block * ROWS + ROWS, rows)
        row = block_row
        while row < end:
            table = read_i64(b.pages + 8 * row)
            stop = row
            last = 0
            while stop < end and read_i64(b.pages + 8 * stop) == table:
                last = max(last, read_i32(b.pos + 4 * stop))
                stop += 1
            n = (stop - row) * group
            padded = (n + R - 1) // R * R if n > 1 else 1
            outputs = result + (row - block_row) * group * head_dim * 4
            states = result + (n_most * head_dim + (row - block_row) * group * 2) * 4
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
            first = max(read_i32(b.pos + 4 * row) + 1 - o.window, 0) // PAGE
            until = last // PAGE + 1
            if n_parts > 1:
                of_part = _pages_of_part(until - first)
                first += part * of_part
                # The last part takes what rows behind the first one see beyond it.
                until = until if part == n_parts - 1 else min(first + of_part, until)
            for p in range(first, until):
                layer = page_at(op, table, p) + o.layer_offset
                next_layer = page_at(op, table, min(p + 1, last // PAGE)) + o.layer_offset
                if n == 1:
                    _attend_page(
                        kv_type, _LINE, _LINE_1, 1, queries, outputs, states, limits, o.window,
                        o.soft_cap, layer, head, n_kv, head_dim, p * PAGE, probs, factors,
                        next_layer,
                    )  # fmt: skip
                    continue
                for i in range(0, padded, R):
                    q, out = queries + i * head_dim * 4, outputs + i * head_dim * 4
                    _attend_page(
                        kv_type, _GRID, _GRID_1, R, q, out, states + 8 * i, limits + 4 * i,
                        o.window, o.soft_cap, layer, head, n_kv, head_dim, p * PAGE, probs,
                        factors, next_layer,
                    )  # fmt: skip
            row = stop
        if n_parts > 1 and fetch_add(o.arrived + ARRIVED_BYTES * head, 1) < n_parts - 1:
            continue
        for i in range((end - block_row) * group):
            r, h = block_row + i // group, head * group + i % group
            output, state = results + i * head_dim * 4, results + (n_most * head_dim + 2 * i) * 4
            out = o.out + (r * o.n_head + h) * head_dim * 4
            sink = 0 if o.sinks == 0 else o.sinks + 4 * h
            _merge(output, n_parts, result_bytes, state, head_dim, out, sink)


@kernel
def attention_f16(op, batch, thread, n_threads):
    """out = softmax(queries . keys * scale) . values, over the chat's tokens up to the row's own.

    x: f32[rows, n_head, head_dim]; out: the same shape; keys and values: in the rows' pages, at
    layer_offset; soft_cap: of the scores, 0 = none; results: for results_bytes; arrived: zeros, one
    for each KV head.
    """
    _attention(F16, op, batch, thread)


@kernel
def attention_f32(op, batch, thread, n_threads):
    """The same for pages of f32."""
    _attention(F32, op, batch, thread)


@kernel
def attention_q8_0(op, batch, thread, n_threads):
    """The same for pages of q8_0."""
    _attention(Q8_0, op, batch, thread)


ATTENTION = {F16: attention_f16, F32: attention_f32, Q8_0: attention_q8_0}
