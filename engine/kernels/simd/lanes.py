"""Moving lanes: cutting, joining and reordering vectors."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.jit import PROFILE
from engine.kernels.simd import lowering as ll
from engine.kernels.simd.vectors import I32, Vec


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
def look_up(typingctx, codes, table):
    """table[code] for each of the codes: 16 or 32 u8 below 16; table: Lanes, sixteen of them."""

    def codegen(_context, builder, _sig, args):
        return ll.look_up(builder, args[0], table.lanes)

    return codes(codes, table), codegen


@intrinsic
def negate_where(typingctx, v, bits):
    """-v in the lanes whose bit is set: lane 0 goes by the lowest bit. v: i8x32, bits: a number."""

    def codegen(_context, builder, _sig, args):
        bits = builder.trunc(args[1], I32) if args[1].type.width > 32 else args[1]
        # A vector's bits in memory order are what a CPU with mask registers takes as they are.
        # Another one gives each lane the byte that holds its bit, and compares.
        if PROFILE.lanes == 16:
            is_set = builder.bitcast(bits, ir.VectorType(ir.IntType(1), v.n))
        else:
            words = ll.splat(builder, bits, ir.VectorType(I32, v.n // 4))
            each = builder.bitcast(words, v.ir)
            own = ll.shuffle(builder, each, each, [i // 8 for i in range(v.n)])
            bit = ir.Constant(v.ir, [1 << i % 8 for i in range(v.n)])
            is_set = builder.icmp_unsigned("==", builder.and_(own, bit), bit)
        minus_one = builder.sext(is_set, v.ir)
        return builder.sub(builder.xor(args[0], minus_one), minus_one)

    return v(v, bits), codegen


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
