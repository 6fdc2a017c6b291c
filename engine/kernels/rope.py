"""Rotary positions (RoPE), and the way of keys and values into the cache."""

from __future__ import annotations

import math

import numpy as np

from engine.jit import inline
from engine.kernels.kv_page import (
    F16,
    F32,
    PAGE,
    Q8_0,
    k_at,
    k_scales_at,
    number_bytes,
    v_at,
    v_scales_at,
)
from engine.kernels.norm import norm_head
from engine.kernels.op import ARRIVED_BYTES, fields, kernel, n_rows, page_at, take
from engine.kernels.simd import (
    L,
    absolute,
    convert,
    f32xL,
    i8xL,
    i32xL,
    larger,
    load,
    max_lanes,
    mul,
    nearest,
    read_f16,
    read_f32,
    read_f64,
    read_i32,
    read_i64,
    read_u8,
    read_u16,
    smaller,
    splat,
    stack,
    store,
    store_f16,
    write_f16,
    write_f32,
    write_i64,
    write_u8,
    write_u16,
    zeros,
)

MAX_HEAD_DIM = 512
_PACKED = 4 * MAX_HEAD_DIM  # bytes of one head, at most
_ONE_127TH = np.float32(1 / 127)


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


@inline
def _rotate(x, head_dim):
    """Hadamard's rotation of a head, f32[head_dim] at x, in place: sums and differences over all
    dimensions, or over each run of as many as the largest power of 2 that divides head_dim.

    Longer by sqrt(n), n the length of a run.
    """
    n = head_dim & -head_dim
    half = 1
    while half < n:
        for first in range(0, head_dim, 2 * half):
            for i in range(first, first + half):
                a, b = read_f32(x + 4 * i), read_f32(x + 4 * (i + half))
                write_f32(x + 4 * i, a + b)
                write_f32(x + 4 * (i + half), a - b)
        half *= 2


@inline
def _pack(kv_type, x, n, out, scale_at):
    """Write n f32 at x as numbers of the page at `out`; q8_0: and their scale at scale_at."""
    if kv_type == Q8_0:
        peak = zeros(f32xL)
        for i in range(0, n, L):
            peak = larger(absolute(load(f32xL, x + 4 * i)), peak)
        write_f16(scale_at, max_lanes(peak) * _ONE_127TH)
        scale = read_f16(scale_at)  # as rounded
        inverse = splat(f32xL, 1.0 / scale if scale > 0.0 else 0.0)
        for i in range(0, n, L):
            q = nearest(mul(load(f32xL, x + 4 * i), inverse))
            q = larger(smaller(q, splat(f32xL, 127.0)), splat(f32xL, -127.0))
            store(out + i, convert(i8xL, convert(i32xL, q)))
        return
    for i in range(0, n, L):
        v = load(f32xL, x + 4 * i)
        if kv_type == F32:
            store(out + 4 * i, v)
        else:
            store_f16(out + 2 * i, v)


@inline
def _store_key(kv_type, x, layer, head, n_kv, head_dim, slot):
    """Write the key f32[head_dim] at x into its column of the page."""
    packed = stack(_PACKED)
    _pack(kv_type, x, head_dim, packed, k_scales_at(layer, head, n_kv, head_dim) + 2 * slot)
    out = k_at(kv_type, layer, head, head_dim) + slot * number_bytes(kv_type)
    for d in range(head_dim):
        if kv_type == Q8_0:
            write_u8(out + PAGE * d, read_u8(packed + d))
        elif kv_type == F32:
            write_f32(out + 4 * PAGE * d, read_f32(packed + 4 * d))
        else:
            write_u16(out + 2 * PAGE * d, read_u16(packed + 2 * d))


@inline
def _store_value(kv_type, x, layer, head, n_kv, head_dim, slot):
    """Write the value f32[head_dim] at x into its row of the page."""
    out = v_at(kv_type, layer, head, n_kv, head_dim) + slot * head_dim * number_bytes(kv_type)
    _pack(kv_type, x, head_dim, out, v_scales_at(layer, head, n_kv, head_dim) + 2 * slot)


@inline
def _rope_and_store(kv_type, op, batch):
    o = fields(op)
    b = fields(batch)
    head_dim, n_kv = o.head_dim, o.n_head_kv
    group = o.n_head // n_kv
    items = n_rows(op, batch) * n_kv
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
            if kv_type == Q8_0:
                _rotate(q, head_dim)
        k, v = o.y + item * head_dim * 4, o.z + item * head_dim * 4
        norm_head(k, _of_head(o.k_norm, head, head_dim), head_dim, o.eps, o.centred)
        _turn(k, angles, o.n_rot, o.rope_halves)
        if kv_type == Q8_0:
            _rotate(k, head_dim)
            inverse = splat(f32xL, 1.0 / (head_dim & -head_dim))  # of both rotations' lengths
            for d in range(0, head_dim, L):
                store(k + 4 * d, mul(load(f32xL, k + 4 * d), inverse))

        pos = read_i32(b.pos + 4 * row)
        page = page_at(op, read_i64(b.pages + 8 * row), pos // PAGE)
        layer, slot = page + o.layer_offset, pos % PAGE
        _store_key(kv_type, k, layer, head, n_kv, head_dim, slot)
        _store_value(kv_type, v, layer, head, n_kv, head_dim, slot)
        if row == 0:
            write_i64(o.arrived + ARRIVED_BYTES * head, 0)


@kernel
def rope_and_store_f16(op, batch, thread, n_threads):
    """Normalise and rotate queries and keys, then write keys and values into the row's page.

    q_norm, k_norm: 0 = none; n_rot: 0 = no rotation. x: queries f32[rows, n_head, head_dim];
    y: keys, z: values f32[rows, n_head_kv, head_dim]; table: of rope_angles; arrived: of attention,
    which is next.
    """
    _rope_and_store(F16, op, batch)


@kernel
def rope_and_store_f32(op, batch, thread, n_threads):
    """The same for pages of f32."""
    _rope_and_store(F32, op, batch)


@kernel
def rope_and_store_q8_0(op, batch, thread, n_threads):
    """The same for pages of q8_0."""
    _rope_and_store(Q8_0, op, batch)


ROPE_AND_STORE = {F16: rope_and_store_f16, F32: rope_and_store_f32, Q8_0: rope_and_store_q8_0}
