"""SIMD for Numba: vector types, tiles of vectors, and a few verbs with one meaning on every CPU.

A vector type (`u8x32`, `f32xL`, ...) is a value that the verbs take: `load(f32x8, address)`. L is
the profile's own width in 32-bit lanes; types with a fixed number are as wide everywhere and LLVM
splits them where it must. A tile is a few vectors that stay in registers; verbs on tiles are
unrolled here, where Python is the macro language.

Addresses are int64. Nothing is checked: whoever makes an address has checked it. How `dot` is
lowered depends on engine.jit.PROFILE. This file and atomics.py are the only ones that know LLVM.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import lower_constant
from numba.extending import intrinsic, models, register_model, typeof_impl

from engine.jit import PROFILE, inline

L = PROFILE.lanes

_ELEMENTS = {
    "u8": ir.IntType(8), "i8": ir.IntType(8), "u16": ir.IntType(16), "i16": ir.IntType(16),
    "u32": ir.IntType(32), "i32": ir.IntType(32), "f16": ir.HalfType(), "f32": ir.FloatType(),
}  # fmt: skip
_ELEMENT_BYTES = {"u8": 1, "i8": 1, "u16": 2, "i16": 2, "u32": 4, "i32": 4, "f16": 2, "f32": 4}
_I8P = ir.IntType(8).as_pointer()
_I32 = ir.IntType(32)


class Vec(types.Type):
    """n elements in one register (or a few): LLVM's <n x element>."""

    def __init__(self, elem: str, n: int) -> None:
        self.elem, self.n = elem, n
        super().__init__(name=f"{elem}x{n}")

    @property
    def ir(self):
        return ir.VectorType(_ELEMENTS[self.elem], self.n)


class Tile(types.Type):
    """n vectors of one type, kept in registers: LLVM's [n x <...>]. In memory they lie in rows of
    `columns` neighbours.
    """

    def __init__(self, vec: Vec, n: int, columns: int = 1) -> None:
        self.vec, self.n, self.columns = vec, n, columns
        super().__init__(name=f"tile{n}by{columns}({vec.name})")

    @property
    def ir(self):
        return ir.ArrayType(self.vec.ir, self.n)


class Kind(types.Type):
    """The type of a global that holds a Vec or Tile type, so that `load(u8x32, address)` can be
    written.
    """

    def __init__(self, of: Vec | Tile) -> None:
        self.of = of
        super().__init__(name=f"kind({of.name})")


class Lanes:
    """A choice of lanes, for `shuffle`: a module-level constant."""

    def __init__(self, *lanes: int) -> None:
        self.lanes = lanes


class LanesKind(types.Type):
    """The type of a global that holds Lanes."""

    def __init__(self, lanes: tuple[int, ...]) -> None:
        self.lanes = lanes
        super().__init__(name=f"lanes{lanes}")


@register_model(Vec)
@register_model(Tile)
class _ValueModel(models.PrimitiveModel):
    def __init__(self, manager, fe_type):
        super().__init__(manager, fe_type, fe_type.ir)


register_model(Kind)(models.OpaqueModel)
register_model(LanesKind)(models.OpaqueModel)


@typeof_impl.register(Vec)
@typeof_impl.register(Tile)
def _typeof_kind(value, _context):
    return Kind(value)


@typeof_impl.register(Lanes)
def _typeof_lanes(value, _context):
    return LanesKind(value.lanes)


@lower_constant(Kind)
@lower_constant(LanesKind)
def _constant_kind(context, _builder, _type, _value):
    return context.get_dummy_value()


u8x16, u8x32, u32x4 = Vec("u8", 16), Vec("u8", 32), Vec("u32", 4)
i8x16, i8x32 = Vec("i8", 16), Vec("i8", 32)
i32x8, f32x8 = Vec("i32", 8), Vec("f32", 8)
i8xL, i16xL, i32xL, f32xL = Vec("i8", L), Vec("i16", L), Vec("i32", L), Vec("f32", L)
# 32 weights in 16 bits, and the sums of their products with 32 inputs: neighbours added, so 16
# places.
WIDE, WIDE_SIGNED = Tile(Vec("u16", 2 * L), 16 // L), Tile(Vec("i16", 2 * L), 16 // L)
COUNTS = Tile(i32xL, 16 // L)
u8x4L, i8x4L, i16x2L = Vec("u8", 4 * L), Vec("i8", 4 * L), Vec("i16", 2 * L)


# --- building blocks of the verbs ---------------------------------------------------------------


def _pointer(builder, address, to):
    return builder.inttoptr(address, to.as_pointer())


def _load(builder, address, of, align=1):
    value = builder.load(_pointer(builder, address, of))
    value.align = align
    return value


def _splat(builder, scalar, vec_ir):
    v = builder.insert_element(ir.Constant(vec_ir, ir.Undefined), scalar, _I32(0))
    mask = ir.Constant(ir.VectorType(_I32, vec_ir.count), [0] * vec_ir.count)
    return builder.shuffle_vector(v, ir.Constant(vec_ir, ir.Undefined), mask)


def _shuffle(builder, a, b, lanes):
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(lanes)), list(lanes)))


def _call(builder, name, result, args):
    signature = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), args)


def _name(vec: Vec) -> str:
    return f"v{vec.n}{vec.elem.replace('u', 'i')}"


def _fma(builder, vec, a, b, c):
    # On a CPU without the instruction `fma` would be a library call for each lane; `fmuladd` may
    # round twice.
    name = "fma" if PROFILE.fma else "fmuladd"
    return _call(builder, f"llvm.{name}.{_name(vec)}", vec.ir, [a, b, c])


def _halves(builder, v):
    n = v.type.count
    return (
        _shuffle(builder, v, v, range(n // 2)),
        _shuffle(builder, v, v, range(n // 2, n)),
    )


def _concat(builder, a, b):
    return _shuffle(builder, a, b, range(2 * a.type.count))


def _tile(builder, kind, vectors):
    tile = ir.Constant(kind.ir, ir.Undefined)
    for i, v in enumerate(vectors):
        tile = builder.insert_value(tile, v, i)
    return tile


def _vectors(builder, kind, value):
    """The vectors of a tile, or of a lone vector."""
    if isinstance(kind, Vec):
        return [value]
    return [builder.extract_value(value, i) for i in range(kind.n)]


def _each(builder, kind, function, *values):
    """function(builder, ...) of vectors, or of the vectors of tiles one after the other."""
    if isinstance(kind, Vec):
        return function(builder, *values)
    columns = zip(*(_vectors(builder, kind, v) for v in values), strict=True)
    return _tile(builder, kind, [function(builder, *column) for column in columns])


def _dot_u8_i8(builder, acc, w, x):
    """acc[i] += sum over j < 4 of w[4i + j] * x[4i + j]; acc: i32, w: u8 (at most 128 in value),
    x: i8 (not -128).
    """
    n = acc.type.count
    if PROFILE.dot == "vnni" and n in (4, 8, 16):
        if n == 16 and PROFILE.lanes < 16:
            return _in_halves(builder, _dot_u8_i8, acc, w, x)
        return _call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * n}", acc.type, [acc, w, x])
    if PROFILE.dot == "maddubs":
        pairs = _maddubs(builder, w, x)
        return builder.add(acc, _sum_pairs(builder, pairs))
    return _dot_plain(builder, acc, builder.zext, w, x)


def _dot_plain(builder, acc, extend, w, x):
    n = acc.type.count
    wide = ir.VectorType(_I32, 4 * n)
    product = builder.mul(extend(w, wide), builder.sext(x, wide))
    for j in range(4):
        acc = builder.add(acc, _shuffle(builder, product, product, range(j, 4 * n, 4)))
    return acc


def _products_i16(builder, w, x):
    """Products of i16, neighbours added, in i32."""
    n = w.type.count // 2
    i32s = ir.VectorType(_I32, n)
    if PROFILE.machine == "x86_64":
        if n > L:
            return _in_halves(builder, _products_i16, w, x)
        name = {
            4: "llvm.x86.sse2.pmadd.wd",
            8: "llvm.x86.avx2.pmadd.wd",
            16: "llvm.x86.avx512.pmaddw.d.512",
        }[n]
        return _call(builder, name, i32s, [w, x])
    wide = ir.VectorType(_I32, 2 * n)
    product = builder.mul(builder.sext(w, wide), builder.sext(x, wide))
    even = _shuffle(builder, product, product, range(0, 2 * n, 2))
    return builder.add(even, _shuffle(builder, product, product, range(1, 2 * n, 2)))


def _in_halves(builder, op, *args):
    parts = [_halves(builder, a) for a in args]
    return _concat(
        builder, op(builder, *[p[0] for p in parts]), op(builder, *[p[1] for p in parts])
    )


def _maddubs(builder, w, x):
    """Products of u8 and i8 summed in pairs, in i16: they saturate unless w is at most 128."""
    bits = 256 if L >= 8 else 128
    if w.type.count * 8 > bits:
        return _in_halves(builder, _maddubs, w, x)
    name = "llvm.x86.avx2.pmadd.ub.sw" if w.type.count == 32 else "llvm.x86.ssse3.pmadd.ub.sw.128"
    return _call(builder, name, ir.VectorType(ir.IntType(16), w.type.count // 2), [w, x])


def _sum_pairs(builder, v):
    """i16 -> i32, neighbours added."""
    bits = 256 if L >= 8 else 128
    if v.type.count * 16 > bits:
        return _in_halves(builder, _sum_pairs, v)
    ones = ir.Constant(v.type, [1] * v.type.count)
    name = "llvm.x86.avx2.pmadd.wd" if v.type.count == 16 else "llvm.x86.sse2.pmadd.wd"
    return _call(builder, name, ir.VectorType(_I32, v.type.count // 2), [v, ones])


def _sign_fix(builder, w, x):
    """(|w|, x with w's sign): their products are those of w and x, and |w| is a u8 of at most
    128.
    """
    if PROFILE.dot == "maddubs":
        return _psign(builder, w, w), _psign(builder, x, w)
    zero = ir.Constant(w.type, [0] * w.type.count)
    negative = builder.icmp_signed("<", w, zero)
    return (
        builder.select(negative, builder.sub(zero, w), w),
        builder.select(negative, builder.sub(zero, x), x),
    )


def _psign(builder, a, b):
    """a with its sign turned where b is negative, 0 where b is 0."""
    bits = 256 if L >= 8 else 128
    if a.type.count * 8 > bits:
        return _in_halves(builder, _psign, a, b)
    name = "llvm.x86.avx2.psign.b" if a.type.count == 32 else "llvm.x86.ssse3.psign.b.128"
    return _call(builder, name, a.type, [a, b])


def _dot_i8_i8(builder, acc, w, x):
    if PROFILE.dot == "plain":
        return _dot_plain(builder, acc, builder.sext, w, x)
    return _dot_u8_i8(builder, acc, *_sign_fix(builder, w, x))


def _widen_f16(builder, h, vec_ir):
    if PROFILE.f16c:
        return builder.fpext(h, vec_ir)
    # Without the instruction: shift the fields into place; multiplying by 2^112 mends the exponent,
    # denormals included.
    i32 = ir.VectorType(_I32, vec_ir.count)

    def const(value):
        return ir.Constant(i32, [value] * vec_ir.count)

    bits = builder.zext(builder.bitcast(h, ir.VectorType(ir.IntType(16), vec_ir.count)), i32)
    sign = builder.shl(builder.and_(bits, const(0x8000)), const(16))
    rest = builder.bitcast(builder.shl(builder.and_(bits, const(0x7FFF)), const(13)), vec_ir)
    scaled = builder.fmul(rest, ir.Constant(vec_ir, [2.0**112] * vec_ir.count))
    return builder.bitcast(builder.or_(builder.bitcast(scaled, i32), sign), vec_ir)


def _choose_by_bits(builder, vec, address, first, yes, no):
    """A vector that holds `yes` in the lanes whose bit is set, `no` in the others; lane 0 takes bit
    number `first` of those at address.

    A CPU with mask registers takes the bits as they are. Another one gives each lane the byte or
    word that holds its bit, and compares.
    """
    n, elem = vec.n, vec.ir.element
    if PROFILE.lanes == 16:
        at = builder.add(address, ir.IntType(64)(first // 8))
        is_set = builder.bitcast(_load(builder, at, ir.IntType(n)), ir.VectorType(ir.IntType(1), n))
    else:
        width = elem.width
        at = builder.add(address, ir.IntType(64)(first // width * (width // 8)))
        words = _load(builder, at, ir.VectorType(elem, max(1, n // width)))
        own = _shuffle(builder, words, words, [i // width for i in range(n)])
        bit = ir.Constant(vec.ir, [1 << (first + i) % width for i in range(n)])
        is_set = builder.icmp_unsigned("==", builder.and_(own, bit), bit)
    yes, no = (ir.Constant(vec.ir, [value] * n) for value in (yes, no))
    return builder.select(is_set, yes, no)


def _narrow_f16(builder, f, n):
    """f32 -> f16 bits (i16), to nearest even; values beyond f16 become infinity."""
    half = ir.VectorType(ir.HalfType(), n)
    i16 = ir.VectorType(ir.IntType(16), n)
    if PROFILE.f16c:
        return builder.bitcast(builder.fptrunc(f, half), i16)
    i32 = ir.VectorType(_I32, n)

    def const(value):
        return ir.Constant(i32, [value] * n)

    bits = builder.bitcast(f, i32)
    sign = builder.lshr(builder.and_(bits, const(0x80000000)), const(16))
    magnitude = builder.and_(bits, const(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, const(13)), const(1))
    rounded = builder.add(magnitude, builder.add(odd, const(0xFFF)))
    normal = builder.sub(builder.lshr(rounded, const(13)), const(112 << 10))
    # Denormal halves: adding 0.5 lets the float unit shift and round the mantissa into the low
    # bits.
    as_float = builder.fadd(builder.bitcast(magnitude, f.type), ir.Constant(f.type, [0.5] * n))
    tiny = builder.sub(builder.bitcast(as_float, i32), const(0x3F000000))
    result = builder.select(builder.icmp_unsigned("<", magnitude, const(0x38800000)), tiny, normal)
    result = builder.select(
        builder.icmp_unsigned(">=", magnitude, const(0x477FF000)), const(0x7C00), result
    )
    return builder.trunc(builder.or_(result, sign), i16)


# --- memory -------------------------------------------------------------------------------------


@intrinsic
def load(typingctx, kind, address):
    """The vector at address, which needs no alignment."""

    def codegen(_context, builder, _sig, args):
        return _load(builder, args[1], kind.of.ir)

    return kind.of(kind, types.int64), codegen


@intrinsic
def store(typingctx, address, v):
    """Write a vector (f32 into an f16 place: store_f16)."""

    def codegen(context, builder, _sig, args):
        builder.store(args[1], _pointer(builder, args[0], args[1].type)).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, v), codegen


@intrinsic
def load_f16(typingctx, kind, address):
    """Halves at address, widened to the f32 vector type `kind`."""

    def codegen(_context, builder, _sig, args):
        half = ir.VectorType(ir.HalfType(), kind.of.n)
        return _widen_f16(builder, _load(builder, args[1], half), kind.of.ir)

    return kind.of(kind, types.int64), codegen


@intrinsic
def store_f16(typingctx, address, v):
    """Write an f32 vector as halves."""

    def codegen(context, builder, _sig, args):
        bits = _narrow_f16(builder, args[1], v.n)
        builder.store(bits, _pointer(builder, args[0], bits.type)).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, v), codegen


@intrinsic
def load_bf16(typingctx, kind, address):
    """bfloat16 values at address, widened to the f32 vector type `kind`."""

    def codegen(_context, builder, _sig, args):
        i32 = ir.VectorType(_I32, kind.of.n)
        bits = builder.zext(_load(builder, args[1], ir.VectorType(ir.IntType(16), kind.of.n)), i32)
        shifted = builder.shl(bits, ir.Constant(i32, [16] * kind.of.n))
        return builder.bitcast(shifted, kind.of.ir)

    return kind.of(kind, types.int64), codegen


@intrinsic
def load_wide(typingctx, kind, address):
    """Bytes at address, widened to i16 (sign kept) or u16 (zeros above): a vector, or a tile of
    neighbours.
    """
    vec = kind.of if isinstance(kind.of, Vec) else kind.of.vec

    def codegen(_context, builder, _sig, args):
        def read(at):
            narrow = _load(builder, at, ir.VectorType(ir.IntType(8), vec.n))
            return (builder.zext if vec.elem == "u16" else builder.sext)(narrow, vec.ir)

        if isinstance(kind.of, Vec):
            return read(args[1])
        step = ir.IntType(64)(vec.n)
        return _tile(
            builder, kind.of, [read(at) for at in _rows(builder, args[1], step, kind.of.n)]
        )

    return kind.of(kind, types.int64), codegen


@intrinsic
def load_nibbles(typingctx, address):
    """32 weights of sixteen bytes as a WIDE tile: first the low nibbles, then the high ones."""

    def codegen(_context, builder, _sig, args):
        u16 = ir.VectorType(ir.IntType(16), 16)
        packed = builder.zext(_load(builder, args[0], ir.VectorType(ir.IntType(8), 16)), u16)
        low = builder.and_(packed, ir.Constant(u16, [15] * 16))
        high = builder.lshr(packed, ir.Constant(u16, [4] * 16))
        lanes = [list(range(i, i + 2 * L)) for i in range(0, 32, 2 * L)]
        return _tile(builder, WIDE, [_shuffle(builder, low, high, chosen) for chosen in lanes])

    return WIDE(types.int64), codegen


@intrinsic
def load_bits(typingctx, kind, address, yes, no):
    """One of two literals for each bit at address, the lowest first: `yes` where it is set, else
    `no`. kind: an integer vector, or a tile of neighbours.
    """
    if not isinstance(yes, types.IntegerLiteral) or not isinstance(no, types.IntegerLiteral):
        return None
    vec, n_vectors = (kind.of, 1) if isinstance(kind.of, Vec) else (kind.of.vec, kind.of.n)

    def codegen(_context, builder, _sig, args):
        choice = yes.literal_value, no.literal_value
        vectors = [
            _choose_by_bits(builder, vec, args[1], i * vec.n, *choice) for i in range(n_vectors)
        ]
        return vectors[0] if isinstance(kind.of, Vec) else _tile(builder, kind.of, vectors)

    return kind.of(kind, types.int64, yes, no), codegen


@intrinsic
def prefetch(typingctx, address):
    """Ask for a cache line that will be read soon, once, and not again; any address is allowed."""

    def codegen(context, builder, _sig, args):
        pointer = builder.inttoptr(args[0], _I8P)
        _call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, _I32(0), _I32(0), _I32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def _scalar_read(of, numba_type):
    @intrinsic
    def read(typingctx, address):
        def codegen(_context, builder, _sig, args):
            return _load(builder, args[0], of)

        return numba_type(types.int64), codegen

    return read


def _scalar_write(of, numba_type):
    @intrinsic
    def write(typingctx, address, value):
        def codegen(context, builder, _sig, args):
            builder.store(args[1], _pointer(builder, args[0], of)).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, numba_type), codegen

    return write


read_u8 = _scalar_read(ir.IntType(8), types.uint8)
read_i8 = _scalar_read(ir.IntType(8), types.int8)
read_u16 = _scalar_read(ir.IntType(16), types.uint16)
read_u32 = _scalar_read(ir.IntType(32), types.uint32)
read_i32 = _scalar_read(ir.IntType(32), types.int32)
read_u64 = _scalar_read(ir.IntType(64), types.uint64)
read_i64 = _scalar_read(ir.IntType(64), types.int64)
read_f32 = _scalar_read(ir.FloatType(), types.float32)
read_f64 = _scalar_read(ir.DoubleType(), types.float64)
write_u8 = _scalar_write(ir.IntType(8), types.uint8)
write_u16 = _scalar_write(ir.IntType(16), types.uint16)
write_u32 = _scalar_write(ir.IntType(32), types.uint32)
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
        bits = builder.zext(_load(builder, args[0], ir.IntType(16)), _I32)
        bits = builder.asm(ir.FunctionType(_I32, [_I32]), "", "=r,0", [bits], False)
        lanes = builder.insert_element(ir.Constant(ir.VectorType(_I32, 4), None), bits, _I32(0))
        halves = builder.bitcast(lanes, ir.VectorType(ir.HalfType(), 8))
        wide = _widen_f16(builder, halves, ir.VectorType(ir.FloatType(), 8))
        return builder.extract_element(wide, _I32(0))

    return types.float32(types.int64), codegen


@intrinsic
def read_f16_pair(typingctx, address):
    """Two halves at address, as a pair of f32."""

    def codegen(context, builder, sig, args):
        bits = _load(builder, args[0], _I32)
        lanes = builder.insert_element(ir.Constant(ir.VectorType(_I32, 4), None), bits, _I32(0))
        halves = builder.bitcast(lanes, ir.VectorType(ir.HalfType(), 8))
        wide = _widen_f16(builder, halves, ir.VectorType(ir.FloatType(), 8))
        pair = [builder.extract_element(wide, _I32(i)) for i in range(2)]
        return context.make_tuple(builder, sig.return_type, pair)

    return types.UniTuple(types.float32, 2)(types.int64), codegen


@intrinsic
def stack(typingctx, n_bytes):
    """Address of n_bytes (a literal) of uninitialised, 64-byte aligned memory of this call's
    own.
    """
    if not isinstance(n_bytes, types.IntegerLiteral):
        return None

    def codegen(_context, builder, _sig, _args):
        with builder.goto_entry_block():
            place = builder.alloca(ir.ArrayType(ir.IntType(8), n_bytes.literal_value))
            place.align = 64
        return builder.ptrtoint(place, ir.IntType(64))

    return types.int64(n_bytes), codegen


# --- arithmetic on vectors ----------------------------------------------------------------------


@intrinsic
def splat(typingctx, kind, value):
    """A vector of one value in all lanes."""
    elem = _ELEMENTS[kind.of.elem]

    def codegen(_context, builder, sig, args):
        x = args[1]
        if x.type != elem:
            if isinstance(elem, ir.IntType):
                narrower = elem.width < x.type.width
                x = builder.trunc(x, elem) if narrower else builder.sext(x, elem)
            else:
                x = builder.fptrunc(x, elem)
        return _splat(builder, x, kind.of.ir)

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
            return _each(builder, a, one, *args)

        return a(a, b), codegen

    return op


add = _binary("add", "fadd")
sub = _binary("sub", "fsub")
mul = _binary("mul", "fmul")
div = _binary("sdiv", "fdiv")
band = _binary("and_", "and_")
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
            return _each(builder, v, one, args[0])

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
        return builder.add(args[0], _splat(builder, n, args[0].type))

    return v(v, n), codegen


@intrinsic
def fma(typingctx, a, b, c):
    """a * b + c, rounded once."""

    def codegen(_context, builder, _sig, args):
        return _fma(builder, a, *args)

    return a(a, a, a), codegen


def _unary_float(llvm_name):
    @intrinsic
    def op(typingctx, v):
        def codegen(_context, builder, _sig, args):
            return _call(builder, f"llvm.{llvm_name}.{_name(v)}", v.ir, list(args))

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
    """The same numbers as another element type: integers widened or cut, i32 to f32 exact, f32 to
    i32 toward zero.
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
def concat(typingctx, a, b):
    """a's lanes, then b's."""

    def codegen(_context, builder, _sig, args):
        return _concat(builder, *args)

    return Vec(a.elem, 2 * a.n)(a, a), codegen


@intrinsic
def shuffle(typingctx, v, lanes):
    """The chosen lanes of v (a Lanes constant), in order."""

    def codegen(_context, builder, _sig, args):
        return _shuffle(builder, args[0], args[0], lanes.lanes)

    return Vec(v.elem, len(lanes.lanes))(v, lanes), codegen


@intrinsic
def merge(typingctx, a, b, lanes):
    """The chosen lanes of a and b, b's lanes counted on from a's."""

    def codegen(_context, builder, _sig, args):
        return _shuffle(builder, args[0], args[1], lanes.lanes)

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
        return _shuffle(builder, args[0], args[0], [lane.literal_value] * v.n)

    return v(v, lane), codegen


@intrinsic
def lower(typingctx, v):
    """The first half of the lanes."""

    def codegen(_context, builder, _sig, args):
        return _halves(builder, args[0])[0]

    return Vec(v.elem, v.n // 2)(v), codegen


@intrinsic
def upper(typingctx, v):
    """The second half of the lanes."""

    def codegen(_context, builder, _sig, args):
        return _halves(builder, args[0])[1]

    return Vec(v.elem, v.n // 2)(v), codegen


@intrinsic
def twice_lower(typingctx, v):
    """Each lane of the first half twice: 0 0 1 1 2 2 ..."""

    def codegen(_context, builder, _sig, args):
        return _shuffle(builder, args[0], args[0], [i // 2 for i in range(v.n)])

    return v(v), codegen


@intrinsic
def twice_upper(typingctx, v):
    """Each lane of the second half twice."""

    def codegen(_context, builder, _sig, args):
        return _shuffle(builder, args[0], args[0], [v.n // 2 + i // 2 for i in range(v.n)])

    return v(v), codegen


@intrinsic
def lane_index(typingctx, kind):
    """0, 1, 2, ... as the integer vector type `kind`."""

    def codegen(_context, _builder, _sig, _args):
        return ir.Constant(kind.of.ir, list(range(kind.of.n)))

    return kind.of(kind), codegen


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
        x = args[0]
        while x.type.count > 1:
            a, b = _halves(builder, x)
            x = builder.fadd(a, b) if v.elem == "f32" else builder.add(a, b)
        return builder.extract_element(x, _I32(0))

    return (types.float32 if v.elem == "f32" else types.int32)(v), codegen


@intrinsic
def max_lanes(typingctx, v):
    """The largest lane of an f32 vector."""

    def codegen(_context, builder, _sig, args):
        x = args[0]
        while x.type.count > 1:
            a, b = _halves(builder, x)
            x = builder.select(builder.fcmp_ordered(">", a, b), a, b)
        return builder.extract_element(x, _I32(0))

    return types.float32(v), codegen


@intrinsic
def dot(typingctx, acc, w, x):
    """acc + products of u8 w (at most 128) and i8 x (not -128), four to a lane; acc: i32xN, w:
    u8x4N, x: i8x4N.
    """

    def codegen(_context, builder, _sig, args):
        return _dot_u8_i8(builder, *args)

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
            _vectors(builder, w, args[0]),
            _rows(builder, args[1], ir.IntType(64)(4 * L), w.n),
            strict=True,
        ):
            counts.append(_products_i16(builder, v, _load(builder, at, x_ir)))
        return _tile(builder, COUNTS, counts)

    return COUNTS(w, types.int64), codegen


@intrinsic
def total(typingctx, tile):
    """The sum of a tile's vectors."""

    def codegen(_context, builder, _sig, args):
        first, *rest = _vectors(builder, tile, args[0])
        for v in rest:
            first = builder.fadd(first, v) if tile.vec.elem == "f32" else builder.add(first, v)
        return first

    return tile.vec(tile), codegen


@intrinsic
def dot_signed(typingctx, acc, w, x):
    """Like dot, for signed w (any i8)."""

    def codegen(_context, builder, _sig, args):
        return _dot_i8_i8(builder, *args)

    return acc(acc, w, x), codegen


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


# --- tiles --------------------------------------------------------------------------------------
#
# An outer verb combines the vectors v of one row ("columns": each lane a weight row or a position)
# with scalars of memory, one for each row of the tile, at address, address + stride, ...
#
#              v[0]   v[1]                acc[r, j] += v[j] * scalar[r]
#   scalar[0]  acc0   acc1
#   scalar[1]  acc2   acc3


def _rows(builder, address, stride, n):
    """Addresses of n rows, `stride` bytes apart."""
    addresses = [address]
    for _ in range(n - 1):
        addresses.append(builder.add(addresses[-1], stride))
    return addresses


def _places(builder, address, stride, tile, element_bytes=None):
    """Address of each vector of a tile whose rows lie `stride` bytes apart."""
    size = tile.vec.n * (element_bytes or _ELEMENT_BYTES[tile.vec.elem])
    for row in _rows(builder, address, stride, tile.n // tile.columns):
        for j in range(tile.columns):
            yield builder.add(row, ir.IntType(64)(j * size))


@intrinsic
def load_tile(typingctx, kind, address, stride):
    """The tile at address, its rows `stride` bytes apart."""

    def codegen(_context, builder, _sig, args):
        places = _places(builder, args[1], args[2], kind.of)
        return _tile(builder, kind.of, [_load(builder, at, kind.of.vec.ir) for at in places])

    return kind.of(kind, types.int64, types.int64), codegen


@intrinsic
def load_tile_f16(typingctx, kind, address, stride):
    """An f32 tile from halves, its rows `stride` bytes apart."""

    def codegen(_context, builder, _sig, args):
        vec = kind.of.vec
        half = ir.VectorType(ir.HalfType(), vec.n)
        places = _places(builder, args[1], args[2], kind.of, element_bytes=2)
        return _tile(
            builder,
            kind.of,
            [_widen_f16(builder, _load(builder, at, half), vec.ir) for at in places],
        )

    return kind.of(kind, types.int64, types.int64), codegen


@intrinsic
def store_tile(typingctx, address, stride, tile):
    """Write a tile, its rows `stride` bytes apart."""

    def codegen(context, builder, _sig, args):
        places = _places(builder, args[0], args[1], tile)
        for at, v in zip(places, _vectors(builder, tile, args[2]), strict=True):
            builder.store(v, _pointer(builder, at, v.type)).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, tile), codegen


@intrinsic
def outer_fma(typingctx, acc, v, address, stride):
    """acc[r, j] += v[j] * f32 at (address + r * stride). v: a vector or a tile of J vectors."""
    j_n = 1 if isinstance(v, Vec) else v.n

    def codegen(_context, builder, _sig, args):
        old, columns = _vectors(builder, acc, args[0]), _vectors(builder, v, args[1])
        new = []
        for r, at in enumerate(_rows(builder, args[2], args[3], acc.n // j_n)):
            x = _splat(builder, _load(builder, at, ir.FloatType()), acc.vec.ir)
            new += [_fma(builder, acc.vec, columns[j], x, old[r * j_n + j]) for j in range(j_n)]
        return _tile(builder, acc, new)

    return acc(acc, v, types.int64, types.int64), codegen


@intrinsic
def outer_dot(typingctx, acc, w, address, stride):
    """acc[r, j] += dot of w[j] with the same four i8 at (address + r * stride) in every lane.

    acc: i32 tile, or an i16 tile where the profile sums in 16 bits (`PART`); w: u8 vector or tile
         of J.
    """
    j_n = 1 if isinstance(w, Vec) else w.n

    def codegen(_context, builder, _sig, args):
        old, columns = _vectors(builder, acc, args[0]), _vectors(builder, w, args[1])
        i32s = ir.VectorType(_I32, L)
        new = []
        for r, at in enumerate(_rows(builder, args[2], args[3], acc.n // j_n)):
            x = builder.bitcast(_splat(builder, _load(builder, at, _I32), i32s), columns[0].type)
            for j in range(j_n):
                part = old[r * j_n + j]
                if acc.vec.elem == "i16":
                    new.append(builder.add(part, _maddubs(builder, columns[j], x)))
                else:
                    new.append(_dot_u8_i8(builder, part, columns[j], x))
        return _tile(builder, acc, new)

    return acc(acc, w, types.int64, types.int64), codegen


@intrinsic
def outer_dot_signed(typingctx, acc, w, address, stride):
    """Like outer_dot for i8 weights; acc: i32 tile."""

    def codegen(_context, builder, _sig, args):
        old, columns = _vectors(builder, acc, args[0]), _vectors(builder, w, args[1])
        i32s = ir.VectorType(_I32, L)
        new = []
        for r, at in enumerate(_rows(builder, args[2], args[3], acc.n // len(columns))):
            x = builder.bitcast(_splat(builder, _load(builder, at, _I32), i32s), columns[0].type)
            for j, column in enumerate(columns):
                new.append(_dot_i8_i8(builder, old[r * len(columns) + j], column, x))
        return _tile(builder, acc, new)

    return acc(acc, w, types.int64, types.int64), codegen


@intrinsic
def widen_part(typingctx, total, part):
    """total + part, the part's i16 pairs summed; an i32 part is simply added."""

    def codegen(_context, builder, _sig, args):
        parts = _vectors(builder, part, args[1])
        if part.vec.elem == "i16":
            parts = [_sum_pairs(builder, p) for p in parts]
        totals = _vectors(builder, total, args[0])
        return _tile(builder, total, [builder.add(*p) for p in zip(totals, parts, strict=True)])

    return total(total, part), codegen


@intrinsic
def outer_scale(typingctx, acc, counts, v, address, stride):
    """acc[r, j] += f32(counts[r, j]) * v[j] * f32 at (address + r * stride): integer sums to
    weighted floats.
    """
    j_n = 1 if isinstance(v, Vec) else v.n

    def codegen(_context, builder, _sig, args):
        old, sums = _vectors(builder, acc, args[0]), _vectors(builder, counts, args[1])
        columns = _vectors(builder, v, args[2])
        new = []
        for r, at in enumerate(_rows(builder, args[3], args[4], acc.n // j_n)):
            x = _splat(builder, _load(builder, at, ir.FloatType()), acc.vec.ir)
            for j in range(j_n):
                i = r * j_n + j
                scale = builder.fmul(columns[j], x)
                new.append(
                    _fma(builder, acc.vec, builder.sitofp(sums[i], acc.vec.ir), scale, old[i])
                )
        return _tile(builder, acc, new)

    return acc(acc, counts, v, types.int64, types.int64), codegen


@intrinsic
def scale_rows(typingctx, tile, address):
    """Row r of the tile times the f32 number r at address."""

    def codegen(_context, builder, _sig, args):
        old = _vectors(builder, tile, args[0])
        new = []
        for r, at in enumerate(_rows(builder, args[1], ir.IntType(64)(4), tile.n // tile.columns)):
            x = _splat(builder, _load(builder, at, ir.FloatType()), tile.vec.ir)
            new += [builder.fmul(v, x) for v in old[r * tile.columns : (r + 1) * tile.columns]]
        return _tile(builder, tile, new)

    return tile(tile, types.int64), codegen


@intrinsic
def interleave(typingctx, rows, out):
    """Transpose 32-bit values: L rows of eight at `rows`, 32 bytes each, to eight vectors of L
    lanes at `out`.
    """

    def codegen(context, builder, _sig, args):
        i64 = ir.IntType(64)
        row = ir.VectorType(_I32, 8)
        at = _rows(builder, args[0], i64(32), L)
        vectors = [_load(builder, a, row) for a in at]
        for first in range(0, L, 8):
            columns = _transpose(builder, vectors[first : first + 8])
            for k, column in enumerate(columns):
                place = builder.add(args[1], i64(4 * (k * L + first)))
                builder.store(column, _pointer(builder, place, column.type)).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _transpose(builder, rows):
    """Rows of eight values (4 or 8 of them) to eight columns, by merging neighbours: 1, then 2,
    then 4 wide.
    """
    # After a step of width w, vectors[i] holds rows i & ~(2w - 1) ... mixed in runs of 2w; see any
    # FFT.
    vectors, n = list(rows), len(rows)
    if n == 4:
        pad = ir.Constant(rows[0].type, ir.Undefined)
        vectors += [pad] * 4
    for width in (4, 2, 1):
        merged = list(vectors)
        for i in range(8):
            if i & width:
                continue
            a, b = vectors[i], vectors[i | width]
            low = [k if not k & width else (k ^ width) + 8 for k in range(8)]
            high = [(k | width) if not k & width else k + 8 for k in range(8)]
            merged[i], merged[i | width] = (
                _shuffle(builder, a, b, low),
                _shuffle(builder, a, b, high),
            )
        vectors = merged
    if n == 4:
        vectors = [_shuffle(builder, v, v, range(4)) for v in vectors]
    return vectors
