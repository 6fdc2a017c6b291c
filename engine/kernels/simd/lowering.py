"""How the verbs become LLVM: functions of a builder and LLVM values, for this folder's other files.

Here the CPU profile decides: VNNI, multiply-add of bytes (AVX2, SSSE3), Arm's dot product, or NEON
and plain LLVM vectors.
"""

from __future__ import annotations

import functools

from llvmlite import ir
from numba.core import cgutils

from engine.jit import PROFILE
from engine.kernels.simd.vectors import ELEMENT_BYTES, I32, L, Vec

# Whether `dot_u8_i8` takes any u8. Elsewhere larger ones than 127 are multiplied as signed bytes.
ANY_U8 = PROFILE.dot in ("vnni", "plain")


def pointer(builder, address, to):
    return builder.inttoptr(address, to.as_pointer())


def load(builder, address, of, align=1):
    value = builder.load(pointer(builder, address, of))
    value.align = align
    return value


def splat(builder, scalar, vec_ir):
    v = builder.insert_element(ir.Constant(vec_ir, ir.Undefined), scalar, I32(0))
    mask = ir.Constant(ir.VectorType(I32, vec_ir.count), [0] * vec_ir.count)
    return builder.shuffle_vector(v, ir.Constant(vec_ir, ir.Undefined), mask)


def shuffle(builder, a, b, lanes):
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))


def call(builder, name, result, args):
    signature = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), args)


def suffix(vec: Vec) -> str:
    return f"v{vec.n}{vec.elem.replace('u', 'i')}"


def fma(builder, vec, a, b, c):
    # On a CPU without the instruction, `fma` would be a library call for each lane; `fmuladd` is
    # not, but may round twice.
    name = "fma" if PROFILE.fma else "fmuladd"
    return call(builder, f"llvm.{name}.{suffix(vec)}", vec.ir, [a, b, c])


def halves(builder, v):
    n = v.type.count
    return (
        shuffle(builder, v, v, range(n // 2)),
        shuffle(builder, v, v, range(n // 2, n)),
    )


def concat(builder, a, b):
    return shuffle(builder, a, b, range(2 * a.type.count))


def tile(builder, kind, parts):
    """A tile of vectors."""
    value = ir.Constant(kind.ir, ir.Undefined)
    for i, v in enumerate(parts):
        value = builder.insert_value(value, v, i)
    return value


def vectors(builder, kind, value):
    """The vectors of a tile, or of a lone vector."""
    if isinstance(kind, Vec):
        return [value]
    return [builder.extract_value(value, i) for i in range(kind.n)]


def each(builder, kind, function, *values):
    """function(builder, ...) of vectors, or of the vectors of tiles one after the other."""
    if isinstance(kind, Vec):
        return function(builder, *values)
    columns = zip(*(vectors(builder, kind, v) for v in values), strict=True)
    return tile(builder, kind, [function(builder, *column) for column in columns])


def splat_bytes(builder, address, vec_ir):
    """The four bytes at address, again and again."""
    words = ir.VectorType(I32, vec_ir.count // 4)
    return builder.bitcast(splat(builder, load(builder, address, I32), words), vec_ir)


def held(builder, values):
    """The vectors as they are, but all in registers at this point of the program.

    LLVM would otherwise bring a long run of products in an order of its own, one sum after the
    other, for which it has to keep far more in registers than there are.
    """
    if PROFILE.machine != "x86_64":
        return values
    kinds = [v.type for v in values]
    places = ["=v"] * len(kinds) + [str(i) for i in range(len(kinds))]
    signature = ir.FunctionType(ir.LiteralStructType(kinds), kinds)
    same = builder.call(ir.InlineAsm(signature, "", ",".join(places)), values)
    return [builder.extract_value(same, i) for i in range(len(kinds))]


def forgotten(builder, v):
    """The vector as it is, of which LLVM knows nothing any more: not that bits are 0, by which it
    makes `or` of additions.
    """
    return builder.asm(ir.FunctionType(v.type, [v.type]), "", "=v,0", [v], False)


def dot_u8_i8(builder, acc, w, x):
    """acc[i] += sum over j < 4 of w[4i + j] * x[4i + j].

    acc: i32, w: u8 (at most 127 in value, unless ANY_U8), x: i8 (not -128).
    """
    n = acc.type.count
    if PROFILE.dot == "vnni" and n in (4, 8, 16):
        if n == 16 and PROFILE.lanes < 16:
            return in_halves(builder, dot_u8_i8, acc, w, x)
        return call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * n}", acc.type, [acc, w, x])
    if PROFILE.dot == "maddubs":
        pairs = maddubs(builder, w, x)
        return builder.add(acc, sum_pairs(builder, pairs))
    if PROFILE.dot == "sdot":
        return sdot(builder, acc, w, x)
    return dot_plain(builder, acc, builder.zext, w, x)


def sum_of_products(builder, elem, count, weights, inputs):
    """count and the sum of products of several vectors' bytes, four neighbours added: i32.

    elem: the weights' element type. That of bytes tells how many vectors' pairs of products fit
    in 16 bits together.
    """
    if elem == "i8" or PROFILE.dot != "maddubs":
        for w, x in zip(weights, inputs, strict=True):
            count = (dot_i8_i8 if elem == "i8" else dot_u8_i8)(builder, count, w, x)
        return count
    n_in_16_bits = {"u5": 4, "u6": 2}.get(elem, 1)
    pairs = [maddubs(builder, w, x) for w, x in zip(weights, inputs, strict=True)]
    for first in range(0, len(pairs), n_in_16_bits):
        total = functools.reduce(builder.add, pairs[first : first + n_in_16_bits])
        count = builder.add(count, sum_pairs(builder, total))
    return count


def sdot(builder, acc, w, x):
    """Arm's dot product of signed bytes: bytes of at most 127 are the same signed and unsigned."""
    if acc.type.count > 4:
        return in_halves(builder, sdot, acc, w, x)
    return call(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", acc.type, [acc, w, x])


def dot_plain(builder, acc, extend, w, x):
    """Products of bytes fit in 16 bits; pairs of them do not."""
    n = acc.type.count
    if PROFILE.machine == "aarch64" and n > 4:
        return in_halves(
            builder, lambda b, *parts: dot_plain(b, parts[0], extend, *parts[1:]), acc, w, x
        )
    i16s = ir.VectorType(ir.IntType(16), 4 * n)
    product = builder.mul(extend(w, i16s), builder.sext(x, i16s))
    if PROFILE.machine == "aarch64":
        pairs = [
            call(builder, "llvm.aarch64.neon.saddlp.v4i32.v8i16", acc.type, [half])
            for half in halves(builder, product)
        ]
        return builder.add(acc, call(builder, "llvm.aarch64.neon.addp.v4i32", acc.type, pairs))
    wide = builder.sext(product, ir.VectorType(I32, 4 * n))
    for j in range(4):
        acc = builder.add(acc, shuffle(builder, wide, wide, range(j, 4 * n, 4)))
    return acc


def in_halves(builder, op, *args):
    """op(builder, ...) of the lower halves of vectors, then of the upper ones, joined."""
    parts = [halves(builder, a) for a in args]
    return concat(builder, op(builder, *[p[0] for p in parts]), op(builder, *[p[1] for p in parts]))


def maddubs(builder, w, x):
    """Products of u8 and i8 summed in pairs, in i16: they saturate unless w is at most 128."""
    bits = 256 if L >= 8 else 128
    if w.type.count * 8 > bits:
        return in_halves(builder, maddubs, w, x)
    name = "llvm.x86.avx2.pmadd.ub.sw" if w.type.count == 32 else "llvm.x86.ssse3.pmadd.ub.sw.128"
    return call(builder, name, ir.VectorType(ir.IntType(16), w.type.count // 2), [w, x])


def sum_pairs(builder, v):
    """i16 -> i32, neighbours added."""
    bits = 256 if L >= 8 else 128
    if v.type.count * 16 > bits:
        return in_halves(builder, sum_pairs, v)
    ones = ir.Constant(v.type, [1] * v.type.count)
    name = "llvm.x86.avx2.pmadd.wd" if v.type.count == 16 else "llvm.x86.sse2.pmadd.wd"
    return call(builder, name, ir.VectorType(I32, v.type.count // 2), [v, ones])


def sign_fix(builder, w, x):
    """(|w|, x with w's sign): the products stay the same, and |w| is a u8 of at most 128."""
    if PROFILE.dot == "maddubs":
        return psign(builder, w, w), psign(builder, x, w)
    zero = ir.Constant(w.type, [0] * w.type.count)
    negative = builder.icmp_signed("<", w, zero)
    return (
        builder.select(negative, builder.sub(zero, w), w),
        builder.select(negative, builder.sub(zero, x), x),
    )


def psign(builder, a, b):
    """a with its sign turned where b is negative, 0 where b is 0."""
    bits = 256 if L >= 8 else 128
    if a.type.count * 8 > bits:
        return in_halves(builder, psign, a, b)
    name = "llvm.x86.avx2.psign.b" if a.type.count == 32 else "llvm.x86.ssse3.psign.b.128"
    return call(builder, name, a.type, [a, b])


def dot_i8_i8(builder, acc, w, x):
    """Like dot_u8_i8 for signed w."""
    if PROFILE.dot == "sdot":
        return sdot(builder, acc, w, x)
    if PROFILE.dot == "plain":
        return dot_plain(builder, acc, builder.sext, w, x)
    return dot_u8_i8(builder, acc, *sign_fix(builder, w, x))


def widen_f16(builder, h, vec_ir):
    if PROFILE.f16c:
        return builder.fpext(h, vec_ir)
    # Without the instruction: shift the fields into place; multiplying by 2^112 mends the exponent,
    # denormals included.
    i32 = ir.VectorType(I32, vec_ir.count)

    def const(value):
        return ir.Constant(i32, [value] * vec_ir.count)

    bits = builder.zext(builder.bitcast(h, ir.VectorType(ir.IntType(16), vec_ir.count)), i32)
    sign = builder.shl(builder.and_(bits, const(0x8000)), const(16))
    rest = builder.bitcast(builder.shl(builder.and_(bits, const(0x7FFF)), const(13)), vec_ir)
    scaled = builder.fmul(rest, ir.Constant(vec_ir, [2.0**112] * vec_ir.count))
    return builder.bitcast(builder.or_(builder.bitcast(scaled, i32), sign), vec_ir)


def choose_by_bits(builder, vec, address, yes, no):
    """A vector that holds `yes` in the lanes whose bit is set, `no` in the others.

    Lane 0 takes the first bit at address, lane 1 the next, and so on. A CPU with mask registers
    takes the bits as they are. Another one gives each lane the byte or word that holds its bit, and
    compares.
    """
    n, elem = vec.n, vec.ir.element
    if PROFILE.lanes == 16:
        bits = load(builder, address, ir.IntType(n))
        is_set = builder.bitcast(bits, ir.VectorType(ir.IntType(1), n))
    else:
        width = elem.width
        words = load(builder, address, ir.VectorType(elem, n // width))
        own = shuffle(builder, words, words, [i // width for i in range(n)])
        bit = ir.Constant(vec.ir, [1 << i % width for i in range(n)])
        is_set = builder.icmp_unsigned("==", builder.and_(own, bit), bit)
    yes, no = (ir.Constant(vec.ir, [value] * n) for value in (yes, no))
    return builder.select(is_set, yes, no)


def any_bit(builder, own, bit):
    """Where own, which is the constant `bit` or 0, is not 0."""
    if PROFILE.lanes == 16:  # one instruction, which masks as well
        return builder.icmp_unsigned("!=", own, ir.Constant(own.type, None))
    return builder.icmp_unsigned("==", own, bit)


def look_up(builder, codes, table):
    """table[code] for each of the codes, u8 below 16; table: sixteen bytes."""
    n = codes.type.count
    if PROFILE.dot in ("maddubs", "vnni"):
        if n > 4 * L:
            return in_halves(builder, lambda b, half: look_up(b, half, table), codes)
        name = {
            16: "llvm.x86.ssse3.pshuf.b.128",
            32: "llvm.x86.avx2.pshuf.b",
            64: "llvm.x86.avx512.pshuf.b.512",
        }[n]
        # It looks up within 16 bytes: one table in each.
        places = ir.Constant(codes.type, list(table) * (n // 16))
        return call(builder, name, codes.type, [places, codes])
    if PROFILE.machine == "aarch64":
        if n > 16:
            return in_halves(builder, lambda b, half: look_up(b, half, table), codes)
        places = ir.Constant(codes.type, table)
        return call(builder, "llvm.aarch64.neon.tbl1.v16i8", codes.type, [places, codes])
    # One bit of the code at a time halves the candidates.
    candidates = [ir.Constant(codes.type, [value] * n) for value in table]
    for bit in (8, 4, 2, 1):
        here = ir.Constant(codes.type, [bit] * n)
        is_set = builder.icmp_unsigned("==", builder.and_(codes, here), here)
        candidates = [
            builder.select(is_set, high, low)
            for low, high in zip(candidates[:bit], candidates[bit:], strict=True)
        ]
    return candidates[0]


def narrow_f16(builder, f, n):
    """f32 -> f16 bits (i16), to nearest even; values beyond f16 become infinity."""
    half = ir.VectorType(ir.HalfType(), n)
    i16 = ir.VectorType(ir.IntType(16), n)
    if PROFILE.f16c:
        return builder.bitcast(builder.fptrunc(f, half), i16)
    i32 = ir.VectorType(I32, n)

    def const(value):
        return ir.Constant(i32, [value] * n)

    bits = builder.bitcast(f, i32)
    sign = builder.lshr(builder.and_(bits, const(0x80000000)), const(16))
    magnitude = builder.and_(bits, const(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, const(13)), const(1))
    rounded = builder.add(magnitude, builder.add(odd, const(0xFFF)))
    normal = builder.sub(builder.lshr(rounded, const(13)), const(112 << 10))
    # Denormal halves: adding 0.5 makes the float unit shift and round the mantissa into low bits.
    as_float = builder.fadd(builder.bitcast(magnitude, f.type), ir.Constant(f.type, [0.5] * n))
    tiny = builder.sub(builder.bitcast(as_float, i32), const(0x3F000000))
    result = builder.select(builder.icmp_unsigned("<", magnitude, const(0x38800000)), tiny, normal)
    result = builder.select(
        builder.icmp_unsigned(">=", magnitude, const(0x477FF000)), const(0x7C00), result
    )
    return builder.trunc(builder.or_(result, sign), i16)


def sum_lanes(builder, v):
    """The sum of the lanes of floats or integers, halves first."""
    while v.type.count > 1:
        a, b = halves(builder, v)
        v = builder.fadd(a, b) if v.type.element == ir.FloatType() else builder.add(a, b)
    return builder.extract_element(v, I32(0))


def rows(builder, address, stride, n):
    """Addresses of n rows, `stride` bytes apart."""
    addresses = [address]
    for _ in range(n - 1):
        addresses.append(builder.add(addresses[-1], stride))
    return addresses


def places(builder, address, stride, tile, element_bytes=None):
    """Address of each vector of a tile whose rows lie `stride` bytes apart."""
    size = tile.vec.n * (element_bytes or ELEMENT_BYTES[tile.vec.elem])
    for row in rows(builder, address, stride, tile.n // tile.columns):
        for j in range(tile.columns):
            yield builder.add(row, ir.IntType(64)(j * size))
