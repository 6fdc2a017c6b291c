"""Moving lanes: cutting, joining and reordering vectors."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.jit import PROFILE
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
def mask_lanes(typingctx, v, lanes):
    """The bits of each lane that its own constant has too."""

    def codegen(_context, builder, _sig, args):
        return builder.and_(args[0], ir.Constant(args[0].type, list(lanes.lanes)))

    return v(v, lanes), codegen


def _shift_words(int_op):
    """A verb on bytes, taken as 16-bit words, each of which is shifted by its own constant."""

    @intrinsic
    def op(typingctx, v, lanes):
        def codegen(_context, builder, _sig, args):
            words = ir.VectorType(ir.IntType(16), v.n // 2)
            amounts = ir.Constant(words, list(lanes.lanes))
            shifted = getattr(builder, int_op)(builder.bitcast(args[0], words), amounts)
            return builder.bitcast(shifted, v.ir)

        return v(v, lanes), codegen

    return op


shl_words = _shift_words("shl")
shr_words = _shift_words("lshr")


@intrinsic
def look_up(typingctx, codes, table):
    """table[code] for each of the codes, u8 below 16; table: Lanes, sixteen u8 or i8."""
    elem = "i8" if min(table.lanes) < 0 else "u8"

    def codegen(_context, builder, _sig, args):
        return ll.look_up(builder, args[0], table.lanes)

    return Vec(elem, codes.n)(codes, table), codegen


@intrinsic
def negate_where(typingctx, v, bits):
    """-v in the lanes whose bit is set: lane 0 goes by the lowest bit. v: i8x64, bits: int64."""

    def codegen(_context, builder, _sig, args):
        bits, zero = args[1], ir.Constant(v.ir, None)
        # A vector's bits in memory order are what a CPU with mask registers takes as they are.
        # Another one gives each lane the byte that holds its bit, and compares.
        if PROFILE.lanes == 16:
            is_set = builder.bitcast(bits, ir.VectorType(ir.IntType(1), v.n))
        else:
            words = ll.splat(builder, bits, ir.VectorType(bits.type, v.n // 8))
            each = builder.bitcast(words, v.ir)
            own = ll.shuffle(builder, each, each, [i // 16 * 16 + i // 8 for i in range(v.n)])
            is_set = _own_bit(builder, own)
        return builder.select(is_set, builder.sub(zero, args[0]), args[0])

    return v(v, types.int64), codegen


@intrinsic
def add_16_where(typingctx, v, own):
    """v + 16 in the lanes whose bit is set: that of own[i], a byte, whose number is i % 8."""

    def codegen(_context, builder, _sig, args):
        more = builder.add(args[0], ir.Constant(v.ir, [16] * v.n))
        return builder.select(_own_bit(builder, args[1]), more, args[0])

    return v(v, own), codegen


def _own_bit(builder, own):
    bit = ir.Constant(own.type, [1 << i % 8 for i in range(own.type.count)])
    if PROFILE.lanes == 16:  # one instruction
        return builder.icmp_unsigned("!=", builder.and_(own, bit), ir.Constant(own.type, None))
    return builder.icmp_unsigned("==", builder.and_(own, bit), bit)


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
def constant(typingctx, kind, lanes):
    """The vector type `kind` with these lanes (a Lanes constant)."""

    def codegen(_context, _builder, _sig, _args):
        return ir.Constant(kind.of.ir, list(lanes.lanes))

    return kind.of(kind, lanes), codegen


@intrinsic
def lane_index(typingctx, kind):
    """0, 1, 2, ... as the integer vector type `kind`."""

    def codegen(_context, _builder, _sig, _args):
        return ir.Constant(kind.of.ir, list(range(kind.of.n)))

    return kind.of(kind), codegen
