"""simd/eights.py: fields of eight blocks, in blocks of every size and at odd places too, against
NumPy. The blocks end where memory does.

RUSHLIGHT_CPU_PROFILE chooses the CPU whose way of gathering is tested.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from engine.jit import Native
from engine.kernels.op import part
from engine.kernels.simd import (
    Field,
    add_fifth_bits,
    load_field,
    load_sixteens,
    store,
    u8x8,
    u16x8,
    u32x8,
)
from tests.native_call import at_the_end, call

# Those of MXFP4, Q4_0, Q4_1, Q5_0 and Q5_1, another one, and that of Q8_0.
STEPS = (17, 18, 20, 22, 24, 26, 34)
IN_TURN = [0, 4, 1, 5, 2, 6, 3, 7]


def blocks_of(step: int) -> npt.NDArray[np.uint8]:
    """Eight blocks of `step` bytes."""
    return at_the_end(np.random.default_rng(step).integers(0, 256, (8, step), np.uint8))


def loads_of_fields(field: Field) -> Native:
    @part(2)
    def loads(blocks, out):
        store(out, load_field(u8x8, blocks, field))
        store(out + 8, load_field(u16x8, blocks, field))
        store(out + 24, load_field(u32x8, blocks, field))

    return loads


def loads_of_sixteens(field: Field) -> Native:
    @part(2)
    def loads(blocks, out):
        first, last = load_sixteens(blocks, field)
        store(out, first)
        store(out + 64, last)

    return loads


def adds_of_fifth_bits(bits: Field, numbers: Field) -> Native:
    @part(2)
    def adds(blocks, out):
        a, b = load_sixteens(blocks, numbers)
        w0, w1, w2, w3 = add_fifth_bits(a, b, b, a, blocks, bits)
        store(out, w0)
        store(out + 64, w1)
        store(out + 128, w2)
        store(out + 192, w3)

    return adds


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("place", ["first", "odd", "last"])
def test_load_field(step: int, place: str) -> None:
    offset = {"first": 0, "odd": 5, "last": step - 4}[place]
    blocks, out = blocks_of(step), np.zeros(56, np.uint8)
    call(loads_of_fields(Field(offset, step)), blocks, out)
    fields = [blocks[:, offset : offset + size].ravel() for size in (1, 2, 4)]
    np.testing.assert_array_equal(out, np.concatenate(fields))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("from_end", [0, 1])
def test_load_sixteens(step: int, from_end: int) -> None:
    offset = step - 16 - from_end
    blocks, out = blocks_of(step), np.zeros(128, np.uint8)
    call(loads_of_sixteens(Field(offset, step)), blocks, out)
    halves = [blocks[IN_TURN, at : at + 8].ravel() for at in (offset, offset + 8)]
    np.testing.assert_array_equal(out, np.concatenate(halves))


@pytest.mark.parametrize("step", [21, 22, 24, 26])
def test_add_fifth_bits(step: int) -> None:
    bits_at, numbers_at = step - 20, step - 16
    blocks, out = blocks_of(step), np.zeros((4, 8, 8), np.uint8)
    blocks[:, numbers_at:] &= 15
    call(adds_of_fifth_bits(Field(bits_at, step), Field(numbers_at, step)), blocks, out)
    a, b = blocks[IN_TURN, numbers_at : numbers_at + 8], blocks[IN_TURN, numbers_at + 8 :]
    for k, numbers in enumerate((a, b, b, a)):
        bits = np.unpackbits(blocks[IN_TURN, bits_at + k, None], axis=1, bitorder="little")
        np.testing.assert_array_equal(out[k], numbers + 16 * bits)
