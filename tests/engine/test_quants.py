"""Every tensor type against the gguf package: block size, reference dequantise, dot product, tile
and tile product.
"""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.jit import Native
from engine.kernels.simd import L
from engine.kernels.tile import K_CHUNK, N, T, tile_bytes
from engine.quants import QUANTS
from engine.quants.base import FewInput, QuantType
from tests.golden_cases import IDS, TENSOR_TYPES, GoldenCase, read_cases
from tests.tiny_chat import chat_of, relative_rms, score

types = pytest.mark.parametrize("quant", QUANTS.values(), ids=lambda q: q.name)


def call(function: Native, *args: int) -> None:
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(args))(function.address)(*args)


def random_weights(quant: QuantType, rows: int, n_in: int, seed: int = 0) -> np.ndarray:
    """u8[rows, row_bytes]: all bit patterns, but scales that are sound numbers."""
    rng = np.random.default_rng(seed)
    if quant.block.names is None:
        floats = rng.standard_normal((rows, n_in)).astype(np.float32)
        if quant.name == "BF16":
            return (floats.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
        return floats.astype(quant.block).view(np.uint8)
    blocks = rng.integers(0, 256, (rows, quant.row_bytes(n_in)), dtype=np.uint8).view(quant.block)
    for field in quant.block.names:
        if quant.block[field] == np.dtype("<f2"):
            blocks[field] = rng.uniform(-0.01, 0.01, blocks.shape).astype(np.float16)
    if quant.name == "IQ1_M":  # a nibble of the scale in each word
        d = rng.uniform(-0.01, 0.01, blocks.shape).astype(np.float16).view(np.uint16)
        high = d[..., None] >> np.array([0, 4, 8, 12], np.uint16) << 12
        blocks["scales"] = blocks["scales"] & 0xFFF | high
    if quant.name == "MXFP4":  # powers of two
        blocks["e"] = rng.integers(118, 124, blocks.shape)
    return blocks.view(np.uint8)


def reference(quant: QuantType, weights: np.ndarray) -> np.ndarray:
    return gguf.quants.dequantize(weights, gguf.GGMLQuantizationType(quant.ggml_type)).astype(
        np.float64
    )


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
    """Runs of 256 in the order that activation.py draws, the last one filled up with zeros."""
    n_rows, n = x.shape
    d, q, values = rounded(np.pad(x, [(0, 0), (0, -n % 256)]), 16)
    h = values.reshape(n_rows, -1, 16).sum(-1).astype(np.float32)
    h_32 = np.pad(values.reshape(n_rows, -1, 8, 32).sum(-1), [(0, 0), (0, 0), (0, 8)])
    # [runs, vectors of 64, 16s, quarters, 4]: a column goes through the vectors of the 16s.
    columns = q.reshape(n_rows, -1, 4, 4, 4, 4).transpose(0, 1, 4, 3, 2, 5).astype(np.int8)
    d, centre = (p.reshape(n_rows, -1, 4, 4).swapaxes(2, 3) for p in (d, -32 * h))
    runs = [columns.reshape(n_rows, -1, 256)]
    runs += [p.astype(np.float32).reshape(n_rows, -1, 16) for p in (d, h, centre, h_32)]
    parts = [np.ascontiguousarray(p).view(np.uint8) for p in runs]
    rows = np.concatenate(parts, axis=2).reshape(n_rows, -1)
    return np.ascontiguousarray(rows), values[:, :n]


def fine16_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two planes of 8 bits, in the order that activation.py draws."""
    n_rows, n = x.shape
    d, q, values = rounded(np.pad(x, [(0, 0), (0, -n % 256)]), 32, 127 << 7)
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


@types
def test_block_size_is_the_formats(quant: QuantType) -> None:
    size, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(quant.ggml_type)]
    assert (quant.block_size, quant.block_bytes) == (size, n_bytes)


@types
def test_dequantize_equals_gguf_bit_for_bit(quant: QuantType) -> None:
    weights = random_weights(quant, 5, 512)
    ours = quant.dequantize(weights.view(quant.block).reshape(-1)).reshape(5, 512)
    np.testing.assert_array_equal(ours, reference(quant, weights).astype(np.float32))


@types
@pytest.mark.parametrize("n_in", [256, 768])
def test_dot(quant: QuantType, n_in: int) -> None:
    weights = random_weights(quant, 7, n_in)
    x = np.random.default_rng(1).standard_normal((1, n_in)).astype(np.float32)
    rows, values = input_rows(quant.few_input, x)
    out = np.zeros(7, np.float32)
    call(
        quant.dot,
        weights.ctypes.data,
        quant.row_bytes(n_in),
        7,
        n_in,
        rows.ctypes.data,
        out.ctypes.data,
    )
    expected = reference(quant, weights) @ values[0]
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@types
def test_dot_of_odd_number_of_blocks(quant: QuantType) -> None:
    n_in = max(quant.block_size, 32) * 3
    weights = random_weights(quant, 3, n_in)
    x = np.random.default_rng(1).standard_normal((1, n_in)).astype(np.float32)
    rows, values = input_rows(quant.few_input, x)
    out = np.zeros(3, np.float32)
    call(
        quant.dot,
        weights.ctypes.data,
        quant.row_bytes(n_in),
        3,
        n_in,
        rows.ctypes.data,
        out.ctypes.data,
    )
    expected = reference(quant, weights) @ values[0]
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@types
@pytest.mark.parametrize("n_x", [2, 4])
@pytest.mark.parametrize("n_rows, n_runs", [(5, 0), (L + 3, 17)])
def test_dot4_equals_dot_to_the_last_bit(
    quant: QuantType, n_rows: int, n_runs: int, n_x: int
) -> None:
    """A chat must say the same alone and beside others. Long rows are read in chunks of runs of
    256, many weight rows a few at a time.
    """
    n_in = 256 * n_runs + max(quant.block_size, 32) * 3
    weights = random_weights(quant, n_rows, n_in)
    x = np.random.default_rng(1).standard_normal((n_x, n_in)).astype(np.float32)
    rows, _ = input_rows(quant.few_input, x)
    together = np.zeros((n_x, n_rows + 3), np.float32)
    address, row_bytes = weights.ctypes.data, quant.row_bytes(n_in)
    call(
        quant.dot4,
        *(address, row_bytes, n_rows, n_in, rows.ctypes.data, rows.strides[0], n_x),
        *(together.ctypes.data, together.strides[0]),
    )
    alone = np.zeros((n_x, n_rows), np.float32)
    for row, out in zip(rows, alone, strict=True):
        call(quant.dot, address, row_bytes, n_rows, n_in, row.ctypes.data, out.ctypes.data)
    np.testing.assert_array_equal(together[:, :n_rows], alone)


@types
def test_nothing_behind_the_weights_or_the_inputs_is_read(quant: QuantType) -> None:
    """The file may end there, and with it the memory: a read beyond kills the process."""
    n_rows, n_in = 3, max(quant.block_size, 32) * 3
    row_bytes = quant.row_bytes(n_in)
    x = np.random.default_rng(1).standard_normal((4, n_in)).astype(np.float32)
    rows, _ = input_rows(quant.few_input, x)
    with before_the_end(random_weights(quant, n_rows, n_in)) as w, before_the_end(rows) as at:
        out, tile = np.zeros((4, n_rows), np.float32), np.zeros(tile_bytes(quant.group), np.uint8)
        call(quant.dot, w, row_bytes, n_rows, n_in, at, out.ctypes.data)
        to = out.ctypes.data, out.strides[0]
        call(quant.dot4, w, row_bytes, n_rows, n_in, at, rows.strides[0], 4, *to)
        call(quant.unpack, w, row_bytes, n_rows, 0, n_in, tile.ctypes.data)
    assert np.isfinite(out).all()


@contextmanager
def before_the_end(data: np.ndarray) -> Iterator[int]:
    """Address of a copy whose last byte is the last one of a file's mapped pages; the next page is
    past the end of the file, and to touch it is a bus error.
    """
    page = mmap.PAGESIZE
    n_bytes = -(-data.nbytes // page) * page
    with tempfile.TemporaryFile() as file:
        file.write(bytes(n_bytes - data.nbytes) + data.tobytes())
        file.truncate(n_bytes + page)
        with mmap.mmap(file.fileno(), n_bytes + page) as memory:
            file.truncate(n_bytes)
            start = ctypes.c_char.from_buffer(memory)
            try:
                yield ctypes.addressof(start) + n_bytes - data.nbytes
            finally:
                del start


@types
@pytest.mark.parametrize("n_rows", [1, N - 1, N])
@pytest.mark.parametrize("n_x", [1, T, 2 * T - 1])
def test_tile_product(quant: QuantType, n_rows: int, n_x: int) -> None:
    """Two chunks of columns, the second added to the first; rows beyond n_rows repeat the last
    row.
    """
    n_in, k_chunk = 768, 512
    weights = random_weights(quant, n_rows, n_in)
    x = np.zeros((-n_x % T + n_x, n_in), np.float32)
    x[:n_x] = np.random.default_rng(1).standard_normal((n_x, n_in))
    x[n_x:] = 1.0  # rows that only fill up the last group of T
    rows, values = input_rows(None if quant.group else FewInput.FLOATS, x)
    tile = np.zeros(tile_bytes(quant.group), np.uint8)
    out = np.zeros((len(x), N), np.float32)
    for k0 in range(0, n_in, k_chunk):
        kn = min(k_chunk, n_in - k0)
        assert kn <= K_CHUNK
        address = tile.ctypes.data
        call(quant.unpack, weights.ctypes.data, quant.row_bytes(n_in), n_rows, k0, kn, address)
        call(
            quant.tile_dot,
            *(address, kn, rows.ctypes.data, rows.strides[0], n_in, k0, n_x),
            *(out.ctypes.data, out.strides[0], int(k0 > 0)),
        )
    expected = values[:n_x] @ reference(quant, weights).T
    np.testing.assert_allclose(
        out[:n_x, :n_rows], expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max()
    )
    np.testing.assert_array_equal(
        out[:n_x, n_rows:], np.repeat(out[:n_x, n_rows - 1 : n_rows], N - n_rows, 1)
    )


CASES = read_cases(TENSOR_TYPES)


def test_every_type_has_golden_logits() -> None:
    assert {c.name for c in CASES if c.logits is not None} == {q.name for q in QUANTS.values()}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_are_those_of_llama_cpp(case: GoldenCase, tmp_path: Path) -> None:
    quant = QUANTS[int(case.model.type)]
    # llama.cpp's inputs are f16 for F16 weights, bf16 for BF16 ones, and have 8 bits for integers.
    apart = {"F32": 2e-3, "F16": 3e-3, "BF16": 1e-2}.get(quant.name, 5e-2)
    with chat_of(case.write(tmp_path / "tiny.gguf")) as chat:
        for chunk in (len(IDS), 1):
            assert relative_rms(score(chat, IDS, chunk), case.logits) < apart, f"chunks of {chunk}"
