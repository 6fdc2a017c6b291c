"""Integer products of weights and inputs."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.kernels.simd import lowering as ll
from engine.kernels.simd.vectors import COUNTS, L


@intrinsic
def dot(typingctx, acc, w, x):
    """acc + products of u8 w (at most 128) and i8 x (not -128), four to a lane.

    acc: i32xN, w: u8x4N, x: i8x4N.
    """

    def codegen(_context, builder, _sig, args):
        return ll.dot_u8_i8(builder, *args)

    return acc(acc, w, x), codegen


@intrinsic
def dot_signed(typingctx, acc, w, x):
    """Like dot for i8 weights."""

    def codegen(_context, builder, _sig, args):
        return ll.dot_i8_i8(builder, *args)

    return acc(acc, w, x), codegen


@intrinsic
def products(typingctx, w, x):
    """COUNTS of a WIDE tile's 32 weights and the 32 i16 at address x, neighbouring products added.

    Exact while sums stay below 2^31.
    """

    def codegen(_context, builder, _sig, args):
        x_ir = ir.VectorType(ir.IntType(16), 2 * L)
        counts = []
        for v, at in zip(
            ll.vectors(builder, w, args[0]),
            ll.rows(builder, args[1], ir.IntType(64)(4 * L), w.n),
            strict=True,
        ):
            counts.append(ll.products_i16(builder, v, ll.load(builder, at, x_ir)))
        return ll.tile(builder, COUNTS, counts)

    return COUNTS(w, types.int64), codegen


@intrinsic
def total(typingctx, tile):
    """The sum of a tile of integer vectors."""

    def codegen(_context, builder, _sig, args):
        first, *rest = ll.vectors(builder, tile, args[0])
        for v in rest:
            first = builder.add(first, v)
        return first

    return tile.vec(tile), codegen
