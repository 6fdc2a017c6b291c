"""The cuts: which tokens stay possible, by their probabilities.

Each cut is its published definition, as llama.cpp has it, in a few passes over the vocabulary:
nothing is sorted but what lies at the rim of a cut. Does not know in which order they are made.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from engine.kernels.sampling import divide, find, total

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_FEW = 4096  # so many are sorted at once
_DEPTH = 64.0  # below the largest key by more: e^-64 of its probability, so seldom where a cut is


class Candidates:
    """The tokens that may still be chosen.

    logits: f32[n]; -inf = out.
    ids:    i64[n] token ids; None = the index is the id.
    """

    def __init__(self, logits: Floats, ids: Ids | None = None) -> None:
        """At least one logit is finite, none is NaN or +inf."""
        self.logits, self.ids = logits, ids
        self._weights: Floats | None = None

    @property
    def weights(self) -> Floats:
        """f32[n] probabilities, not normalised: the largest was 1 when first asked for."""
        if self._weights is None:
            with np.errstate(over="ignore"):  # to -inf, which is as good
                self._weights = np.exp(self.logits - self.logits.max())
        return self._weights

    @property
    def n(self) -> int:
        """How many are possible."""
        return int(np.count_nonzero(self.logits != -np.inf))

    def take(self, indices: Ids) -> None:
        """Keep only these."""
        self.ids = indices if self.ids is None else self.ids[indices]
        self.logits = self.logits[indices]
        if self._weights is not None:
            self._weights = self._weights[indices]

    def keep(self, mask: Mask) -> None:
        """Keep only those for which bool[n] is true."""
        if 4 * np.count_nonzero(mask) < len(mask):
            self.take(np.flatnonzero(mask))
            return
        out = ~mask  # faster than to pick out most of them
        np.copyto(self.logits, -np.inf, where=out)
        if self._weights is not None:
            np.copyto(self._weights, 0, where=out)

    def entropy(self) -> tuple[float, float]:
        """The entropy in nats, and the logit of a token that would be exactly as surprising."""
        weights, best = self.weights, float(self.logits.max())
        sum_ = total(weights)
        # Relative to the best; those far below count nothing, and -inf times 0 would be NaN.
        below = np.maximum(self.logits - np.float32(best), np.float32(-200))
        mean = float(np.dot(weights, below)) / sum_
        return math.log(sum_ / float(weights.max())) - mean, best + mean


def top_n_sigma(candidates: Candidates, n: float) -> None:
    """Keep logits at most n standard deviations of all below the best."""
    logits = candidates.logits
    possible = logits if np.isfinite(logits.min()) else logits[logits != -np.inf]
    deviation = float(np.std(possible, dtype=np.float64 if len(possible) <= _FEW else None))
    candidates.keep(logits >= np.float32(float(logits.max()) - n * deviation))


def cut_top_k(candidates: Candidates, k: int) -> None:
    """Keep the k best."""
    if 0 < k < len(candidates.logits):
        candidates.take(top_k(candidates.logits, k))


def typical(candidates: Candidates, p: float, min_keep: int) -> None:
    """Keep the tokens whose surprise is nearest to the entropy, until they have p between them."""
    _, centre = candidates.entropy()
    _keep_share(candidates, -np.abs(candidates.logits - np.float32(centre)), p, min_keep)


def top_p(candidates: Candidates, p: float, min_keep: int) -> None:
    """Keep the fewest most likely tokens that have p between them."""
    _keep_share(candidates, candidates.logits, p, min_keep)


def min_p(candidates: Candidates, p: float, min_keep: int) -> None:
    """Keep the tokens that are at least p times as likely as the best."""
    bound = float(candidates.logits.max()) + math.log(p)
    mask = candidates.logits >= np.float32(bound - 1e-6 * abs(bound))
    candidates.keep(_at_least(min_keep, mask, candidates.logits))


def xtc(candidates: Candidates, threshold: float, min_keep: int) -> None:
    """Drop all tokens that have `threshold` of the probability but the least likely of these."""
    weights = candidates.weights
    likely = np.flatnonzero(weights >= threshold * total(weights))
    if len(likely) < 2 or candidates.n - len(likely) + 1 < min_keep:
        return
    mask = np.ones(len(weights), np.bool_)
    mask[likely] = False
    mask[likely[weights[likely].argmin()]] = True
    candidates.keep(mask)


def top_k(logits: Floats, k: int) -> Ids:
    """Indices of the k largest, first ones of equals; in no order that matters. k < len(logits)."""
    # Lay the logits out in 2 k columns or more. Each column's maximum is some logit, so at least k
    # logits reach the k-th largest maximum, and seldom many more. With one row it is exact.
    n_rows = max(min(len(logits) // (2 * k), 64), 1) if k else 1
    n_columns = len(logits) // n_rows
    maxima = logits[: n_rows * n_columns].reshape(n_rows, n_columns).max(axis=0)
    maxima.partition(n_columns - k)
    bound = maxima[n_columns - k]
    above = np.flatnonzero(logits > bound)
    if len(above) > k:
        return above[top_k(logits[above], k)]
    equal = np.flatnonzero(logits == bound)
    return np.concatenate((above, equal[: k - len(above)]))


def _keep_share(candidates: Candidates, keys: Floats, p: float, min_keep: int) -> None:
    weights = candidates.weights
    mask = _fewest(keys, weights, p * total(weights))
    candidates.keep(_at_least(min_keep, mask, keys))


def _fewest(keys: Floats, weights: Floats, wanted: float) -> Mask:
    """bool[n]: the fewest that have `wanted` of the weights between them, at least one: those with
    the largest keys, the first ones of equals.
    """
    n, high = len(keys), keys.max()
    low = max(float(keys.min()), float(high) - _DEPTH)
    if n > _FEW and low < high:
        mask: Mask
        mask, rim, missing = divide(keys, weights, high, np.float32(low), wanted)
        mask[rim] = _fewest(keys[rim], weights[rim], missing)
        return mask
    order = np.arange(n) if low == high else np.argsort(-keys, kind="stable")
    reached = find(weights[order], wanted * (1 - 1e-9)) + 1
    mask = np.zeros(n, np.bool_)
    mask[order[:reached]] = True
    return mask


def _at_least(min_keep: int, mask: Mask, keys: Floats) -> Mask:
    """The mask, with the `min_keep` largest keys in it."""
    if min_keep >= len(mask):
        mask[:] = True
    elif min_keep > 1:
        mask[top_k(keys, min_keep)] = True
    return mask
