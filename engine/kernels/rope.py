"""Rotary positions (RoPE), and the way of keys and values into the cache."""

from __future__ import annotations

import math

from engine.jit import inline
from engine.kernels.kv_page import PAGE, k_at, v_at
from engine.kernels.norm import norm_head
from engine.kernels.op import fields, kernel, n_rows, take
from engine.kernels.simd import (
    L,
    f32xL,
    load,
    read_f32,
    read_f64,
    read_i32,
    read_i64,
    read_u16,
    stack,
    store_f16,
    write_f32,
    write_u16,
)

_HEAD_F16 = 1024  # bytes of one head as f16, at most: head_dim 512
MAX_HEAD_DIM = _HEAD_F16 // 2


@kernel
def rope_angles(op, batch, thread, n_threads):
    """table[row] = scale * cosine and sine of position * frequency, for the batch's positions.

    weight: f64[n_rot / 2], frequencies with scaling and factors applied.
    table:  f32[rows, n_rot], pairs (cos, sin).
    """
    o = fields(op)
    rows = n_rows(op, batch)
    while True:
        row = take(op, 1)
        if row >= rows:
            break
        pos = read_i32(fields(batch).pos + 4 * row)
        out = o.table + row * o.n_rot * 4
        for i in range(o.n_rot // 2):
            angle = pos * read_f64(o.weight + 8 * i)
            write_f32(out + 8 * i, o.scale * math.cos(angle))
            write_f32(out + 8 * i + 4, o.scale * math.sin(angle))


@inline
def _turn(head, angles, n_rot, halves):
    """Rotate the pairs of one head, f32[head_dim] at `head`, in place."""
    n = n_rot // 2
    if halves != 0:
        first, second, step = head, head + 4 * n, 4
    else:
        first, second, step = head, head + 4, 8
    for i in range(n):
        cos, sin = read_f32(angles + 8 * i), read_f32(angles + 8 * i + 4)
        a, b = read_f32(first + step * i), read_f32(second + step * i)
        write_f32(first + step * i, a * cos - b * sin)
        write_f32(second + step * i, a * sin + b * cos)


@inline
def _of_head(weight, head, head_dim):
    """Address of one head's part of weights f32[heads, head_dim]; 0 where there are none."""
    return weight + 4 * head_dim * head if weight != 0 else 0


@kernel
def rope_and_store(op, batch, thread, n_threads):
    """Normalise and rotate queries and keys, then write keys and values into the row's page.

    q_norm, k_norm: 0 = none; n_rot: 0 = no rotation. x: queries f32[rows, n_head, head_dim];
    y: keys, z: values f32[rows, n_head_kv, head_dim]; table: of rope_angles.
    """
    o = fields(op)
    b = fields(batch)
    head_dim, n_kv = o.head_dim, o.n_head_kv
    group = o.n_head // n_kv
    items = n_rows(op, batch) * n_kv
    halves = stack(_HEAD_F16)
    while True:
        item = take(op, 1)
        if item >= items:
            break
        row, head = item // n_kv, item % n_kv
        angles = o.table + row * o.n_rot * 4
        for g in range(group):
            h = head * group + g
            q = o.x + (row * o.n_head + h) * head_dim * 4
            norm_head(q, _of_head(o.q_norm, h, head_dim), head_dim, o.eps, o.centred)
            _turn(q, angles, o.n_rot, o.rope_halves)
        k = o.y + item * head_dim * 4
        norm_head(k, _of_head(o.k_norm, head, head_dim), head_dim, o.eps, o.centred)
        _turn(k, angles, o.n_rot, o.rope_halves)

        pos = read_i32(b.pos + 4 * row)
        page = read_i64(read_i64(b.pages + 8 * row) + pos // PAGE * 8)
        layer, slot = page + o.layer_offset, pos % PAGE
        for d in range(0, head_dim, L):
            store_f16(halves + 2 * d, load(f32xL, k + 4 * d))
        k_out = k_at(layer, head, head_dim) + 2 * slot
        for d in range(head_dim):
            write_u16(k_out + 2 * PAGE * d, read_u16(halves + 2 * d))
        v = o.z + item * head_dim * 4
        v_out = v_at(layer, head, n_kv, head_dim) + 2 * head_dim * slot
        for d in range(0, head_dim, L):
            store_f16(v_out + 2 * d, load(f32xL, v + 4 * d))
