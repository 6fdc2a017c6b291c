"""Verbs of a product with a few input rows: a weight vector, decoded once, meets every row.

Sums are a tile with one vector for each input row. Row r of an input lies at address + r * stride.
What is done for one row does not depend on how many there are, nor does its result, to the last
bit: a chat says the same alone and beside others.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.kernels.simd import lowering as ll
from engine.kernels.simd.vectors import ELEMENTS, I32, L, Tile, Vec, f32x8

# How many input rows: a type, so that each number has compiled code of its own.
ONE, FOUR = Tile(f32x8, 1), Tile(f32x8, 4)


@intrinsic
def zero_sums(typingctx, rows, kind):
    """Sums of 0, a vector of `kind` for each of the rows (ONE or FOUR)."""
    sums = Tile(kind.of, rows.of.n)

    def codegen(_context, _builder, _sig, _args):
        return ir.Constant(sums.ir, None)

    return sums(rows, kind), codegen


@intrinsic
def fma_rows(typingctx, sums, v, x, stride):
    """sums[r] += v * the f32 vector at x of row r. v: a vector, or a number for all lanes."""

    def codegen(_context, builder, _sig, args):
        vec = sums.vec
        factor = args[1] if isinstance(v, Vec) else ll.splat(builder, args[1], vec.ir)
        new = []
        for old, at in _rows(builder, sums, args[0], args[2], args[3]):
            new.append(ll.fma(builder, vec, factor, ll.load(builder, at, vec.ir), old))
        return ll.tile(builder, sums, new)

    return sums(sums, v if isinstance(v, Vec) else types.float32, types.int64, types.int64), codegen


# Of each 16 bytes of one vector and of another, the first eight; the last eight.
_FIRST = [k + 4 * i + j for i in range(4) for k in (0, 16) for j in (0, 1)]
_SECOND = [lane + 2 for lane in _FIRST]


@intrinsic
def fine_dot(typingctx, sums, w0, w1, x, d, stride, scale):
    """sums[r] += scale * (128 weights times the 128 fine8 values at x, with the scales at d).

    sums: f32x16 tile; w0, w1: u8x64 of at most 127, or i8x64; scale: f32x16, in the order of d.
    """
    vec = sums.vec
    add_products = ll.dot_i8_i8 if w0.elem == "i8" else ll.dot_u8_i8

    def codegen(_context, builder, _sig, args):
        i32s = ir.VectorType(I32, 16)
        a, b = (builder.bitcast(v, i32s) for v in args[1:3])
        first, second = (
            builder.bitcast(ll.shuffle(builder, a, b, lanes), args[1].type)
            for lanes in (_FIRST, _SECOND)
        )
        places = ll.rows(builder, args[4], args[5], sums.n)
        new = []
        for (old, at), d_at in zip(
            _rows(builder, sums, args[0], args[3], args[5]), places, strict=True
        ):
            bytes_64 = ir.VectorType(ELEMENTS["i8"], 64)
            q0, q1 = (
                ll.load(builder, builder.add(at, ir.IntType(64)(offset)), bytes_64)
                for offset in (0, 64)
            )
            count = add_products(builder, ir.Constant(i32s, None), first, q0)
            count = add_products(builder, count, second, q1)
            factor = builder.fmul(ll.load(builder, d_at, vec.ir), args[6])
            new.append(ll.fma(builder, vec, builder.sitofp(count, vec.ir), factor, old))
        return ll.tile(builder, sums, new)

    i64 = types.int64
    return sums(sums, w0, w1, i64, i64, i64, vec), codegen


@intrinsic
def load_sums(typingctx, sums, address):
    """The sums that `store_sums` wrote at address; of the given ones only the type matters."""

    def codegen(_context, builder, _sig, args):
        places = ll.rows(builder, args[1], ir.IntType(64)(4 * sums.vec.n), sums.n)
        return ll.tile(builder, sums, [ll.load(builder, at, sums.vec.ir) for at in places])

    return sums(sums, types.int64), codegen


@intrinsic
def store_sums(typingctx, address, sums):
    """Keep the vectors of all rows at address, one after the other."""

    def codegen(context, builder, _sig, args):
        places = ll.rows(builder, args[0], ir.IntType(64)(4 * sums.vec.n), sums.n)
        for at, v in zip(places, ll.vectors(builder, sums, args[1]), strict=True):
            builder.store(v, ll.pointer(builder, at, v.type)).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, sums), codegen


@intrinsic
def group_dot(typingctx, sums, w, x, d_x, stride, d):
    """sums[r] += d * (the f32 at d_x of row r) * (32 weights w times the 32 q16 values at x).

    sums: f32xL tile; w: a WIDE tile; d: f32.
    """
    vec = sums.vec

    def codegen(_context, builder, _sig, args):
        weights = ll.vectors(builder, w, args[1])
        of_x = ir.VectorType(ir.IntType(16), 2 * L)
        scales = ll.rows(builder, args[3], args[4], sums.n)
        new = []
        for (old, at), scale_at in zip(
            _rows(builder, sums, args[0], args[2], args[4]), scales, strict=True
        ):
            count = None
            for part, part_at in zip(
                weights, ll.rows(builder, at, ir.IntType(64)(4 * L), w.n), strict=True
            ):
                product = ll.products_i16(builder, part, ll.load(builder, part_at, of_x))
                count = product if count is None else builder.add(count, product)
            scale = builder.fmul(args[5], ll.load(builder, scale_at, ir.FloatType()))
            scale = ll.splat(builder, scale, vec.ir)
            new.append(ll.fma(builder, vec, builder.sitofp(count, vec.ir), scale, old))
        return ll.tile(builder, sums, new)

    i64 = types.int64
    return sums(sums, w, i64, i64, i64, types.float32), codegen


@intrinsic
def add_numbers(typingctx, sums, numbers):
    """sums[r] with the number r added in its first lane. numbers: f32x1 tile."""

    def codegen(_context, builder, _sig, args):
        zero = ir.Constant(sums.vec.ir, None)
        new = []
        for v, number in zip(
            ll.vectors(builder, sums, args[0]), ll.vectors(builder, numbers, args[1]), strict=True
        ):
            lone = builder.insert_element(zero, ll.sum_lanes(builder, number), I32(0))
            new.append(builder.fadd(v, lone))
        return ll.tile(builder, sums, new)

    return sums(sums, numbers), codegen


@intrinsic
def write_sums(typingctx, out, stride, sums):
    """Write each row's sum over the lanes, one f32, at out + r * stride."""

    def codegen(context, builder, _sig, args):
        vectors = ll.vectors(builder, sums, args[2])
        for at, v in zip(ll.rows(builder, args[0], args[1], sums.n), vectors, strict=True):
            total = ll.sum_lanes(builder, v)
            builder.store(total, ll.pointer(builder, at, total.type))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, sums), codegen


def _rows(builder, sums: Tile, value, x, stride):
    """(sum, address of the input) of each row."""
    return zip(ll.vectors(builder, sums, value), ll.rows(builder, x, stride, sums.n), strict=True)
