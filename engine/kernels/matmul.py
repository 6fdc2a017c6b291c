"""The matrix product op: weights of any type times the batch's rows, and the embedding lookup.

One row or a few: each weight row is read once, straight from the mapped file, and its dot product
with the input row taken (`op.dot`, at the speed of memory), or with two to four at once
(`op.dot4`). Many rows: N weight rows at a time are unpacked to a tile (`op.unpack`) that is
multiplied with all rows (`op.tile_dot`, at the speed of arithmetic). Threads take blocks of weight
rows as they get free.
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.activation import MOST_IN_LINE, n_planes, q8_row_bytes
from engine.kernels.atomics import call_address
from engine.kernels.op import are_few, cancelled, fields, kernel, n_rows, take, take_from_shares
from engine.kernels.simd import L, add, f32xL, load, read_f32, read_i32, read_u8, store, write_f32
from engine.kernels.tile import K_CHUNK, N, offset_at, scale_at

# Weight rows that a thread takes at a time when there are few input rows. Each should come back for
# more several times, so that all end together, and goes on where it was: memory is read fastest in
# order, and what was prefetched behind the last row is what comes next.
MOST_ROWS, _TURNS = 256, 8
# They are a multiple of this: rows are taken L at a time, or in lines of several.
ROW_STEP = max(L, MOST_IN_LINE)
_L2_BYTES = 1 << 17  # a run that several fours of input rows pass over stays in the L2 cache


@inline
def out_bytes(n):
    """Bytes from one output row of n values to the next."""
    return (n + 15) // 16 * 64


@inline
def rows_of_turn(n_rows, most, n_threads):
    """How many of n_rows weight rows a thread takes at a time: not more than `most`, but a step."""
    turn = min(n_rows // (_TURNS * n_threads), most, MOST_ROWS)
    return max(turn // ROW_STEP * ROW_STEP, ROW_STEP)


@inline
def write_products(o, bias, out, first, n, sums):
    """Put n sums, for the weight rows from `first` on, where they belong in an output row."""
    for i in range(0, n, L):
        at = out + 4 * (first + i)
        v = load(f32xL, sums + 4 * i)
        if bias != 0:
            v = add(v, load(f32xL, bias + 4 * (first + i)))
        if o.accumulate != 0:
            v = add(v, load(f32xL, at))
        store(at, v)


@inline
def input_planes(op, batch):
    """How many rows a tile is multiplied with for one row of the batch."""
    return 1 if fields(op).float_x != 0 else n_planes(op, batch)


@inline
def input_bytes(o):
    """Bytes of a row that a tile is multiplied with."""
    return 4 * o.n_in if o.float_x != 0 else q8_row_bytes(o.n_in)


@inline
def multiply_tile(o, planes, weight, bias, first, x, rows, out, tile):
    """N rows of the weights, from row `first` on, times many input rows: to their columns of out.

    weight, bias, x, out: addresses of the first row of each; tile: room for one.
    """
    n, x_stride, out_stride = min(N, o.n_out - first), input_bytes(o), out_bytes(o.n_out)
    out += 4 * first
    accumulate = o.accumulate
    if bias != 0:
        for t in range(rows):
            for i in range(0, 4 * N, 4 * L):
                v = load(f32xL, bias + 4 * first + i)
                if accumulate != 0:
                    v = add(v, load(f32xL, out + t * out_stride + i))
                store(out + t * out_stride + i, v)
        accumulate = 1
    for k0 in range(0, o.n_in, K_CHUNK):
        kn = min(K_CHUNK, o.n_in - k0)
        w = weight + first * o.row_bytes
        call_address(o.unpack, (w, o.row_bytes, n, k0, kn, tile))
        for plane in range(planes):
            x_plane = (x + plane * x_stride, planes * x_stride)
            to = (out, out_stride, accumulate)
            call_address(o.tile_dot, (tile, kn, *x_plane, o.n_in, k0, rows, *to))
            accumulate = 1


@kernel
def matmul(op, batch, thread, n_threads):
    """out = weight @ x + bias, or out += that (accumulate), for all rows.

    weight: n_out rows of n_in; x: q8 rows, or f32 rows where float_x; x_few: the few-row form that
    the weights' type wants; out: f32[rows, n_out rounded up to 16].
    """
    o = fields(op)
    rows = n_rows(op, batch)
    out_stride = out_bytes(o.n_out)
    scratch = o.scratch + thread * o.scratch_bytes
    if are_few(op, batch):
        most = MOST_ROWS if rows <= 4 else _L2_BYTES // o.row_bytes
        turn = rows_of_turn(o.n_out, most, n_threads)
        while True:
            first = take_from_shares(op, turn, o.n_out, thread, n_threads)
            if first >= o.n_out or cancelled(batch):
                break
            n = min(turn, o.n_out - first)
            w = o.weight + first * o.row_bytes
            for four in range(0, rows, 4):
                x, n_x = o.x_few + four * o.x_few_bytes, min(4, rows - four)
                if n_x == 1:
                    call_address(o.dot, (w, o.row_bytes, n, o.n_in, x, scratch))
                else:
                    together = (x, o.x_few_bytes, n_x, scratch, 4 * turn)
                    call_address(o.dot4, (w, o.row_bytes, n, o.n_in, *together))
                for row in range(four, four + n_x):
                    out, at = o.out + row * out_stride, scratch + (row - four) * 4 * turn
                    write_products(o, o.bias, out, first, n, at)
        return
    planes = input_planes(op, batch)
    while True:
        first = take(op, N)
        if first >= o.n_out or cancelled(batch):
            break
        multiply_tile(o, planes, o.weight, o.bias, first, o.x, rows, o.out, scratch)


@kernel
def embed(op, batch, thread, n_threads):
    """out[row] = weight[token of row] * scale.

    weight: vocabulary rows of n_in of any type; out: f32[rows, n_in].
    """
    o = fields(op)
    rows = n_rows(op, batch)
    tile = o.scratch + thread * o.scratch_bytes
    while True:
        row = take(op, 1)
        if row >= rows:
            break
        token = read_i32(fields(batch).token + 4 * row)
        out = o.out + row * 4 * o.n_in
        for k0 in range(0, o.n_in, K_CHUNK):
            kn = min(K_CHUNK, o.n_in - k0)
            w = o.weight + token * o.row_bytes
            call_address(o.unpack, (w, o.row_bytes, 1, k0, kn, tile))
            scale, offset = scale_at(tile, kn), offset_at(tile, kn, o.group)
            for k in range(kn):
                if o.float_x != 0:
                    value = read_f32(tile + k * 4 * N)
                else:
                    g = k // o.group * 4 * N
                    q = read_u8(tile + k // 4 * 4 * N + k % 4)
                    value = read_f32(scale + g) * q + read_f32(offset + g)
                write_f32(out + 4 * (k0 + k), value * o.scale)
