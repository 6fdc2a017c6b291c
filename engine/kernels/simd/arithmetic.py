"""Arithmetic on vectors, and on tiles vector by vector."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.jit import inline
from engine.kernels.simd import lowering as ll
from engine.kernels.simd.vectors import ELEMENTS, I32, Vec, f32xL, i32xL


@intrinsic
def splat(typingctx, kind, value):
    """A vector of one value in all lanes."""
    elem = ELEMENTS[kind.of.elem]

    def codegen(_context, builder, sig, args):
        x = args[1]
        if x.type != elem:
            if isinstance(elem, ir.IntType):
                narrower = elem.width < x.type.width
                x = builder.trunc(x, elem) if narrower else builder.sext(x, elem)
            else:
                x = builder.fptrunc(x, elem)
        return ll.splat(builder, x, kind.of.ir)

    return kind.of(kind, value), codegen


@intrinsic
def zeros(typingctx, kind):
    """A vector or tile of zeros."""

    def codegen(_context, _builder, _sig, _args):
        return ir.Constant(kind.of.ir, None)

    return kind.of(kind), codegen


def _binary(int_op, float_op):
    """A verb on two vectors, or on two tiles vector by vector."""

    @intrinsic
    def op(typingctx, a, b):
        elem = a.elem if isinstance(a, Vec) else a.vec.elem

        def one(builder, x, y):
            return getattr(builder, float_op if elem == "f32" else int_op)(x, y)

        def codegen(_context, builder, _sig, args):
            return ll.each(builder, a, one, *args)

        return a(a, b), codegen

    return op


add = _binary("add", "fadd")
sub = _binary("sub", "fsub")
mul = _binary("mul", "fmul")
div = _binary("sdiv", "fdiv")
bor = _binary("or_", "or_")
bxor = _binary("xor", "xor")


def _constant_operand(int_op):
    """A verb on an integer vector, or each vector of a tile, and one literal for all lanes."""

    @intrinsic
    def op(typingctx, v, constant):
        if not isinstance(constant, types.IntegerLiteral):
            return None

        def one(builder, x):
            same = ir.Constant(x.type, [constant.literal_value] * x.type.count)
            return getattr(builder, int_op)(x, same)

        def codegen(_context, builder, _sig, args):
            return ll.each(builder, v, one, args[0])

        return v(v, constant), codegen

    return op


shr = _constant_operand("lshr")
shl = _constant_operand("shl")
mask = _constant_operand("and_")
flip = _constant_operand("xor")
plus = _constant_operand("add")


@intrinsic
def plus_scalar(typingctx, v, n):
    """n added to every lane of an integer vector."""

    def codegen(_context, builder, _sig, args):
        elem = args[0].type.element
        n = builder.trunc(args[1], elem) if args[1].type.width > elem.width else args[1]
        return builder.add(args[0], ll.splat(builder, n, args[0].type))

    return v(v, n), codegen


@intrinsic
def fma(typingctx, a, b, c):
    """a * b + c, rounded once."""

    def codegen(_context, builder, _sig, args):
        return ll.fma(builder, a, *args)

    return a(a, a, a), codegen


def _unary_float(llvm_name):
    @intrinsic
    def op(typingctx, v):
        def codegen(_context, builder, _sig, args):
            return ll.call(builder, f"llvm.{llvm_name}.{ll.suffix(v)}", v.ir, list(args))

        return v(v), codegen

    return op


absolute = _unary_float("fabs")
nearest = _unary_float("rint")


def _select_float(predicate):
    @intrinsic
    def op(typingctx, a, b):
        def codegen(_context, builder, _sig, args):
            return builder.select(builder.fcmp_ordered(predicate, *args), *args)

        return a(a, b), codegen

    return op


larger = _select_float(">")
smaller = _select_float("<")


@intrinsic
def convert(typingctx, kind, v):
    """The same numbers as another element type.

    Integers are widened or cut, i32 to f32 is rounded to nearest, f32 to i32 toward zero.
    """
    to, source = kind.of, v

    def codegen(_context, builder, _sig, args):
        x = args[1]
        if to.elem == "f32":
            return (builder.uitofp if source.elem[0] == "u" else builder.sitofp)(x, to.ir)
        if source.elem == "f32":
            return builder.fptosi(x, to.ir)
        if to.ir.element.width < x.type.element.width:
            return builder.trunc(x, to.ir)
        return (builder.zext if source.elem[0] == "u" else builder.sext)(x, to.ir)

    return to(kind, v), codegen


@intrinsic
def reinterpret(typingctx, kind, v):
    """The same bits as another type. v may also be a 32- or 64-bit integer."""

    def codegen(_context, builder, _sig, args):
        return builder.bitcast(args[1], kind.of.ir)

    return kind.of(kind, v), codegen


@intrinsic
def where_less(typingctx, a, b, yes, no):
    """Per lane: a < b (signed integers) ? yes : no."""

    def codegen(_context, builder, _sig, args):
        return builder.select(builder.icmp_signed("<", args[0], args[1]), args[2], args[3])

    return yes(a, a, yes, yes), codegen


@intrinsic
def sum_lanes(typingctx, v):
    """The sum of an f32 or i32 vector's lanes."""

    def codegen(_context, builder, _sig, args):
        return ll.sum_lanes(builder, args[0])

    return (types.float32 if v.elem == "f32" else types.int32)(v), codegen


@intrinsic
def max_lanes(typingctx, v):
    """The largest lane of an f32 vector."""

    def codegen(_context, builder, _sig, args):
        x = args[0]
        while x.type.count > 1:
            a, b = ll.halves(builder, x)
            x = builder.select(builder.fcmp_ordered(">", a, b), a, b)
        return builder.extract_element(x, I32(0))

    return types.float32(v), codegen


@inline
def exp(v):
    """e^v for an f32xL vector, to about 1e-7 of the value; below -87 it is 0."""
    x = larger(smaller(v, splat(f32xL, 88.0)), splat(f32xL, -87.3))
    n = nearest(mul(x, splat(f32xL, 1.4426950408889634)))
    r = fma(n, splat(f32xL, -0.693359375), x)  # ln 2 in two parts, so that r is exact
    r = fma(n, splat(f32xL, 2.12194440e-4), r)
    p = splat(f32xL, 1.9875691500e-4)
    p = fma(p, r, splat(f32xL, 1.3981999507e-3))
    p = fma(p, r, splat(f32xL, 8.3334519073e-3))
    p = fma(p, r, splat(f32xL, 4.1665795894e-2))
    p = fma(p, r, splat(f32xL, 1.6666665459e-1))
    p = fma(p, r, splat(f32xL, 5.0000001201e-1))
    p = add(fma(mul(p, r), r, r), splat(f32xL, 1.0))
    power = reinterpret(f32xL, shl(plus(convert(i32xL, n), 127), 23))  # 2^n by its bits
    keep = larger(v, splat(f32xL, -87.3))
    return select_equal(keep, v, mul(p, power), zeros(f32xL))


@intrinsic
def select_equal(typingctx, a, b, yes, no):
    """Per lane: a == b ? yes : no."""

    def codegen(_context, builder, _sig, args):
        return builder.select(builder.fcmp_ordered("==", args[0], args[1]), args[2], args[3])

    return yes(a, a, yes, yes), codegen
