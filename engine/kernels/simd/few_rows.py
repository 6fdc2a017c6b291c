"""Verbs of a product with a few input rows: a weight vector, decoded once, meets every row.

Sums are a tile with one vector for each input row. Row r of an input lies at address + r * stride.
What is done for one row does not depend on how many there are, nor does its result, to the last
bit: a chat says the same alone and beside others.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.jit import PROFILE
from engine.kernels.simd import lowering as ll
from engine.kernels.simd.vectors import I32, Tile, Vec, f32x8, i8x64, i32x16

PLANE_BITS = 7  # of fine16's second plane (kernels/activation.py, which imports this folder)

# How many input rows: a type, so that each number has compiled code of its own.
ONE, TWO, FOUR = Tile(f32x8, 1), Tile(f32x8, 2), Tile(f32x8, 4)


@intrinsic
def zero_sums(typingctx, rows, kind):
    """Sums of 0, a vector of `kind` for each of the rows (ONE, TWO or FOUR)."""
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


# Four vectors of weights, of which each 128 bits are 16 neighbours, in the columns of fine8
# (kernels/activation.py): pairs of words, then pairs of pairs.
_LOW_WORDS = [k + 4 * i + j for i in range(4) for j in (0, 1) for k in (0, 16)]
_HIGH_WORDS = [lane + 2 for lane in _LOW_WORDS]
_LOW_PAIRS = [k + 4 * i + j for i in range(4) for k in (0, 16) for j in (0, 1)]
_HIGH_PAIRS = [lane + 2 for lane in _LOW_PAIRS]


@intrinsic
def columns(typingctx, w0, w1, w2, w3):
    """Weights of which each 16 neighbours lie side by side, in the order of fine8: a tile."""
    four = Tile(w0, 4)

    def codegen(_context, builder, _sig, args):
        i32s = ir.VectorType(I32, w0.n // 4)
        a, b, c, d = (builder.bitcast(v, i32s) for v in args)
        parts = []
        for words in (_LOW_WORDS, _HIGH_WORDS):
            ab, cd = ll.shuffle(builder, a, b, words), ll.shuffle(builder, c, d, words)
            for pairs in (_LOW_PAIRS, _HIGH_PAIRS):
                parts.append(builder.bitcast(ll.shuffle(builder, ab, cd, pairs), w0.ir))
        return ll.tile(builder, four, parts)

    return four(w0, w0, w0, w0), codegen


@intrinsic
def four_vectors(typingctx, w0, w1, w2, w3):
    """A tile of them."""
    four = Tile(w0, 4)

    def codegen(_context, builder, _sig, args):
        return ll.tile(builder, four, args)

    return four(w0, w0, w0, w0), codegen


# Vectors of weights that meet all inputs before the next ones do: so many independent products are
# under way. Where products are summed in 16 bits first, those of all four are.
_AT_ONCE = 4 if PROFILE.dot == "maddubs" else 1


@intrinsic
def count_products(typingctx, rows, w, x, stride):
    """Integer products of 256 weights with the 256 bytes at x of each row, in i32x16.

    rows: ONE, TWO or FOUR; w: a tile of four i8x64, or u8x64 (of at most 127, unless ANY_U8); u5x64
    and u6x64 take less time on some CPUs.
    """
    counts = Tile(i32x16, rows.of.n)

    def codegen(_context, builder, _sig, args):
        weights = ll.vectors(builder, w, args[1])
        sums = [ir.Constant(i32x16.ir, None)] * counts.n
        for c in range(0, 4, _AT_ONCE):
            for r, row in enumerate(ll.rows(builder, args[2], args[3], counts.n)):
                inputs = [
                    ll.load(builder, builder.add(row, ir.IntType(64)(64 * k)), i8x64.ir)
                    for k in range(c, c + _AT_ONCE)
                ]
                own = weights[c : c + _AT_ONCE]
                sums[r] = ll.sum_of_products(builder, w.vec.elem, sums[r], own, inputs)
        return ll.tile(builder, counts, sums)

    return counts(rows, w, types.int64, types.int64), codegen


@intrinsic
def fma_counts(typingctx, sums, counts, scale, d, stride):
    """sums[r] += counts[r] * scale * the f32x16 at d of row r."""

    def codegen(_context, builder, _sig, args):
        vec, new = sums.vec, []
        rows = _rows(builder, sums, args[0], args[3], args[4])
        for (old, at), count in zip(rows, ll.vectors(builder, counts, args[1]), strict=True):
            factor = builder.fmul(ll.load(builder, at, vec.ir), args[2])
            new.append(ll.fma(builder, vec, builder.sitofp(count, vec.ir), factor, old))
        return ll.tile(builder, sums, new)

    return sums(sums, counts, sums.vec, types.int64, types.int64), codegen


@intrinsic
def fma_centred(typingctx, sums, counts, scale, d, centre, stride):
    """sums[r] += (counts[r] * the f32x16 at d of row r + the one at centre) * scale."""

    def codegen(_context, builder, _sig, args):
        vec, new = sums.vec, []
        rows = _rows(builder, sums, args[0], args[3], args[5])
        apart = builder.sub(args[4], args[3])
        for (old, at), count in zip(rows, ll.vectors(builder, counts, args[1]), strict=True):
            own = ll.load(builder, at, vec.ir)
            middle = ll.load(builder, builder.add(at, apart), vec.ir)
            value = ll.fma(builder, vec, builder.sitofp(count, vec.ir), own, middle)
            new.append(ll.fma(builder, vec, value, args[2], old))
        return ll.tile(builder, sums, new)

    return sums(sums, counts, sums.vec, types.int64, types.int64, types.int64), codegen


@intrinsic
def add_lower(typingctx, sums, halves):
    """sums, f32x16, with those of f32x8 added to their lower lanes."""

    def codegen(_context, builder, _sig, args):
        none = ir.Constant(halves.vec.ir, None)
        pairs = zip(
            ll.vectors(builder, sums, args[0]), ll.vectors(builder, halves, args[1]), strict=True
        )
        new = [builder.fadd(v, ll.concat(builder, half, none)) for v, half in pairs]
        return ll.tile(builder, sums, new)

    return sums(sums, halves), codegen


@intrinsic
def split_lanes(typingctx, sums, numbers, n):
    """(those lanes of the sums whose number is below n, the others), each with zeros elsewhere.

    numbers: Lanes, one for each lane.
    """
    i32s = ir.VectorType(I32, sums.vec.n)

    def codegen(context, builder, sig, args):
        limit = ll.splat(builder, builder.trunc(args[2], I32), i32s)
        is_below = builder.icmp_signed("<", ir.Constant(i32s, list(numbers.lanes)), limit)
        none = ir.Constant(sums.vec.ir, None)
        vectors = ll.vectors(builder, sums, args[0])
        below = ll.tile(builder, sums, [builder.select(is_below, v, none) for v in vectors])
        others = ll.tile(builder, sums, [builder.select(is_below, none, v) for v in vectors])
        return context.make_tuple(builder, sig.return_type, (below, others))

    return types.UniTuple(sums, 2)(sums, numbers, types.int64), codegen


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
