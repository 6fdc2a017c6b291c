"""Input rows of a product in the forms that activation.py draws, made by NumPy."""

from __future__ import annotations

import math

import numpy as np

from engine.quants.base import FewInput


def input_rows(form: FewInput | None, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(memory of the rows in a few-row form, or q8 for None; the values that they stand for)."""
    if form is FewInput.FLOATS:
        return x, x.astype(np.float64)
    if form is FewInput.FINE8:
        return fine8_rows(x)
    if form is FewInput.FINE16:
        return fine16_rows(x)
    d, q, values = rounded(x, 32)
    s, h = (values.reshape(len(x), -1, n).sum(-1).astype(np.float32) for n in (32, 16))
    parts = [q.reshape(x.shape).astype(np.int8), d, s, h]
    rows = np.concatenate([p.view(np.uint8).reshape(len(x), -1) for p in parts], axis=1)
    return np.ascontiguousarray(rows), values


def rounded(
    x: np.ndarray, group: int, most: int = 127
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(scales, integers, the values that they stand for), in groups with a scale each."""
    groups = x.reshape(len(x), -1, group)
    d = (np.maximum(np.abs(groups).max(-1), 1e-30) / np.float32(most)).astype(np.float32)
    q = np.rint(groups / d[..., None])
    return d, q, (d[..., None].astype(np.float64) * q).reshape(x.shape)


def fine8_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Runs of 256 in the order that activation.py draws."""
    n_rows = len(x)
    d, q, values = rounded(x, 16)
    h = values.reshape(n_rows, -1, 16).sum(-1).astype(np.float32)
    h_32 = np.pad(values.reshape(n_rows, -1, 8, 32).sum(-1), [(0, 0), (0, 0), (0, 8)])
    # [runs, vectors of 64, 16s, quarters, 4]: a column goes through the vectors of the 16s.
    columns = q.reshape(n_rows, -1, 4, 4, 4, 4).transpose(0, 1, 4, 3, 2, 5).astype(np.int8)
    d, centre = (p.reshape(n_rows, -1, 4, 4).swapaxes(2, 3) for p in (d, -32 * h))
    runs = [columns.reshape(n_rows, -1, 256)]
    runs += [p.astype(np.float32).reshape(n_rows, -1, 16) for p in (d, h, centre, h_32)]
    parts = [np.ascontiguousarray(p).view(np.uint8) for p in runs]
    rows = np.concatenate(parts, axis=2).reshape(n_rows, -1)
    return np.ascontiguousarray(rows), values


def fine16_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two planes of 8 bits, in the order that activation.py draws.

    As many rows lie in a line as make it whole runs of 256, if it has 3,072 values at most.
    """
    n_rows, n = x.shape
    in_line = 8 // math.gcd(n // 32, 8)
    if n > 256 and in_line * n <= 3072:
        line = np.tile(x, in_line)
    else:
        line = np.pad(x, [(0, 0), (0, -n % 256)])
    d, q, values = rounded(line, 32, 127 << 7)
    high = np.rint(q / 128)
    # [runs, two fours of blocks, blocks, vectors, columns, 4]
    planes = [
        p.reshape(n_rows, -1, 2, 4, 4, 2, 4).transpose(0, 1, 4, 3, 2, 5, 6).astype(np.int8)
        for p in (high, q - 128 * high)
    ]
    sums = values.reshape(n_rows, -1, 32).sum(-1)
    floats = [
        np.stack(pair, -1).reshape(n_rows, -1, 2, 4, 2).swapaxes(2, 3).astype(np.float32)
        for pair in ((d, d), (sums, np.zeros_like(sums)))
    ]
    runs = [p.reshape(n_rows, -1, 256).copy() for p in planes]
    runs += [p.reshape(n_rows, -1, 16).copy() for p in floats]
    rows = np.concatenate([p.view(np.uint8) for p in runs], axis=2).reshape(n_rows, -1)
    return np.ascontiguousarray(rows), values[:, :n]
