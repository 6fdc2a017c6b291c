"""Input rows as integers, byte by byte as activation.py draws them, against NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from engine.kernels.activation import (
    fine8_row_bytes,
    fine16_row_bytes,
    q8_row_bytes,
    quantise_rows,
)
from engine.kernels.op import BATCH, OP
from tests.native_call import call

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

widths = pytest.mark.parametrize("n", [32, 256, 544, 800, 1024])


@pytest.fixture
def x(n: int) -> Floats:
    """Three rows of which 32 values are zero, and 32 tiny ones."""
    x = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
    x[1, :32], x[2, :32] = 0, x[2, :32] * np.float32(1e-20)
    return x


def quantised(x: Floats, planes: int, form: str, row_bytes: int) -> Bytes:
    """u8[rows, row_bytes], in memory that held something else before."""
    n_rows, n = x.shape
    rows = np.full((n_rows * max(planes, 1), row_bytes), 0xA5, np.uint8)
    op, batch = np.zeros(1, OP), np.zeros(1, BATCH)
    op["n_in"], op["x"], op[form] = n, x.ctypes.data, rows.ctypes.data
    batch["n_rows"], batch["planes"] = n_rows, planes
    call(quantise_rows, op, batch, 0, 1)
    assert (rows[:, -64:] == 0xA5).all(), "written between rows"
    return rows


def ints(part: Bytes) -> npt.NDArray[np.int64]:
    return part.view(np.int8).astype(np.int64)


def within(values: npt.NDArray[np.float64], x: Floats, group: int, most: int) -> None:
    """Values differ from x by half a step at most, of which `most` are the group's largest; f32
    rounds the quotient by a hundredth of one."""
    step = np.abs(x).reshape(len(x), -1, group).max(-1).repeat(group, 1) / most
    assert (np.abs(values - x) <= 0.51 * step + 1e-30).all()


@pytest.mark.parametrize("n", [256, 768, 1024])
def test_fine8(x: Floats, n: int) -> None:
    runs = n // 256
    row_bytes = fine8_row_bytes(n)
    rows = quantised(x, 0, "fine8", row_bytes)[:, : runs * 512].reshape(3, runs, 512)
    # Of the 16 columns of 4 quarters: column 4 i + j holds sixteen number 4 j + i.
    q = ints(rows[:, :, :256].copy()).reshape(3, runs, 4, 16, 4)
    d, h, c, s = (rows[:, :, i : i + 64].copy().view(np.float32) for i in (256, 320, 384, 448))
    of = [4 * (c % 4) + c // 4 for c in range(16)]  # the sixteen in column c
    values = np.zeros((3, runs, 16, 16))
    for column, sixteen in enumerate(of):
        neighbours = q[:, :, :, column].reshape(3, runs, 16)
        values[:, :, sixteen] = d[:, :, column, None].astype(np.float64) * neighbours
    sums = values.sum(-1)
    np.testing.assert_allclose(h, sums, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(c, -32 * sums[:, :, of], rtol=1e-5, atol=4e-5)
    np.testing.assert_allclose(s[:, :, :8], sums[:, :, ::2] + sums[:, :, 1::2], 1e-5, 2e-6)
    within(values.reshape(3, n), x, 16, 127)


@pytest.mark.parametrize(
    "n, in_line",
    [(32, 1), (256, 1), (288, 8), (544, 1), (576, 4), (640, 2), (800, 1), (896, 2), (1024, 1)],
)
def test_fine16(x: Floats, n: int, in_line: int) -> None:
    """in_line: how often a row has its values, until runs end with them, up to 3,072 in all."""
    runs = -(-in_line * n // 256)
    row_bytes = fine16_row_bytes(n)
    rows = quantised(x, 0, "fine16", row_bytes)[:, : runs * 640].reshape(3, runs, 640)
    q, low = (ints(rows[:, :, i : i + 256].copy()).reshape(3, runs, 4, 16, 4) for i in (0, 256))
    d, h = (rows[:, :, i : i + 64].copy().view(np.float32) for i in (512, 576))
    assert np.abs(low).max() <= 64
    values, sums = np.zeros((3, runs, 8, 32)), np.zeros((3, runs, 8))
    for block in range(8):  # in two columns, a four of each side by side
        columns = [block % 4 * 4 + block // 4 * 2 + k for k in (0, 1)]
        numbers = 128 * q[:, :, :, columns] + low[:, :, :, columns]
        scale = d[:, :, columns].astype(np.float64)
        assert (scale[..., 0] == scale[..., 1]).all()
        values[:, :, block] = scale[..., :1] * numbers.reshape(3, runs, 32)
        sums[:, :, block] = h[:, :, columns].sum(-1)
    np.testing.assert_allclose(sums, values.sum(-1), rtol=1e-5, atol=1e-6)
    values = values.reshape(3, -1)
    within(values[:, : in_line * n], np.tile(x, in_line), 32, 127 * 128)
    assert not values[:, in_line * n :].any()


@widths
@pytest.mark.parametrize("planes", [1, 2])
def test_q8(x: Floats, n: int, planes: int) -> None:
    rows = quantised(x, planes, "q8", q8_row_bytes(n)).reshape(3, planes, -1)
    q = ints(rows[:, :, :n].copy()).reshape(3, planes, -1, 32)
    d, s = (
        rows[:, :, i : i + n // 8].copy().view(np.float32).astype(np.float64)
        for i in (n, n + n // 8)
    )
    h = rows[:, :, n + n // 4 : n + n // 2].copy().view(np.float32)
    values = d[..., None] * q
    np.testing.assert_allclose(s, values.sum(-1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h, values.reshape(3, planes, -1, 16).sum(-1), rtol=1e-5, atol=1e-6)
    within(values.sum(1).reshape(3, n), x, 32, 127 if planes == 1 else 127 * 250)
