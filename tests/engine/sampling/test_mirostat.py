"""Mirostat: its cuts and its aim by hand, and that the text comes out as surprising as asked."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine.sampling.mirostat import Mirostat
from engine.sampling.sampler import Sampler
from engine.sampling.sampling_params import SamplingParams
from engine.sampling.truncation import Candidates


def of(*probs: float) -> Candidates:
    return Candidates(np.log(np.array(probs, np.float32)))


def test_version_2_by_hand() -> None:
    """Surprises of 1, 2, 3 and 3 bits; mu is 2 tau at first."""
    for tau, n_kept in ((0.4, 1), (0.6, 1), (1.01, 2), (1.51, 4)):
        mirostat = Mirostat(SamplingParams(mirostat=2, mirostat_tau=tau), 4)
        candidates = of(0.5, 0.25, 0.125, 0.125)
        mirostat.cut(candidates)
        assert candidates.n == n_kept, tau


def test_the_aim_is_corrected() -> None:
    mirostat = Mirostat(SamplingParams(mirostat=2, mirostat_tau=3, mirostat_eta=0.5), 4)
    assert mirostat.mu == 6
    mirostat.note(5.0)
    assert mirostat.mu == 5
    mirostat.note(1.0)
    assert mirostat.mu == 6


def test_version_1_by_hand() -> None:
    """For p_i = c / i^s the fitted exponent is s, and k is the paper's equation 7."""
    n, s, tau = 5000, 1.5, 2.0
    mirostat = Mirostat(SamplingParams(mirostat=1, mirostat_tau=tau), n)
    candidates = Candidates((-s * np.log(np.arange(1, n + 1))).astype(np.float32))
    mirostat.cut(candidates)
    epsilon = s - 1
    k = (epsilon * 2 ** (2 * tau) / (1 - n**-epsilon)) ** (1 / s)
    assert candidates.n == int(k) == 4


@pytest.mark.parametrize("version", [1, 2])
def test_extremes(version: int) -> None:
    for logits in (np.zeros(500), np.array([0.0]), np.array([5.0, -np.inf])):
        mirostat = Mirostat(SamplingParams(mirostat=version), len(logits))
        candidates = Candidates(logits.astype(np.float32))
        mirostat.cut(candidates)
        assert candidates.n >= 1
        mirostat.mu = -1e6
        mirostat.cut(candidates)
        assert candidates.n >= 1
        mirostat.mu = 1e6
        mirostat.cut(candidates)
        assert candidates.n >= 1


@pytest.mark.parametrize("version", [1, 2])
def test_the_temperature_is_fixed(version: int) -> None:
    """llama.cpp's chain for mirostat has a plain temperature, whatever dynatemp_range says."""
    logits = np.random.default_rng(4).normal(0, 2, 300).astype(np.float32)

    def drawn(**changes: float) -> list[int]:
        params = SamplingParams(mirostat=version, temperature=1.5, seed=1, **changes)
        sampler = Sampler(params, len(logits), [], [])
        return [sampler.sample(logits.copy()) for _ in range(100)]

    assert drawn(dynatemp_range=1.4) == drawn()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [2.0, 4.0])
def test_the_mean_surprise_comes_near_tau(version: int, tau: float) -> None:
    logits = (-1.1 * np.log(np.arange(1, 3001))).astype(np.float32)
    params = SamplingParams(
        mirostat=version, mirostat_tau=tau, mirostat_eta=0.1, temperature=1.0, seed=1, top_k=1
    )
    sampler = Sampler(params, len(logits), [], [])
    mirostat = sampler._mirostat
    assert mirostat is not None
    surprises: list[float] = []
    note = mirostat.note
    mirostat.note = lambda surprise: (surprises.append(surprise), note(surprise))[1]  # type: ignore[method-assign]
    for _ in range(1500):
        sampler.sample(logits.copy())
    assert math.isclose(float(np.mean(surprises[300:])), tau, rel_tol=0.08)
