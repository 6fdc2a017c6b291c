"""Every tensor type against the gguf package, block size, reference dequantise and tile product,
and its models against llama.cpp. Products with few input rows are in test_dots.py.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.kernels.tile import K_CHUNK, N, T, tile_bytes
from engine.quants import QUANTS
from engine.quants.base import FewInput, QuantType
from tests.golden_cases import IDS, TENSOR_TYPES, GoldenCase, read_cases
from tests.input_forms import input_rows
from tests.native_call import at_the_end, call
from tests.random_weights import random_weights, reference
from tests.tiny_chat import chat_of, relative_rms, score

types = pytest.mark.parametrize("quant", QUANTS.values(), ids=lambda q: q.name)


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
@pytest.mark.parametrize("n_rows", [1, N - 1, N])
@pytest.mark.parametrize("n_x", [1, T, 2 * T - 1])
def test_tile_product(quant: QuantType, n_rows: int, n_x: int) -> None:
    """Chunks of columns, each added to the one before; rows beyond n_rows repeat the last row. All
    lies at the end of memory, as the weights may: to touch what is behind kills the process.
    """
    n_in, k_chunk = 512 + 3 * max(quant.block_size, 32), 512
    weights = random_weights(quant, n_rows, n_in)
    x = np.zeros((-n_x % T + n_x, n_in), np.float32)
    x[:n_x] = np.random.default_rng(1).standard_normal((n_x, n_in))
    x[n_x:] = 1.0  # rows that only fill up the last group of T
    rows, values = input_rows(None if quant.group else FewInput.FLOATS, x)
    w, tile = at_the_end(weights), at_the_end(np.zeros(tile_bytes(quant.group), np.uint8))
    rows, out = at_the_end(rows), at_the_end(np.zeros((len(x), N), np.float32))
    for k0 in range(0, n_in, k_chunk):
        kn = min(k_chunk, n_in - k0)
        assert kn <= K_CHUNK
        call(quant.unpack, w, quant.row_bytes(n_in), n_rows, k0, kn, tile)
        x_at = rows, rows.strides[0], n_in, k0, n_x
        call(quant.tile_dot, tile, kn, *x_at, out, out.strides[0], int(k0 > 0))
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
