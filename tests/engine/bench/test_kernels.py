"""What the kernel bench times is the right product, and its report is complete."""

from __future__ import annotations

from collections.abc import Iterator

import gguf
import numpy as np
import pytest

from engine.bench import kernels
from engine.kernels.team import Team
from engine.model.plan import Memory
from engine.quants import QUANTS
from engine.quants.base import QuantType


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team(2)
    yield team
    team.close()


@pytest.mark.parametrize("quant", QUANTS.values(), ids=lambda q: q.name)
@pytest.mark.parametrize("n_rows", [1, 4, 32])
def test_a_product_is_that_of_its_weights_and_inputs(
    quant: QuantType, n_rows: int, team: Team
) -> None:
    memory = Memory(1 << 19)
    matrix = kernels._random_matrix(quant, memory)
    assert 0 <= memory.n_bytes - matrix.n_bytes < 16 * matrix.row_bytes
    product = kernels._Product(matrix, n_rows, team)
    assert product.seconds() > 0
    stored = memory.bytes[: matrix.n_bytes].reshape(matrix.n_out, -1)
    weights = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType(quant.ggml_type))
    assert np.isfinite(weights).all()
    expected = product.x @ weights.T
    # 8 bits of input in prefill: a hundredth of the largest result at most.
    np.testing.assert_allclose(product.result, expected, atol=0.01 * np.abs(expected).max())


def test_every_type_is_measured_with_every_number_of_threads() -> None:
    heard: list[str] = []
    report = kernels.run([1, 2], reps=2, on_type=heard.append, n_bytes=2 << 20)
    names = [quant.name for quant in QUANTS.values()]
    assert heard == names
    assert [(row["type"], row["threads"]) for row in report["types"]] == [
        (name, n) for name in names for n in (1, 2)
    ]
    for row in report["types"]:
        assert all(value > 0 for name, value in row.items() if name != "type")
