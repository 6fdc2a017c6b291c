"""Mirostat, versions 1 and 2: cuts so that the text's mean surprise comes near tau bits.

From "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity" (Basu et al.).
"""

from __future__ import annotations

import math

import numpy as np

from engine.kernels.sampling import total
from engine.sampling.sampling_params import SamplingParams
from engine.sampling.truncation import Candidates, cut_top_k, top_k

_N_FITTED = 100  # most likely tokens to which version 1 fits Zipf's law


class Mirostat:
    """One request's aim: how surprising its next token may be. Temperature is applied before."""

    def __init__(self, params: SamplingParams, n_vocab: int) -> None:
        self._tau, self._eta = params.mirostat_tau, params.mirostat_eta
        self._n_vocab = n_vocab
        self._cut = self._by_zipf if params.mirostat == 1 else self._by_surprise
        self.mu = 2 * self._tau  # bits

    def cut(self, candidates: Candidates) -> None:
        """Keep what is not too surprising, at least the best."""
        self._cut(candidates)

    def note(self, surprise: float) -> None:
        """Correct the aim by the surprise, in bits, of the token chosen from what `cut` kept."""
        self.mu -= self._eta * (surprise - self._tau)

    def _by_surprise(self, candidates: Candidates) -> None:
        """Version 2: drop tokens that are more surprising than mu."""
        weights = candidates.weights
        least = 2.0 ** min(-self.mu, 0.0) * total(weights)
        candidates.keep(weights >= min(least, float(weights.max())))

    def _by_zipf(self, candidates: Candidates) -> None:
        """Version 1: keep the k best, k from mu and the exponent of Zipf's law."""
        cut_top_k(candidates, self._k(_zipf_exponent(candidates)))

    def _k(self, exponent: float) -> int:
        epsilon = exponent - 1
        try:
            if abs(epsilon) < 1e-9:  # the limit of the formula below
                return max(int(2.0**self.mu / math.log(self._n_vocab)), 1)
            k = epsilon * 2.0**self.mu / (1 - self._n_vocab**-epsilon)
            return max(int(k ** (1 / exponent)), 1)
        except (OverflowError, ZeroDivisionError):  # all as likely: no k is too many
            return self._n_vocab


def _zipf_exponent(candidates: Candidates) -> float:
    """Least squares, through the origin: log(p_i / p_(i+1)) over log((i + 1) / i)."""
    logits = candidates.logits
    best = logits[top_k(logits, _N_FITTED)] if len(logits) > _N_FITTED else logits
    best = np.sort(best[best != -np.inf].astype(np.float64))[::-1]
    rank = np.arange(1, len(best))
    steps = np.log((rank + 1) / rank)
    return float(np.dot(steps, best[:-1] - best[1:]) / np.dot(steps, steps)) if len(steps) else 1.0
