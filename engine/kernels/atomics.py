"""Atomic memory, calls through an address, and giving way: what a team of threads needs.

Addresses are int64 of 8-byte aligned int64 values. Only this file and simd/ know LLVM.
"""

from __future__ import annotations

import platform

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I64 = ir.IntType(64)


def _at(builder, address):
    return builder.inttoptr(address, _I64.as_pointer())


@intrinsic
def fetch_add(typingctx, address, n):
    """Add n to the value at address; returns what it was."""

    def codegen(_context, builder, _sig, args):
        return builder.atomic_rmw("add", _at(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def exchange(typingctx, address, value):
    """Put value at address; returns what was there."""

    def codegen(_context, builder, _sig, args):
        return builder.atomic_rmw("xchg", _at(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def read_shared(typingctx, address):
    """The value at address, and everything written before it was released there."""

    def codegen(_context, builder, _sig, args):
        return builder.load_atomic(_at(builder, args[0]), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def write_shared(typingctx, address, value):
    """Release value at address: who reads it sees everything written before."""

    def codegen(context, builder, _sig, args):
        builder.store_atomic(args[1], _at(builder, args[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def pause(typingctx):
    """Tell the CPU that this is a spin loop."""

    def codegen(context, builder, _sig, _args):
        if platform.machine() in ("x86_64", "AMD64"):
            signature = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, signature, name), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def give_way(typingctx):
    """Let the scheduler run someone else on this core (POSIX sched_yield)."""

    def codegen(context, builder, _sig, _args):
        signature = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, signature, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call_address(typingctx, function, args):
    """Call the C function at an address, void, with a tuple of integers, passed as int64."""
    if not all(isinstance(t, types.Integer) for t in args):
        return None

    def codegen(context, builder, sig, values):
        signature = ir.FunctionType(ir.VoidType(), [_I64] * len(args))
        integers = [
            context.cast(builder, value, t, types.int64)
            for value, t in zip(cgutils.unpack_tuple(builder, values[1]), args, strict=True)
        ]
        builder.call(builder.inttoptr(values[0], signature.as_pointer()), integers)
        return context.get_dummy_value()

    return types.void(types.int64, args), codegen


@intrinsic
def address_of(typingctx, pointer):
    """The address that a C pointer holds, as int64."""

    def codegen(_context, builder, _sig, args):
        return builder.ptrtoint(args[0], _I64)

    return types.int64(pointer), codegen
