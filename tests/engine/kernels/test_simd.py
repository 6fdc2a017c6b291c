"""Verbs that are lowered in several ways mean the same on every profile: against NumPy.

RUSHLIGHT_CPU_PROFILE chooses which one a run tests.
"""

from __future__ import annotations

import numpy as np
import pytest

from engine.kernels.op import part
from engine.kernels.simd import (
    FOUR,
    Lanes,
    f32x16,
    i8x64,
    load,
    load_pieces,
    load_sums,
    look_up,
    negate_where,
    read_i64,
    split_lanes,
    store,
    store_sums,
    u8x16,
    u8x32,
    u8x64,
    zero_sums,
)
from tests.native_call import call

SQUARES = Lanes(*(i * i for i in range(16)))
SIGNED = Lanes(*(10 * i - 100 for i in range(16)))
NUMBERS = Lanes(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7)


@part(3)
def look_up_16_and_32(codes, out_16, out_32):
    store(out_16, look_up(load(u8x16, codes), SQUARES))
    store(out_32, look_up(load(u8x32, codes), SQUARES))


@part(2)
def look_up_64(codes, out):
    store(out, look_up(load(u8x64, codes), SIGNED))


@part(3)
def negate(v, bits, out):
    store(out, negate_where(load(i8x64, v), read_i64(bits)))


@part(2)
def pieces(at, out):
    store(out, load_pieces(u8x32, (at + 40, at + 8, at + 8, at)))
    eight = (at, at + 1, at + 60, at + 7, at + 3, at + 3, at + 2, at + 50)
    store(out + 32, load_pieces(u8x32, eight))


@part(4)
def split(sums, n, out_below, out_others):
    tile = load_sums(zero_sums(FOUR, f32x16), sums)
    below, others = split_lanes(tile, NUMBERS, n)
    store_sums(out_below, below)
    store_sums(out_others, others)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_look_up(rng: np.random.Generator) -> None:
    codes = rng.permutation(np.repeat(np.arange(16, dtype=np.uint8), 2))
    out_16, out_32 = np.zeros(16, np.uint8), np.zeros(32, np.uint8)
    call(look_up_16_and_32, codes, out_16, out_32)
    assert out_16.tolist() == [code * code for code in codes[:16].tolist()]
    assert out_32.tolist() == [code * code for code in codes.tolist()]


def test_look_up_of_signed_numbers(rng: np.random.Generator) -> None:
    codes = rng.permutation(np.repeat(np.arange(16, dtype=np.uint8), 4))
    out = np.zeros(64, np.int8)
    call(look_up_64, codes, out)
    assert out.tolist() == [10 * code - 100 for code in codes.tolist()]


@pytest.mark.parametrize("word", [0, 1, 1 << 63, 2**64 - 1, 0x123456789ABCDEF0])
def test_negate_where(rng: np.random.Generator, word: int) -> None:
    v = rng.integers(-127, 128, 64).astype(np.int8)
    out = np.zeros(64, np.int8)
    call(negate, v, np.array([word], np.uint64), out)
    assert out.tolist() == [-n if word >> i & 1 else n for i, n in enumerate(v.tolist())]


def test_load_pieces(rng: np.random.Generator) -> None:
    memory = rng.integers(0, 256, 64).astype(np.uint8)
    out = np.zeros(64, np.uint8)
    call(pieces, memory, out)
    fours = [memory[at : at + 8] for at in (40, 8, 8, 0)]
    eights = [memory[at : at + 4] for at in (0, 1, 60, 7, 3, 3, 2, 50)]
    assert out.tolist() == np.concatenate(fours + eights).tolist()


@pytest.mark.parametrize("n", range(9))
def test_split_lanes(rng: np.random.Generator, n: int) -> None:
    """What belongs to one side leaves no trace on the other, a NaN or an infinity neither."""
    sums = rng.standard_normal((4, 16)).astype(np.float32)
    sums[1, 3::4], sums[2, 1::4] = np.nan, np.inf
    below, others = np.full((2, 4, 16), 7, np.float32)
    call(split, sums, n, below, others)
    is_below = np.array(NUMBERS.lanes) < n
    np.testing.assert_array_equal(below, np.where(is_below, sums, 0))
    np.testing.assert_array_equal(others, np.where(is_below, 0, sums))
