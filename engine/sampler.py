"""How the next token is chosen from the logits.

Sampler is one request's state: its random numbers and the recent tokens that penalties look at.
Order as in llama.cpp: bias, penalties, top_k, top_p, min_p, temperature. Nothing is sorted. Does
not know text or stop strings.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from engine.errors import EngineError, InvalidRequest
from engine.kernels.sampling import draw, nucleus
from engine.sampling_params import MAX_BIAS, SamplingParams

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class Sampler:
    """Chooses the tokens of one request, one at a time: `sample` chooses, `accept` takes note.

    n_vocab:    length of the logits.
    prompt_ids: the prompt; its end counts for the penalties.
    eog_ids:    the tokens that `ignore_eos` bans.
    `logit_bias` may name only tokens below `n_vocab`: the engine has refused others by then.
    Raises InvalidRequest when `logit_bias` and `ignore_eos` allow no token.
    """

    def __init__(
        self,
        params: SamplingParams,
        n_vocab: int,
        prompt_ids: Sequence[int],
        eog_ids: Iterable[int],
    ) -> None:
        self._params = params
        self._greedy = params.temperature == 0 or params.top_p == 0 or params.top_k == 1
        seed = None if params.seed is None else params.seed % 2**64
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._window = _Window(params, prompt_ids)

        bias = params.logit_bias
        banned = {token_id for token_id, value in bias.items() if value == -MAX_BIAS}
        if params.ignore_eos:
            banned |= {token_id for token_id in eog_ids if token_id < n_vocab}
        forced = {token_id for token_id, value in bias.items() if value == MAX_BIAS}
        if forced and forced <= banned:
            raise InvalidRequest(
                "logit_bias: allows only end tokens, which ignore_eos bans", param="logit_bias"
            )
        self._banned: Ids = np.array(sorted(banned), np.int64)
        self._forced: Ids | None = np.array(sorted(forced - banned), np.int64) if forced else None
        self._bias_ids: Ids = np.array(list(bias), np.int64)
        self._bias: Logits = np.array(list(bias.values()), np.float32)

    def sample(self, logits: Logits) -> int:
        """The next token's id. logits: f32[n_vocab], modified in place.

        Raises EngineError when no token is possible: all logits are NaN or -inf, or banned.
        """
        params = self._params
        logits[self._bias_ids] += self._bias
        logits[self._banned] = -np.inf
        self._window.penalise(logits)
        ids = self._forced
        if ids is not None:
            logits = logits[ids]

        best = _argmax(logits)
        if self._greedy:
            return best if ids is None else int(ids[best])
        best_logit = logits[best]
        if 0 < params.top_k < len(logits):
            top = _top_k(logits, params.top_k)
            ids, logits = top if ids is None else ids[top], logits[top]
        with np.errstate(over="ignore"):  # to -inf, which is as good
            below = logits - best_logit
            if params.top_p < 1 or params.min_p > 0:
                keep = _likely(np.exp(below), params.top_p, params.min_p)
                if 4 * np.count_nonzero(keep) < len(keep):
                    kept = np.flatnonzero(keep)
                    ids, below = kept if ids is None else ids[kept], below[kept]
                else:  # faster than to pick out most of them
                    below[~keep] = -np.inf
            # Logits that differ do so by 1e-6 and more: colder than that changes nothing.
            weights = np.exp(below / np.float32(max(params.temperature, 1e-6)))
        chosen = draw(weights, self._random.random() * float(weights.sum(dtype=np.float64)))
        return int(chosen if ids is None else ids[chosen])

    def accept(self, token_id: int) -> None:
        """Count a token as part of the text: the one that `sample` gave, or another."""
        self._window.add(token_id)


class _Window:
    """The last tokens and how often each stands among them; what the penalties make of it."""

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int]) -> None:
        self._repeat = np.float32(params.repeat_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        off = self._repeat == 1 and self._presence == 0 and self._frequency == 0
        self._size = 0 if off else params.repeat_last_n
        first = 0 if self._size < 0 else max(len(prompt_ids) - self._size, 0)
        self._recent = deque(prompt_ids[first:])
        self._counts = Counter(self._recent)

    def add(self, token_id: int) -> None:
        if self._size == 0:
            return
        self._recent.append(token_id)
        self._counts[token_id] += 1
        if 0 < self._size < len(self._recent):
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]

    def penalise(self, logits: Logits) -> None:
        n = len(self._counts)
        if n == 0:
            return
        ids = np.fromiter(self._counts, np.int64, n)
        counts = np.fromiter(self._counts.values(), np.float32, n)
        seen = logits[ids]
        seen = np.where(seen > 0, seen / self._repeat, seen * self._repeat)
        logits[ids] = seen - counts * self._frequency - self._presence


def _argmax(logits: Logits) -> int:
    """Index of the largest, the first of equals. NaN counts as -inf and inf as the largest f32."""
    best = int(logits.argmax())
    if np.isfinite(logits[best]):
        return best  # a NaN anywhere would have come out as the largest
    np.nan_to_num(logits, copy=False, nan=-np.inf, neginf=-np.inf)
    best = int(logits.argmax())
    if logits[best] == -np.inf:
        raise EngineError("no token is possible: every logit is NaN, minus infinity or banned")
    return best


def _top_k(logits: Logits, k: int) -> Ids:
    """Indices of the k largest, first ones of equals; in no order that matters. k < len(logits)."""
    # Lay the logits out in 2 k columns or more. Each column's maximum is some logit, so at least k
    # logits reach the k-th largest maximum, and seldom many more. With one row it is exact.
    n_rows = max(min(len(logits) // (2 * k), 64), 1)
    n_columns = len(logits) // n_rows
    maxima = logits[: n_rows * n_columns].reshape(n_rows, n_columns).max(axis=0)
    maxima.partition(n_columns - k)
    bound = maxima[n_columns - k]
    above = np.flatnonzero(logits > bound)
    if len(above) > k:
        return above[_top_k(logits[above], k)]
    equal = np.flatnonzero(logits == bound)
    return np.concatenate((above, equal[: k - len(above)]))


def _likely(probs: Logits, top_p: float, min_p: float) -> npt.NDArray[np.bool_]:
    """bool[n] what both cuts keep, at least one. probs: f32[n], relative to the best one's 1.

    top_p keeps the fewest most likely ones that have that share of the sum; of equals the first.
    """
    keep = probs >= np.float32(min_p)
    if top_p < 1:
        bits = probs.view(np.int32)
        limit, missing = nucleus(probs, top_p * float(probs.sum(dtype=np.float64)))
        at_limit = bits == limit
        places = np.flatnonzero(at_limit)
        if limit and len(places):
            n_needed = math.ceil(missing / float(probs[places[0]]) - 1e-9)
            if n_needed < len(places):
                at_limit[places[n_needed] :] = False
        keep &= (bits > limit) | at_limit
    return keep
