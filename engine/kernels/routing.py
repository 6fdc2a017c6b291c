"""Routing of a mixture of experts: which experts each row takes, and the rows of each expert.

A "pair" is a row and one of the n_used experts that it takes. Pairs are laid side by side, those of
an expert together, so that its weights meet all its rows at once. The place of a pair:

    expert   0        0        1   3 ...            first[e]: where expert e's places begin
    place    0        1        2   3 ...
    source   row 2    row 7    ...                  source[place]: the pair's row

With many rows each expert's places begin at a multiple of ROW_GROUP, as products take that many
rows at a time; a place without a pair has source -1.
"""

from __future__ import annotations

import math

from engine.jit import inline
from engine.kernels.op import ROW_GROUP, are_few, fields, kernel, n_rows, take
from engine.kernels.simd import (
    L,
    add,
    div,
    exp,
    f32xL,
    larger,
    load,
    max_lanes,
    mul,
    read_f32,
    read_i32,
    splat,
    store,
    sub,
    sum_lanes,
    write_f32,
    write_i32,
    zeros,
)

# What makes probabilities of the router's logits: over all experts, each for itself, or over the
# chosen ones.
SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = range(3)

_NEVER = -1e30  # a logit of no expert
_LEAST_SUM = 6.103515625e-05  # what probabilities are divided by at least: the least normal half


@inline
def _softmax(x, n):
    """Softmax in place of the n f32 at x; n: a multiple of L."""
    peak = splat(f32xL, _NEVER)
    for i in range(0, n, L):
        peak = larger(load(f32xL, x + 4 * i), peak)
    peak = splat(f32xL, max_lanes(peak))
    total = zeros(f32xL)
    for i in range(0, n, L):
        e = exp(sub(load(f32xL, x + 4 * i), peak))
        total = add(total, e)
        store(x + 4 * i, e)
    inverse = splat(f32xL, 1.0 / sum_lanes(total))
    for i in range(0, n, L):
        store(x + 4 * i, mul(load(f32xL, x + 4 * i), inverse))


@inline
def _sigmoid(x, n):
    """1 / (1 + e^-x) in place of the n f32 at x; n: a multiple of L."""
    one = splat(f32xL, 1.0)
    for i in range(0, n, L):
        v = load(f32xL, x + 4 * i)
        store(x + 4 * i, div(one, add(one, exp(sub(zeros(f32xL), v)))))


@inline
def _choose(votes, n, chosen, n_used):
    """Write the numbers of the n_used largest of the n f32 at votes, the largest first.

    A chosen vote is lost. Votes that are no numbers may be chosen again, but no other number than
    one below n is ever written.
    """
    for k in range(n_used):
        best, most = 0, -math.inf
        for i in range(n):
            vote = read_f32(votes + 4 * i)
            if vote > most:
                best, most = i, vote
        write_i32(chosen + 4 * k, best)
        write_f32(votes + 4 * best, -math.inf)


@inline
def _padded(n):
    return (n + 15) // 16 * 16


@kernel
def route(op, batch, thread, n_threads):
    """Each row's experts, to chosen, and what their results are multiplied with, to factor.

    x: f32[rows, n_expert rounded up to 16], the router's logits, overwritten; bias: f32[n_expert],
    added to probabilities for the choice only; normalise: the factors of a row sum up to scale.
    """
    o = fields(op)
    n, padded = o.n_expert, _padded(o.n_expert)
    rows = n_rows(op, batch)
    votes = o.scratch + thread * o.scratch_bytes
    while True:
        row = take(op, 1)
        if row >= rows:
            break
        x = o.x + 4 * padded * row
        chosen, factor = o.chosen + 4 * o.n_used * row, o.factor + 4 * o.n_used * row
        for i in range(n, padded):
            write_f32(x + 4 * i, _NEVER)
        if o.gating == SOFTMAX:
            _softmax(x, padded)
        elif o.gating == SIGMOID:
            _sigmoid(x, padded)
        for i in range(n):
            vote = read_f32(x + 4 * i)
            if o.bias != 0:
                vote += read_f32(o.bias + 4 * i)
            write_f32(votes + 4 * i, vote)
        _choose(votes, n, chosen, o.n_used)
        for k in range(_padded(o.n_used)):
            value = _NEVER
            if k < o.n_used:
                value = read_f32(x + 4 * read_i32(chosen + 4 * k))
            write_f32(votes + 4 * k, value)
        if o.gating == SOFTMAX_OF_CHOSEN:
            _softmax(votes, _padded(o.n_used))
        by = o.scale
        if o.normalise != 0:
            total = read_f32(votes)
            for k in range(1, o.n_used):
                total += read_f32(votes + 4 * k)
            by = o.scale / max(total, _LEAST_SUM)
        for k in range(o.n_used):
            write_f32(factor + 4 * k, read_f32(votes + 4 * k) * by)


@kernel
def sort_pairs(op, batch, thread, n_threads):
    """Lay all pairs side by side, expert by expert: to place, source, first and present.

    The work of one thread: some additions for each pair.
    """
    if take(op, 1) > 0:
        return
    o = fields(op)
    rows = n_rows(op, batch)
    pairs = rows * o.n_used
    group = 1 if are_few(op, batch) else ROW_GROUP
    next_place = o.scratch + thread * o.scratch_bytes  # i32[n_expert]; at first, how many
    for e in range(o.n_expert):
        write_i32(next_place + 4 * e, 0)
    for pair in range(pairs):
        count = next_place + 4 * read_i32(o.chosen + 4 * pair)
        write_i32(count, read_i32(count) + 1)
    places = n_present = 0
    for e in range(o.n_expert):
        n = read_i32(next_place + 4 * e)
        write_i32(o.first + 4 * e, places)
        write_i32(next_place + 4 * e, places)
        if n > 0:
            n_present += 1
            write_i32(o.present + 4 * n_present, e)
        end = places + (n + group - 1) // group * group
        for place in range(places + n, end):
            write_i32(o.source + 4 * place, -1)
        places = end
    write_i32(o.first + 4 * o.n_expert, places)
    write_i32(o.present, n_present)
    for pair in range(pairs):
        at = next_place + 4 * read_i32(o.chosen + 4 * pair)
        place = read_i32(at)
        write_i32(at, place + 1)
        write_i32(o.place + 4 * pair, place)
        write_i32(o.source + 4 * place, pair // o.n_used)
