"""Verbs on tiles, unrolled here, where Python is the macro language.

An outer verb combines the vectors v of one row ("columns": each lane a weight row or a position)
with scalars of memory, one for each row of the tile, at address, address + stride, ...

             v[0]   v[1]                acc[r, j] += v[j] * scalar[r]
  scalar[0]  acc0   acc1
  scalar[1]  acc2   acc3
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.kernels.simd import lowering as ll
from engine.kernels.simd.vectors import I32, L, Vec


@intrinsic
def load_tile(typingctx, kind, address, stride):
    """The tile at address, its rows `stride` bytes apart."""

    def codegen(_context, builder, _sig, args):
        places = ll.places(builder, args[1], args[2], kind.of)
        return ll.tile(builder, kind.of, [ll.load(builder, at, kind.of.vec.ir) for at in places])

    return kind.of(kind, types.int64, types.int64), codegen


@intrinsic
def load_tile_f16(typingctx, kind, address, stride):
    """An f32 tile from halves, its rows `stride` bytes apart."""

    def codegen(_context, builder, _sig, args):
        vec = kind.of.vec
        half = ir.VectorType(ir.HalfType(), vec.n)
        places = ll.places(builder, args[1], args[2], kind.of, element_bytes=2)
        return ll.tile(
            builder,
            kind.of,
            [ll.widen_f16(builder, ll.load(builder, at, half), vec.ir) for at in places],
        )

    return kind.of(kind, types.int64, types.int64), codegen


@intrinsic
def load_tile_i8(typingctx, kind, address, stride):
    """An f32 tile from signed bytes, its rows `stride` bytes apart."""

    def codegen(_context, builder, _sig, args):
        vec = kind.of.vec
        i8s, i32s = (ir.VectorType(ir.IntType(bits), vec.n) for bits in (8, 32))
        places = ll.places(builder, args[1], args[2], kind.of, element_bytes=1)
        wide = [builder.sext(ll.load(builder, at, i8s), i32s) for at in places]
        return ll.tile(builder, kind.of, [builder.sitofp(v, vec.ir) for v in wide])

    return kind.of(kind, types.int64, types.int64), codegen


@intrinsic
def store_tile(typingctx, address, stride, tile):
    """Write a tile, its rows `stride` bytes apart."""

    def codegen(context, builder, _sig, args):
        places = ll.places(builder, args[0], args[1], tile)
        for at, v in zip(places, ll.vectors(builder, tile, args[2]), strict=True):
            builder.store(v, ll.pointer(builder, at, v.type)).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, tile), codegen


@intrinsic
def outer_fma(typingctx, acc, v, address, stride):
    """acc[r, j] += v[j] * f32 at (address + r * stride). v: a vector or a tile of J vectors."""
    j_n = 1 if isinstance(v, Vec) else v.n

    def codegen(_context, builder, _sig, args):
        old, columns = ll.vectors(builder, acc, args[0]), ll.vectors(builder, v, args[1])
        new = []
        for r, at in enumerate(ll.rows(builder, args[2], args[3], acc.n // j_n)):
            x = ll.splat(builder, ll.load(builder, at, ir.FloatType()), acc.vec.ir)
            new += [ll.fma(builder, acc.vec, columns[j], x, old[r * j_n + j]) for j in range(j_n)]
        return ll.tile(builder, acc, new)

    return acc(acc, v, types.int64, types.int64), codegen


@intrinsic
def outer_dots(typingctx, acc, w, x, stride, n):
    """n (a literal) steps of acc[r, j] += dot of w[j] with four i8 of row r, the same in all lanes.

    acc: i32 tile, or an i16 tile where the profile sums in 16 bits.
    w:   address of u8 [n][vectors in a row of acc].
    x:   address of i8 [n][4] of the first row, `stride` bytes to the next.
    """
    if not isinstance(n, types.IntegerLiteral):
        return None
    j_n = acc.columns
    column = ir.VectorType(ir.IntType(8), 4 * L)

    def codegen(_context, builder, _sig, args):
        i64 = ir.IntType(64)
        sums = ll.vectors(builder, acc, args[0])
        rows = ll.rows(builder, args[2], args[3], acc.n // j_n)
        for i in range(n.literal_value):
            places = [builder.add(args[1], i64((i * j_n + j) * 4 * L)) for j in range(j_n)]
            columns = [ll.load(builder, at, column) for at in places]
            for r, row in enumerate(rows):
                x = ll.splat_bytes(builder, builder.add(row, i64(4 * i)), column)
                for j in range(j_n):
                    s = r * j_n + j
                    if acc.vec.elem == "i16":
                        sums[s] = builder.add(sums[s], ll.maddubs(builder, columns[j], x))
                    else:
                        sums[s] = ll.dot_u8_i8(builder, sums[s], columns[j], x)
            sums = ll.held(builder, sums)
        return ll.tile(builder, acc, sums)

    return acc(acc, types.int64, types.int64, types.int64, n), codegen


@intrinsic
def outer_dot_signed(typingctx, acc, w, address, stride):
    """acc[r, j] += dot of w[j] with four i8 at (address + r * stride), the same in every lane.

    acc: i32 tile; w: tile of i8.
    """

    def codegen(_context, builder, _sig, args):
        sums, columns = ll.vectors(builder, acc, args[0]), ll.vectors(builder, w, args[1])
        for r, row in enumerate(ll.rows(builder, args[2], args[3], acc.n // len(columns))):
            x = ll.splat_bytes(builder, row, w.vec.ir)
            for j, column in enumerate(columns):
                s = r * len(columns) + j
                sums[s] = ll.dot_i8_i8(builder, sums[s], column, x)
        return ll.tile(builder, acc, ll.held(builder, sums))

    return acc(acc, w, types.int64, types.int64), codegen


@intrinsic
def widen_part(typingctx, total, part):
    """total + part, the part's i16 pairs summed; an i32 part is simply added."""

    def codegen(_context, builder, _sig, args):
        parts = ll.vectors(builder, part, args[1])
        if part.vec.elem == "i16":
            parts = [ll.sum_pairs(builder, p) for p in parts]
        totals = ll.vectors(builder, total, args[0])
        return ll.tile(builder, total, [builder.add(*p) for p in zip(totals, parts, strict=True)])

    return total(total, part), codegen


@intrinsic
def outer_scale(typingctx, acc, counts, v, address, stride):
    """acc[r, j] += f32(counts[r, j]) * v[j] * f32 at (address + r * stride).

    Turns integer sums into weighted floats.
    """
    j_n = 1 if isinstance(v, Vec) else v.n

    def codegen(_context, builder, _sig, args):
        old, sums = ll.vectors(builder, acc, args[0]), ll.vectors(builder, counts, args[1])
        columns = ll.vectors(builder, v, args[2])
        new = []
        for r, at in enumerate(ll.rows(builder, args[3], args[4], acc.n // j_n)):
            x = ll.splat(builder, ll.load(builder, at, ir.FloatType()), acc.vec.ir)
            for j in range(j_n):
                i = r * j_n + j
                scale = builder.fmul(columns[j], x)
                new.append(
                    ll.fma(builder, acc.vec, builder.sitofp(sums[i], acc.vec.ir), scale, old[i])
                )
        return ll.tile(builder, acc, new)

    return acc(acc, counts, v, types.int64, types.int64), codegen


@intrinsic
def scale_rows(typingctx, tile, address):
    """Row r of the tile times the f32 number r at address."""

    def codegen(_context, builder, _sig, args):
        old = ll.vectors(builder, tile, args[0])
        new = []
        for r, at in enumerate(
            ll.rows(builder, args[1], ir.IntType(64)(4), tile.n // tile.columns)
        ):
            x = ll.splat(builder, ll.load(builder, at, ir.FloatType()), tile.vec.ir)
            new += [builder.fmul(v, x) for v in old[r * tile.columns : (r + 1) * tile.columns]]
        return ll.tile(builder, tile, new)

    return tile(tile, types.int64), codegen


@intrinsic
def interleave(typingctx, rows, out, n):
    """Transpose n rows of eight 32-bit values at `rows` to eight rows of n at `out`.

    n: a literal, a multiple of 8.
    """
    if not isinstance(n, types.IntegerLiteral):
        return None
    n_rows = n.literal_value

    def codegen(context, builder, _sig, args):
        i64 = ir.IntType(64)
        row = ir.VectorType(I32, 8)
        at = ll.rows(builder, args[0], i64(32), n_rows)
        vectors = [ll.load(builder, a, row) for a in at]
        for first in range(0, n_rows, 8):
            columns = _transpose(builder, vectors[first : first + 8])
            for k, column in enumerate(columns):
                place = builder.add(args[1], i64(4 * (k * n_rows + first)))
                builder.store(column, ll.pointer(builder, place, column.type)).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, n), codegen


def _transpose(builder, rows):
    """Eight rows of eight values to eight columns."""
    # A butterfly: the step of width w merges vectors i and i | w, which swaps bit w of each value's
    # vector number with bit w of its lane number. After all three bits the two are exchanged.
    vectors = list(rows)
    for width in (4, 2, 1):
        merged = list(vectors)
        for i in range(8):
            if i & width:
                continue
            a, b = vectors[i], vectors[i | width]
            low = [k if not k & width else (k ^ width) + 8 for k in range(8)]
            high = [(k | width) if not k & width else k + 8 for k in range(8)]
            merged[i], merged[i | width] = (
                ll.shuffle(builder, a, b, low),
                ll.shuffle(builder, a, b, high),
            )
        vectors = merged
    return vectors
