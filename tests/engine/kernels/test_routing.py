"""Routing of a mixture of experts, against NumPy: which experts, by what factors, where."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine.jit import Native
from engine.kernels.op import BATCH, FEW, OP, ROW_GROUP
from engine.kernels.routing import SIGMOID, SOFTMAX, SOFTMAX_OF_CHOSEN, route, sort_pairs
from tests.native_call import call

N_EXPERT, N_USED = 20, 3  # no multiple of a vector
PADDED = 32


def run(kernel: Native, n_rows: int, **fields: Any) -> None:
    op, batch = np.zeros(1, OP), np.zeros(1, BATCH)
    scratch = np.zeros(1024, np.uint8)
    for name, value in {"scratch": scratch, **fields}.items():
        op[name] = value.ctypes.data if isinstance(value, np.ndarray) else value
    batch["n_rows"], batch["planes"] = n_rows, 0 if n_rows <= FEW else 1
    call(kernel, op, batch, 0, 1)


def softmax(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    e: npt.NDArray[np.float64] = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("normalise", [0, 1])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("gating", [SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN])
def test_route(gating: int, biased: bool, normalise: int) -> None:
    rng = np.random.default_rng(0)
    logits = np.full((5, PADDED), np.nan, np.float32)  # what lies beyond the experts does not count
    logits[:, :N_EXPERT] = 2 * rng.standard_normal((5, N_EXPERT))
    bias = rng.standard_normal(N_EXPERT).astype(np.float32)
    exact = logits[:, :N_EXPERT].astype(np.float64)
    probs = {
        SOFTMAX: softmax(exact),
        SIGMOID: 1 / (1 + np.exp(-exact)),
        SOFTMAX_OF_CHOSEN: exact,
    }[gating]
    expected = np.argsort(-(probs + bias if biased else probs), axis=-1)[:, :N_USED]
    factors = np.take_along_axis(probs, expected, -1)
    factors = softmax(factors) if gating == SOFTMAX_OF_CHOSEN else factors
    factors = factors / factors.sum(-1, keepdims=True) if normalise else factors

    chosen, factor = np.zeros((5, N_USED), np.int32), np.zeros((5, N_USED), np.float32)
    routing: dict[str, Any] = {"n_expert": N_EXPERT, "n_used": N_USED, "normalise": normalise}
    outputs = {"chosen": chosen, "factor": factor, "bias": bias if biased else 0}
    run(route, 5, x=logits, gating=gating, scale=2.5, **routing, **outputs)
    np.testing.assert_array_equal(chosen, expected)
    np.testing.assert_allclose(factor, 2.5 * factors, rtol=1e-5)


def test_a_router_gone_mad_chooses_experts_that_exist() -> None:
    logits = np.full((1, PADDED), np.nan, np.float32)
    chosen, factor = np.full((1, N_USED), 99, np.int32), np.zeros((1, N_USED), np.float32)
    outputs = {"chosen": chosen, "factor": factor}
    run(route, 1, x=logits, n_expert=N_EXPERT, n_used=N_USED, scale=1.0, **outputs)
    assert ((chosen >= 0) & (chosen < N_EXPERT)).all()


@pytest.mark.parametrize("n_rows", [1, FEW, FEW + 5])
def test_pairs_lie_side_by_side(n_rows: int) -> None:
    rng = np.random.default_rng(1)
    chosen = np.stack([rng.permutation(N_EXPERT)[:N_USED] for _ in range(n_rows)]).astype(np.int32)
    place = np.zeros((n_rows, N_USED), np.int32)
    source = np.full(n_rows * N_USED + N_EXPERT * ROW_GROUP, 99, np.int32)
    first, present = np.zeros(N_EXPERT + 1, np.int32), np.zeros(N_EXPERT + 1, np.int32)
    outputs = {"place": place, "source": source, "first": first, "present": present}
    run(sort_pairs, n_rows, n_expert=N_EXPERT, n_used=N_USED, chosen=chosen, **outputs)

    assert present[1 : 1 + present[0]].tolist() == sorted(set(chosen.flat))
    for row, expert, at in zip(
        np.repeat(range(n_rows), N_USED), chosen.flat, place.flat, strict=True
    ):
        assert first[expert] <= at < first[expert + 1]
        assert source[at] == row
    assert len(set(place.flat)) == place.size
    others = set(range(first[-1])) - set(place.flat)
    assert all(source[at] == -1 for at in others)
    assert (first % ROW_GROUP == 0).all() if n_rows > FEW else not others
