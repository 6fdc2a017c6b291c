"""Verbs that gather what lies in eight blocks of one type which follow one another in memory.

A CPU that picks words out of two vectors in one instruction reads blocks of up to 24 bytes whole,
in three vectors. Any other one reads each block's field by itself. Nothing else is read.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.jit import PROFILE
from engine.kernels.simd import lowering as ll
from engine.kernels.simd.vectors import ELEMENT_BYTES, ELEMENTS, I32, Vec, u8x64

I8, I64 = ELEMENTS["u8"], ir.IntType(64)
_PICKED = 24  # bytes of a block, at most

# The order that two vectors of 32 bytes have when each half of one takes turns with one of the
# other: that of fine16's columns (kernels/activation.py).
IN_TURN = (0, 4, 1, 5, 2, 6, 3, 7)
# The order of eight words where each half of IN_TURN finds its own within the same 16 bytes.
_NEAR = (0, 4, 2, 6, 1, 5, 3, 7)


@intrinsic
def load_field(typingctx, kind, blocks, field):
    """A vector of eight equal pieces, the field of each block, in order."""
    size = kind.of.n * ELEMENT_BYTES[kind.of.elem] // 8

    def codegen(_context, builder, _sig, args):
        return builder.bitcast(_gather(builder, args[1], field, 0, size, range(8)), kind.of.ir)

    return kind.of(kind, types.int64, field), codegen


@intrinsic
def load_sixteens(typingctx, blocks, field):
    """A field of sixteen bytes: (its first eight of all blocks, its last eight), IN_TURN."""

    def codegen(context, builder, sig, args):
        if _is_picked(field, 8):
            halves = [_gather(builder, args[0], field, skip, 8, IN_TURN) for skip in (0, 8)]
        else:
            sixteen = ir.VectorType(I8, 16)
            v = [ll.load(builder, at, sixteen) for at in _places(builder, args[0], field, 0)]
            while len(v) > 2:
                v = [ll.concat(builder, a, b) for a, b in zip(v[::2], v[1::2], strict=True)]
            starts = [[16 * block + skip for block in IN_TURN] for skip in (0, 8)]
            halves = [ll.shuffle(builder, *v, _runs(at, 8)) for at in starts]
        halves = [builder.bitcast(half, u8x64.ir) for half in halves]
        return context.make_tuple(builder, sig.return_type, halves)

    return types.UniTuple(u8x64, 2)(types.int64, field), codegen


@intrinsic
def add_fifth_bits(typingctx, w0, w1, w2, w3, blocks, field):
    """Those (w0, ...), all u8x64 below 16, with 16 added where a bit of the field's 32 is set.

    The k-th vector's bits are in the k-th byte of each block's field; blocks are IN_TURN.
    """

    def codegen(context, builder, sig, args):
        # In each 16 bytes, those of the blocks that lie there in w.
        order = [block for block in IN_TURN for _ in (0, 1)] if _is_picked(field, 4) else _NEAR
        words = _gather(builder, args[4], field, 0, 4, order)
        bits = builder.bitcast(words, ir.VectorType(I8, 4 * len(order)))
        bit = ir.Constant(w0.ir, [1 << i % 8 for i in range(64)])
        sixteens, zeros = ir.Constant(w0.ir, [16] * 64), ir.Constant(w0.ir, None)
        result = []
        for k, w in enumerate(args[:4]):
            bytes_k = [4 * order.index(block) + k for block in IN_TURN for _ in range(8)]
            own = builder.and_(ll.shuffle(builder, bits, bits, bytes_k), bit)
            is_set = ll.any_bit(builder, own, bit)
            if PROFILE.lanes == 16:  # one addition of masked bytes; there is no such `or`
                w = ll.forgotten(builder, w)
                result.append(builder.select(is_set, builder.add(w, sixteens), w))
            else:
                result.append(builder.or_(w, builder.select(is_set, sixteens, zeros)))
        return context.make_tuple(builder, sig.return_type, result)

    return types.UniTuple(w0, 4)(w0, w0, w0, w0, types.int64, field), codegen


def _is_picked(field, size):
    """Whether whole blocks are read for `size` bytes of a field. They are picked in words of two
    bytes, so that fields must begin and end at even ones.
    """
    even = field.step % 2 == field.offset % 2 == size % 2 == 0
    return PROFILE.lanes == 16 and field.step <= _PICKED and even


def _places(builder, blocks, field, skip):
    """Addresses behind the first `skip` bytes of all eight fields."""
    first = builder.add(blocks, I64(field.offset + skip))
    return ll.rows(builder, first, I64(field.step), 8)


def _gather(builder, blocks, field, skip, size, order):
    """`size` bytes behind the first `skip` bytes of the field, of blocks in any order."""
    if _is_picked(field, size):
        starts = [field.step * block + field.offset + skip for block in order]
        return _pick_words(builder, blocks, 8 * field.step, _runs(starts, size)[::2])
    piece = ir.IntType(8 * size)
    places = _places(builder, blocks, field, skip)
    value = ir.Constant(ir.VectorType(piece, len(order)), ir.Undefined)
    for i, block in enumerate(order):
        value = builder.insert_element(value, ll.load(builder, places[block], piece), I32(i))
    return value


def _runs(starts, size):
    """Each start, and the numbers that follow it: `size` of them together."""
    return [start + i for start in starts for i in range(size)]


def _pick_words(builder, address, n_bytes, wanted):
    """Up to 32 of the words in n_bytes of memory, by the bytes where they begin.

    The memory is read in vectors, the last of which ends where it does; each but the first is
    merged with what was picked before.
    """
    words = Vec("u16", 32).ir
    starts = [min(start, n_bytes - 64) for start in range(0, n_bytes, 64)]
    source = [min(at // 64, len(starts) - 1) for at in wanted]
    lane = [(at - starts[s]) // 2 for at, s in zip(wanted, source, strict=True)]
    picked = None
    for s, start in enumerate(starts):
        vector = ll.load(builder, builder.add(address, I64(start)), words)
        if picked is None:
            picked, lanes_before = vector, lane  # of this vector, as nothing was picked
            continue
        lanes = [32 + lane[i] if source[i] == s else lanes_before[i] for i in range(len(wanted))]
        picked = ll.shuffle(builder, picked, vector, lanes + [0] * (32 - len(wanted)))
        lanes_before = range(32)
    return ll.shuffle(builder, picked, picked, range(len(wanted)))
