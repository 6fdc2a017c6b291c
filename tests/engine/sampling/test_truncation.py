"""Each cut against its published definition in NumPy, with everything sorted, and by hand."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling import truncation
from engine.sampling.truncation import Candidates

Array = npt.NDArray[np.float32]
few_logits = st.lists(st.integers(-40, 40).map(lambda x: x / 4), min_size=1, max_size=12)
shares = st.sampled_from([0.01, 0.3, 0.5, 0.9, 0.99])


def kept(candidates: Candidates) -> set[int]:
    places = np.flatnonzero(candidates.logits != -np.inf)
    ids = places if candidates.ids is None else candidates.ids[places]
    return set(ids.tolist())


def probs_of(logits: Array) -> npt.NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - float(logits.max()))
    return np.asarray(weights / weights.sum())


def of(*probs: float) -> Candidates:
    """Candidates with these probabilities."""
    return Candidates(np.log(np.array(probs, np.float32)))


# --- by hand --------------------------------------------------------------------------------------


def test_top_n_sigma_by_hand() -> None:
    """Mean 2, deviation sqrt(2): 4 - 1 * 1.41 = 2.59 keeps 3 and 4."""
    for n, expected in ((1, {3, 4}), (0.5, {4}), (2.2, {1, 2, 3, 4}), (9, {0, 1, 2, 3, 4})):
        candidates = Candidates(np.array([0, 1, 2, 3, 4], np.float32))
        truncation.top_n_sigma(candidates, n)
        assert kept(candidates) == expected
    # What is impossible already does not count for the deviation.
    candidates = Candidates(np.array([0, 1, -np.inf, 2, 3, 4], np.float32))
    truncation.top_n_sigma(candidates, 1)
    assert kept(candidates) == {4, 5}


def test_typical_by_hand() -> None:
    """Entropy of (0.5, 0.2, 0.2, 0.1) is 1.22: the surprise of 0.5 is 0.69, of 0.2 1.61, of 0.1
    2.30. So 0.2 and 0.2 are the nearest (0.39), then 0.5 (0.53), then 0.1 (1.08).
    """
    for p, expected in ((0.1, {1}), (0.3, {1, 2}), (0.8, {0, 1, 2}), (0.95, {0, 1, 2, 3})):
        candidates = of(0.5, 0.2, 0.2, 0.1)
        truncation.typical(candidates, p, 0)
        assert kept(candidates) == expected, p


def test_top_p_and_min_p_by_hand() -> None:
    for p, expected in (
        (0, {2}),
        (0.4, {2}),
        (0.6, {2, 0}),
        (0.76, {2, 0, 1}),
        (0.95, {0, 1, 2, 3}),
    ):
        candidates = of(0.3, 0.15, 0.45, 0.1)
        truncation.top_p(candidates, p, 0)
        assert kept(candidates) == expected, p
    for p, expected in ((1, {2}), (0.6, {2, 0}), (0.3, {2, 0, 1}), (0.2, {0, 1, 2, 3})):
        candidates = of(0.3, 0.15, 0.45, 0.1)
        truncation.min_p(candidates, p, 0)
        assert kept(candidates) == expected, p


def test_xtc_by_hand() -> None:
    """Of the tokens at or above the threshold only the least likely stays."""
    for threshold, expected in ((0.5, {0, 1, 2, 3}), (0.3, {0, 1, 2, 3}), (0.25, {1, 2, 3}),
                                (0.15, {2, 3}), (0.05, {3})):  # fmt: skip
        candidates = of(0.4, 0.28, 0.2, 0.12)
        truncation.xtc(candidates, threshold, 0)
        assert kept(candidates) == expected, threshold
    candidates = of(0.4, 0.28, 0.2, 0.12)
    truncation.xtc(candidates, 0.15, 3)  # would leave two
    assert kept(candidates) == {0, 1, 2, 3}


def test_min_keep_by_hand() -> None:
    for cut, p in ((truncation.top_p, 0.1), (truncation.min_p, 1.0), (truncation.typical, 0.01)):
        candidates = of(0.1, 0.5, 0.25, 0.15)
        cut(candidates, p, 3)
        assert len(kept(candidates)) == 3
        candidates = of(0.1, 0.5, 0.25, 0.15)
        cut(candidates, p, 99)
        assert len(kept(candidates)) == 4


def test_entropy_by_hand() -> None:
    entropy, logit = of(0.5, 0.25, 0.25).entropy()
    assert entropy == pytest.approx(1.5 * math.log(2), rel=1e-5)
    assert logit == pytest.approx(-1.5 * math.log(2), rel=1e-5)
    candidates = Candidates(np.array([0, -np.inf, 0, -np.inf], np.float32))
    assert candidates.entropy()[0] == pytest.approx(math.log(2), rel=1e-5)


# --- against the definitions ----------------------------------------------------------------------


def first_to_reach(
    order: npt.NDArray[np.int64], probs: npt.NDArray[np.float64], p: float
) -> set[int]:
    n = int(np.searchsorted(np.cumsum(probs[order]), p * (1 - 1e-9))) + 1
    return set(order[:n].tolist())


def same(found: set[int], expected: set[int], probs: npt.NDArray[np.float64]) -> bool:
    """Equal, but that of tokens as likely as each other another one may stand at the rim."""
    return sorted(np.round(probs[[*found]], 9)) == sorted(np.round(probs[[*expected]], 9))


@settings(deadline=None, max_examples=300)
@given(few_logits, shares)
def test_few(values: list[float], p: float) -> None:
    check_all(np.array(values, np.float32), p)


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0])
@pytest.mark.parametrize("n_impossible", [0, 15_000])
def test_many(spread: float, n_impossible: int) -> None:
    logits = np.random.default_rng(5).normal(0, spread, 20_000).astype(np.float32)
    logits[:n_impossible] = -np.inf
    for p in (0.05, 0.4, 0.9, 0.99):
        check_all(logits, p, n_rim=1)


@pytest.mark.parametrize("logits", [np.zeros(20_000), np.repeat([3.0, 1.0], 10_000),
                                    np.concatenate(([90.0], np.zeros(19_999))),
                                    2.0 ** -np.arange(20_000)], ids=range(4))  # fmt: skip
def test_many_equal_ones_and_far_ones(logits: Array) -> None:
    logits = logits.astype(np.float32)
    for p in (0.05, 0.6, 0.99):
        check_all(logits, p, n_rim=1)


def check_all(logits: Array, p: float, n_rim: int = 0) -> None:
    """n_rim: tokens by which rounding may move a cut."""
    probs = probs_of(logits)
    possible = np.flatnonzero(probs > 0)
    best_first = possible[np.argsort(-probs[possible], kind="stable")]

    def check(name: str, found: set[int], expected: set[int]) -> None:
        if n_rim:
            assert len(found ^ expected) <= n_rim * 2, name
        else:
            assert same(found, expected, probs), (name, found, expected)

    candidates = Candidates(logits.copy())
    truncation.top_p(candidates, p, 0)
    check("top_p", kept(candidates), first_to_reach(best_first, probs, p))

    candidates = Candidates(logits.copy())
    truncation.typical(candidates, p, 0)
    surprise = -np.log(probs[possible])
    distance = np.abs(surprise - float((probs[possible] * surprise).sum()))
    if n_rim:  # else equal distances on both sides would need the same rounding
        order = possible[np.argsort(distance, kind="stable")]
        check("typical", kept(candidates), first_to_reach(order, probs, p))

    candidates = Candidates(logits.copy())
    truncation.min_p(candidates, p, 0)
    check(
        "min_p",
        kept(candidates),
        set(np.flatnonzero(probs >= p * probs.max() * (1 - 1e-6)).tolist()),
    )

    candidates = Candidates(logits.copy())
    truncation.top_n_sigma(candidates, p)
    finite = logits[logits != -np.inf].astype(np.float64)
    bound = float(logits.max()) - p * finite.std()
    check("top_n_sigma", kept(candidates), set(np.flatnonzero(logits >= bound - 1e-6).tolist()))
    assert len(kept(candidates)) >= 1


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(-9, 9), min_size=2, max_size=60), st.integers(1, 59))
def test_top_k(values: list[int], k: int) -> None:
    logits = np.array(values, np.float32)
    if k < len(values):
        found = truncation.top_k(logits, k)
        assert sorted(found.tolist()) == sorted(np.argsort(-logits, kind="stable")[:k].tolist())
