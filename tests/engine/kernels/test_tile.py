"""Prefill's integer products at their extremes, where sums of 16 bits would overflow first."""

from __future__ import annotations

import numpy as np
import pytest

from engine.jit import Native
from engine.kernels import tile as tiles
from engine.kernels.activation import q8_row_bytes
from engine.kernels.tile import N, T
from tests.native_call import call


@pytest.mark.parametrize(
    "product, most, group",
    [
        (tiles.tile_dot_4bit, 15, 32),
        (tiles.tile_dot_5bit, 31, 32),
        (tiles.tile_dot_5bit_16, 31, 16),
        (tiles.tile_dot_6bit_16, 63, 16),
        (tiles.tile_dot_7bit, 127, 32),
        (tiles.tile_dot_7bit_16, 127, 16),
    ],
    ids=lambda v: getattr(v, "name", None),
)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_weights_and_inputs_are_summed_exactly(
    product: Native, most: int, group: int, sign: int
) -> None:
    out = _product(product, np.full(64, most), group, np.zeros(N), sign)
    np.testing.assert_array_equal(out, np.full((T, N), 64 * most * 127 * sign, np.float32))


@pytest.mark.parametrize("weight", [-128, 127])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_signed_weights_are_summed_exactly(weight: int, sign: int) -> None:
    biased = np.full(64, weight + 128)
    out = _product(tiles.tile_dot_8bit, biased, 32, np.full(N, -128), sign)
    np.testing.assert_array_equal(out, np.full((T, N), 64 * weight * 127 * sign, np.float32))


def _product(
    product: Native, weights: np.ndarray, group: int, offset: np.ndarray, sign: int
) -> np.ndarray:
    """f32[T, N]: N equal rows of weights, scale 1, times inputs that are all 127, or -127."""
    n = len(weights)
    columns = np.repeat(weights.astype(np.uint8).reshape(-1, 1, 4), N, axis=1)
    scale = np.ones((n // group, N), np.float32)
    offsets = np.tile(offset.astype(np.float32), (n // group, 1))
    tile = np.concatenate([part.view(np.uint8).ravel() for part in (columns, scale, offsets)])
    sums = [np.full(n // 32, 32 * 127 * sign), np.full(n // 16, 16 * 127 * sign)]
    parts = [np.ones(n // 32), *sums]  # d, s, h
    x = np.zeros((T, q8_row_bytes(n)), np.uint8)
    x[:, :n] = np.full(n, 127 * sign, np.int8).view(np.uint8)
    x[:, n : n + n // 2] = np.concatenate(parts).astype(np.float32).view(np.uint8)
    out = np.zeros((T, N), np.float32)
    call(product, tile, n, x, x.strides[0], n, 0, T, out, out.strides[0], 0)
    return out
