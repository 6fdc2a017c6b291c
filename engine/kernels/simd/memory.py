"""Reading and writing memory: vectors, tiles of widened bytes, and single numbers.

Addresses are int64 and need no alignment. Nothing is checked: whoever makes an address has.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.kernels.simd import lowering as ll
from engine.kernels.simd.vectors import I8P, I32, Vec


@intrinsic
def load(typingctx, kind, address):
    """The vector at address, which needs no alignment."""

    def codegen(_context, builder, _sig, args):
        return ll.load(builder, args[1], kind.of.ir)

    return kind.of(kind, types.int64), codegen


@intrinsic
def store(typingctx, address, v):
    """Write a vector (f32 into an f16 place: store_f16)."""

    def codegen(context, builder, _sig, args):
        builder.store(args[1], ll.pointer(builder, args[0], args[1].type)).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, v), codegen


@intrinsic
def load_f16(typingctx, kind, address):
    """Halves at address, widened to the f32 vector type `kind`."""

    def codegen(_context, builder, _sig, args):
        half = ir.VectorType(ir.HalfType(), kind.of.n)
        return ll.widen_f16(builder, ll.load(builder, args[1], half), kind.of.ir)

    return kind.of(kind, types.int64), codegen


@intrinsic
def widen_f16(typingctx, v):
    """The halves whose bits are a u16 vector's, as f32."""
    wide = Vec("f32", v.n)

    def codegen(_context, builder, _sig, args):
        halves = builder.bitcast(args[0], ir.VectorType(ir.HalfType(), v.n))
        return ll.widen_f16(builder, halves, wide.ir)

    return wide(v), codegen


@intrinsic
def store_f16(typingctx, address, v):
    """Write an f32 vector as halves."""

    def codegen(context, builder, _sig, args):
        bits = ll.narrow_f16(builder, args[1], v.n)
        builder.store(bits, ll.pointer(builder, args[0], bits.type)).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, v), codegen


@intrinsic
def load_bf16(typingctx, kind, address):
    """bfloat16 values at address, widened to the f32 vector type `kind`."""

    def codegen(_context, builder, _sig, args):
        i32 = ir.VectorType(I32, kind.of.n)
        bits = builder.zext(
            ll.load(builder, args[1], ir.VectorType(ir.IntType(16), kind.of.n)), i32
        )
        shifted = builder.shl(bits, ir.Constant(i32, [16] * kind.of.n))
        return builder.bitcast(shifted, kind.of.ir)

    return kind.of(kind, types.int64), codegen


@intrinsic
def load_wide(typingctx, kind, address):
    """Bytes at address, widened to the unsigned integer vector type `kind`."""

    def codegen(_context, builder, _sig, args):
        narrow = ll.load(builder, args[1], ir.VectorType(ir.IntType(8), kind.of.n))
        return builder.zext(narrow, kind.of.ir)

    return kind.of(kind, types.int64), codegen


@intrinsic
def load_twice(typingctx, kind, address):
    """The vector at address, and the same again: a vector of twice its length."""

    def codegen(_context, builder, _sig, args):
        v = ll.load(builder, args[1], kind.of.ir)
        return ll.concat(builder, v, v)

    return Vec(kind.of.elem, 2 * kind.of.n)(kind, types.int64), codegen


@intrinsic
def load_bits(typingctx, kind, address, yes, no):
    """For each bit at address, the lowest first, a literal: `yes` where it is set, else `no`.

    kind: an integer vector type.
    """
    if not isinstance(yes, types.IntegerLiteral) or not isinstance(no, types.IntegerLiteral):
        return None

    def codegen(_context, builder, _sig, args):
        choice = yes.literal_value, no.literal_value
        return ll.choose_by_bits(builder, kind.of, args[1], *choice)

    return kind.of(kind, types.int64, yes, no), codegen


@intrinsic
def load_pieces(typingctx, kind, addresses):
    """A vector of equal pieces, each from its own address (a tuple of them)."""

    def codegen(_context, builder, _sig, args):
        # Plain loads: a gather instruction is slow on many CPUs, those that had to be mended most.
        n = addresses.count
        piece = ir.IntType(kind.of.n * kind.of.ir.element.width // n)
        value = ir.Constant(ir.VectorType(piece, n), ir.Undefined)
        for i in range(n):
            at = builder.extract_value(args[1], i)
            value = builder.insert_element(value, ll.load(builder, at, piece), I32(i))
        return builder.bitcast(value, kind.of.ir)

    return kind.of(kind, addresses), codegen


def _prefetch(locality):
    @intrinsic
    def verb(typingctx, address):
        def codegen(context, builder, _sig, args):
            pointer = builder.inttoptr(args[0], I8P)
            values = [pointer, I32(0), I32(locality), I32(1)]
            ll.call(builder, "llvm.prefetch.p0", ir.VoidType(), values)
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    return verb


# Ask for a cache line that will be read soon, once, and not again; any address is allowed.
prefetch = _prefetch(0)
# The same, but only into the L2 cache, which may wait for more lines at a time than the L1.
prefetch_l2 = _prefetch(2)


def _scalar_read(of, numba_type):
    @intrinsic
    def read(typingctx, address):
        def codegen(_context, builder, _sig, args):
            return ll.load(builder, args[0], of)

        return numba_type(types.int64), codegen

    return read


def _scalar_write(of, numba_type):
    @intrinsic
    def write(typingctx, address, value):
        def codegen(context, builder, _sig, args):
            builder.store(args[1], ll.pointer(builder, args[0], of)).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, numba_type), codegen

    return write


read_u8 = _scalar_read(ir.IntType(8), types.uint8)
read_u16 = _scalar_read(ir.IntType(16), types.uint16)
read_i32 = _scalar_read(ir.IntType(32), types.int32)
read_i64 = _scalar_read(ir.IntType(64), types.int64)
read_f32 = _scalar_read(ir.FloatType(), types.float32)
read_f64 = _scalar_read(ir.DoubleType(), types.float64)
write_u8 = _scalar_write(ir.IntType(8), types.uint8)
write_u16 = _scalar_write(ir.IntType(16), types.uint16)
write_i32 = _scalar_write(ir.IntType(32), types.int32)
write_f32 = _scalar_write(ir.FloatType(), types.float32)
write_i64 = _scalar_write(ir.IntType(64), types.int64)


@intrinsic
def read_f16(typingctx, address):
    """One half at address, as f32."""

    def codegen(_context, builder, _sig, args):
        # By way of an integer register, hidden from LLVM by an empty piece of assembler: its own
        # way on x86 (vpinsrw) merges a lone half into some register that is in use, and a loop
        # would then wait for whatever sum that register holds.
        bits = builder.zext(ll.load(builder, args[0], ir.IntType(16)), I32)
        bits = builder.asm(ir.FunctionType(I32, [I32]), "", "=r,0", [bits], False)
        lanes = builder.insert_element(ir.Constant(ir.VectorType(I32, 4), None), bits, I32(0))
        halves = builder.bitcast(lanes, ir.VectorType(ir.HalfType(), 8))
        wide = ll.widen_f16(builder, halves, ir.VectorType(ir.FloatType(), 8))
        return builder.extract_element(wide, I32(0))

    return types.float32(types.int64), codegen


@intrinsic
def write_f16(typingctx, address, value):
    """Write an f32 number as a half."""

    def codegen(context, builder, _sig, args):
        lanes = ll.splat(builder, args[1], ir.VectorType(ir.FloatType(), 8))
        bits = builder.extract_element(ll.narrow_f16(builder, lanes, 8), I32(0))
        builder.store(bits, ll.pointer(builder, args[0], bits.type)).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), codegen


@intrinsic
def read_f16_pair(typingctx, address):
    """Two halves at address, as a pair of f32."""

    def codegen(context, builder, sig, args):
        bits = ll.load(builder, args[0], I32)
        lanes = builder.insert_element(ir.Constant(ir.VectorType(I32, 4), None), bits, I32(0))
        halves = builder.bitcast(lanes, ir.VectorType(ir.HalfType(), 8))
        wide = ll.widen_f16(builder, halves, ir.VectorType(ir.FloatType(), 8))
        pair = [builder.extract_element(wide, I32(i)) for i in range(2)]
        return context.make_tuple(builder, sig.return_type, pair)

    return types.UniTuple(types.float32, 2)(types.int64), codegen


@intrinsic
def stack(typingctx, n_bytes):
    """Address of n_bytes (a literal) of this call's own memory, 64-byte aligned, not zeroed."""
    if not isinstance(n_bytes, types.IntegerLiteral):
        return None

    def codegen(_context, builder, _sig, _args):
        with builder.goto_entry_block():
            place = builder.alloca(ir.ArrayType(ir.IntType(8), n_bytes.literal_value))
            place.align = 64
        return builder.ptrtoint(place, ir.IntType(64))

    return types.int64(n_bytes), codegen
