"""QuantType.dot and dot4 of every tensor type, against NumPy and each other.

Weights, inputs and results lie at the end of memory: the weights' file may end there, and to touch
what is behind kills the process.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from engine.kernels.matmul import ROW_STEP
from engine.kernels.simd import L
from engine.quants import QUANTS
from engine.quants.base import QuantType
from tests.input_forms import input_rows
from tests.native_call import at_the_end, call
from tests.random_weights import random_weights, reference

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

# Eight blocks of 32 are taken as one of 256: here are a part of that, some whole ones, and both.
# Two, four or eight rows in a line are whole ones, but for the longest such lines.
# Long rows are read in chunks of 8 or 16 of them: here are just so many, and one more.
WIDTHS = (32, 96, 160, 224, 256, 288, 576, 608, 640, 768, 896, 1280, 2176, 4096, 4352, 4448)
products = pytest.mark.parametrize(
    "quant, n_in",
    [
        pytest.param(quant, n_in, id=f"{quant.name}-{n_in}")
        for quant in QUANTS.values()
        for n_in in WIDTHS
        if n_in % max(quant.block_size, 32) == 0
    ],
)
# Many weight rows are taken L at a time.
row_counts = pytest.mark.parametrize("n_rows", sorted({1, 7, 8, L + 3}))


def random_floats(n_x: int, n_in: int) -> Floats:
    return np.random.default_rng(1).standard_normal((n_x, n_in)).astype(np.float32)


def dot(quant: QuantType, weights: Bytes, n_in: int, row: Bytes) -> Floats:
    """f32[weight rows]"""
    out = at_the_end(np.full(len(weights), np.nan, np.float32))
    w, x = at_the_end(weights), at_the_end(row)
    call(quant.dot, w, quant.row_bytes(n_in), len(weights), n_in, x, out)
    return out


def dot4(quant: QuantType, weights: Bytes, n_in: int, rows: Bytes, n_x: int) -> Floats:
    """f32[len(rows), weight rows], more than n_x where there is room for more."""
    n_rows = len(weights)
    out = at_the_end(np.full((len(rows), n_rows + 3), np.nan, np.float32))
    w, x = at_the_end(weights), at_the_end(rows)
    shape = quant.row_bytes(n_in), n_rows, n_in
    call(quant.dot4, w, *shape, x, x.strides[0], n_x, out, out.strides[0])
    assert np.isnan(out[:, n_rows:]).all(), "written behind a row of results"
    return out[:, :n_rows]


@products
@row_counts
def test_dot(quant: QuantType, n_in: int, n_rows: int) -> None:
    weights = random_weights(quant, n_rows, n_in)
    rows, values = input_rows(quant.few_input, random_floats(4, n_in))
    expected = values @ reference(quant, weights).T
    results = np.array([dot(quant, weights, n_in, row) for row in rows])
    np.testing.assert_allclose(results, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@products
def test_a_result_does_not_depend_on_where_a_call_begins(quant: QuantType, n_in: int) -> None:
    """To the last bit, where it begins at a multiple of ROW_STEP rows."""
    weights = random_weights(quant, 2 * ROW_STEP + 5, n_in)
    row = input_rows(quant.few_input, random_floats(1, n_in))[0][0]
    whole = dot(quant, weights, n_in, row)
    for first in (ROW_STEP, 2 * ROW_STEP):
        rest = dot(quant, weights[first:], n_in, row)
        np.testing.assert_array_equal(rest, whole[first:])


@products
@row_counts
@pytest.mark.parametrize("n_x", [2, 3, 4])
def test_dot4_equals_dot_to_the_last_bit(
    quant: QuantType, n_in: int, n_rows: int, n_x: int
) -> None:
    """A chat must say the same alone and beside others, whatever is in the fourth row of three."""
    weights = random_weights(quant, n_rows, n_in)
    rows, _ = input_rows(quant.few_input, random_floats(4 if n_x == 3 else n_x, n_in))
    rows[n_x:].view(np.uint8).fill(0xFF)  # NaN, as floats
    together = dot4(quant, weights, n_in, rows, n_x)[:n_x]
    alone = np.array([dot(quant, weights, n_in, row) for row in rows[:n_x]])
    assert np.isfinite(alone).all()
    np.testing.assert_array_equal(together, alone)
