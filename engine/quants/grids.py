"""Grids: the tables of runs of 4 or 8 weights that IQ1, IQ2 and IQ3 choose from, and their signs.

The tables are facts of the format; the `gguf` package holds them. Kernels hold them as constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.jit import inline
from engine.kernels.simd import (
    bor,
    bxor,
    concat,
    i8x64,
    load_pieces,
    mask,
    negate_where,
    plus_scalar,
    reinterpret,
    shl,
    shr,
    u8x32,
    u8x64,
)

Grid = npt.NDArray[np.int8]


def grid_of(codebook: Any) -> Grid:
    """i8[n, 4] or i8[n, 8]: the grid of a class of gguf.quants."""
    codebook.init_grid()
    return np.ascontiguousarray(codebook.grid.reshape(codebook.grid_shape), np.int8)


def signs_of_bits(bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """u8[n, k] -> f32[n, 8 k]: -1 where a bit is set, the lowest first, else 1."""
    return np.float32(1) - np.float32(2) * np.unpackbits(bits, axis=1, bitorder="little")


def add_parity(seven: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Seven bits each, with the eighth set where that makes the number of ones even."""
    odd = seven ^ seven >> 4
    odd = odd ^ odd >> 2
    odd = odd ^ odd >> 1
    return (seven | (odd & 1) << 7).astype(np.uint8)


def seven_bits(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """u32[n, k] -> u8[n, 4 k]: the four sevens of bits of each word, the lowest first."""
    sevens = words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32) & 127
    return sevens.reshape(len(words), -1).astype(np.uint8)


@inline
def parity_added(seven):
    """add_parity for the bytes of a u32x8."""
    odd = bxor(seven, shr(seven, 4))  # what comes in from the next byte is never looked at
    odd = bxor(odd, shr(odd, 2))
    odd = bxor(odd, shr(odd, 1))
    return bor(seven, shl(mask(odd, 0x01010101), 7))


@inline
def sign_bits(words):
    """The sign bits of eight groups of 32, from four sevens of bits in each lane of a u32x8."""
    low = bor(mask(words, 0x7F), mask(shl(words, 1), 0x7F00))
    high = bor(mask(shl(words, 2), 0x7F0000), mask(shl(words, 3), 0x7F000000))
    return parity_added(bor(low, high))


@inline
def from_runs_of_8(grid, a, b, c, d):
    """32 weights: the runs number a, b, c and d of the grid at address `grid`, as u8x32."""
    return load_pieces(u8x32, (grid + 8 * a, grid + 8 * b, grid + 8 * c, grid + 8 * d))


@inline
def signed(first, last, bits, bias):
    """64 weights of these sizes (two u8x32), negative where a bit is set, `bias` added: u8x64."""
    sizes = reinterpret(i8x64, concat(first, last))
    return reinterpret(u8x64, plus_scalar(negate_where(sizes, bits), bias))
