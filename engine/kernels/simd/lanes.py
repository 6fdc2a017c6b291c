"""Moving lanes: cutting, joining and reordering vectors."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.kernels.simd import lowering as ll
from engine.kernels.simd.vectors import Vec


@intrinsic
def concat(typingctx, a, b):
    """a's lanes, then b's."""

    def codegen(_context, builder, _sig, args):
        return ll.concat(builder, *args)

    return Vec(a.elem, 2 * a.n)(a, a), codegen


@intrinsic
def shuffle(typingctx, v, lanes):
    """The chosen lanes of v (a Lanes constant), in order."""

    def codegen(_context, builder, _sig, args):
        return ll.shuffle(builder, args[0], args[0], lanes.lanes)

    return Vec(v.elem, len(lanes.lanes))(v, lanes), codegen


@intrinsic
def merge(typingctx, a, b, lanes):
    """The chosen lanes of a and b, b's lanes counted on from a's."""

    def codegen(_context, builder, _sig, args):
        return ll.shuffle(builder, args[0], args[1], lanes.lanes)

    return Vec(a.elem, len(lanes.lanes))(a, b, lanes), codegen


@intrinsic
def shr_lanes(typingctx, v, lanes):
    """Each lane of an integer vector shifted right by its own constant."""

    def codegen(_context, builder, _sig, args):
        return builder.lshr(args[0], ir.Constant(args[0].type, list(lanes.lanes)))

    return v(v, lanes), codegen


@intrinsic
def splat_lane(typingctx, v, lane):
    """Lane number `lane` (a literal) of v in all lanes."""
    if not isinstance(lane, types.IntegerLiteral):
        return None

    def codegen(_context, builder, _sig, args):
        return ll.shuffle(builder, args[0], args[0], [lane.literal_value] * v.n)

    return v(v, lane), codegen


@intrinsic
def lower(typingctx, v):
    """The first half of the lanes."""

    def codegen(_context, builder, _sig, args):
        return ll.halves(builder, args[0])[0]

    return Vec(v.elem, v.n // 2)(v), codegen


@intrinsic
def upper(typingctx, v):
    """The second half of the lanes."""

    def codegen(_context, builder, _sig, args):
        return ll.halves(builder, args[0])[1]

    return Vec(v.elem, v.n // 2)(v), codegen


@intrinsic
def lane_index(typingctx, kind):
    """0, 1, 2, ... as the integer vector type `kind`."""

    def codegen(_context, _builder, _sig, _args):
        return ir.Constant(kind.of.ir, list(range(kind.of.n)))

    return kind.of(kind), codegen
