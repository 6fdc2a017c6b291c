"""The cuts: which tokens stay possible, by their probabilities.

Each cut is its published definition, as llama.cpp has it, in a few passes over the vocabulary:
nothing is sorted but what lies at the rim of a cut. Does not know in which order they are made.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from engine.kernels.sampling import deviation, divide, dot_below, find, put_outside, total

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_FEW = 4096  # so many are sorted at once
_ROUNDING = 1 - 1e-9  # a share that is reached but for this is reached
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
        if 16 * np.count_nonzero(mask) < len(mask):
            self.take(np.flatnonzero(mask))
            return
        put_outside(self.logits, mask, -np.inf)  # faster than to pick out most of them
        if self._weights is not None:
            put_outside(self._weights, mask, 0)

    def take_only(self, token_id: int) -> None:
        """Keep this one, which may have been cut already."""
        self.ids, self.logits = np.array([token_id], np.int64), np.zeros(1, np.float32)
        self._weights = None

    def temper(self, temperature: float) -> None:
        """Spread the probabilities, or concentrate them where it is below 1."""
        if temperature == 1:
            return
        # Logits that differ do so by 1e-6 and more: colder than that changes nothing.
        cold = np.float32(max(temperature, 1e-6))
        with np.errstate(over="ignore"):
            self.logits = (self.logits - self.logits.max()) / cold
        self._weights = None

    def entropy(self) -> tuple[float, float]:
        """The entropy in nats, and the logit of a token that would be exactly as surprising."""
        weights, best = self.weights, float(self.logits.max())
        sum_ = total(weights)
        mean = dot_below(weights, self.logits, best) / sum_
        return math.log(sum_ / float(weights.max())) - mean, best + mean


def top_n_sigma(candidates: Candidates, n: float) -> None:
    """Keep logits at most n standard deviations of all below the best."""
    logits = candidates.logits
    best = logits.max()
    candidates.keep(logits >= np.float32(float(best) - n * deviation(logits, best)))


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
    """Indices of the k largest, first ones of equals; in no order that matters. 0 < k < len."""
    # Lay the logits out in 2 k columns or more. Each column's maximum is some logit, so at least k
    # logits reach the k-th largest maximum, and seldom many more. With one row it is exact.
    n_rows = max(min(len(logits) // (2 * k), 64), 1)
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
    high = keys.max()
    low = np.float32(max(_lowest(keys), high - _DEPTH))
    mask: Mask
    if low == high:
        mask = keys == high  # the others are -inf
        weights = weights.copy()
        put_outside(weights, mask, 0)
        mask[find(weights, wanted * _ROUNDING) + 1 :] = False
    elif len(keys) <= _FEW:
        order = np.argsort(-keys, kind="stable")
        mask = np.zeros(len(keys), np.bool_)
        mask[order[: find(weights[order], wanted * _ROUNDING) + 1]] = True
    else:
        mask, rim, missing = divide(keys, weights, high, low, wanted)
        mask[rim] = _fewest(keys[rim], weights[rim], missing)
    return mask


def _lowest(keys: Floats) -> np.float32:
    """The lowest that is not -inf."""
    low: np.float32 = keys.min()
    if low == -np.inf:
        possible = keys.copy()
        put_outside(possible, keys > low, np.inf)
        low = possible.min()
    return low


def _at_least(min_keep: int, mask: Mask, keys: Floats) -> Mask:
    """The mask, with the `min_keep` largest keys in it."""
    if min_keep >= len(mask):
        mask[:] = True
    elif min_keep > 1:
        mask[top_k(keys, min_keep)] = True
    return mask
