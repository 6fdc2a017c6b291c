"""What changes single logits: bias, bans, and penalties for tokens that stand in the text already.

Repetition penalties count tokens; DRY looks for sequences. Neither knows how a token is chosen.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidRequest
from engine.kernels.sampling import repetitions
from engine.sampling.sampling_params import MAX_BIAS, SamplingParams

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class Bias:
    """logit_bias, and the end tokens that may not be chosen at all or not yet.

    end_ids:   tokens that end the reply, which may not be chosen while `may_end` is false.
    never_ids: tokens that may never be chosen.
    Raises InvalidRequest when no token is left.
    """

    def __init__(
        self, params: SamplingParams, end_ids: Iterable[int], never_ids: Iterable[int]
    ) -> None:
        bias = params.logit_bias
        never = {token_id for token_id, value in bias.items() if value == -MAX_BIAS}
        never.update(never_ids)
        forced = {token_id for token_id, value in bias.items() if value == MAX_BIAS}
        if forced and forced <= never:
            raise InvalidRequest(
                "logit_bias: allows only end tokens, which ignore_eos bans", param="logit_bias"
            )
        self._only: Ids = np.array(sorted(forced - never), np.int64)
        self._never: Ids = np.array(sorted(never), np.int64)
        self._ends: Ids = np.array(sorted(end_ids), np.int64)
        self._ids: Ids = np.array(list(bias), np.int64)
        self._bias: Logits = np.array(list(bias.values()), np.float32)

    def apply(self, logits: Logits, may_end: bool, banned: float = -np.inf) -> None:
        """Add the bias to f32[n_vocab]. banned: the logit of what may not be chosen."""
        logits[self._ids] += self._bias
        if len(self._only):
            only = logits[self._only]
            logits[:] = banned
            logits[self._only] = only
        logits[self._never] = banned
        if not may_end:
            logits[self._ends] = banned


class Repetition:
    """repeat_, presence_ and frequency_penalty, over a window of the last tokens."""

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int]) -> None:
        self._repeat = np.float32(params.repeat_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        off = self._repeat == 1 and self._presence == 0 and self._frequency == 0
        self._size = 0 if off else params.repeat_last_n
        first = 0 if self._size < 0 else max(len(prompt_ids) - self._size, 0)
        self._recent = deque(prompt_ids[first:])
        self._counts = Counter(self._recent)

    def accept(self, token_id: int) -> None:
        if self._size == 0:
            return
        self._recent.append(token_id)
        self._counts[token_id] += 1
        if 0 < self._size < len(self._recent):
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]

    def apply(self, logits: Logits) -> None:
        n = len(self._counts)
        if n == 0:
            return
        ids = np.fromiter(self._counts, np.int64, n)
        counts = np.fromiter(self._counts.values(), np.float32, n)
        seen = logits[ids]
        seen = np.where(seen > 0, seen / self._repeat, seen * self._repeat)
        logits[ids] = seen - counts * self._frequency - self._presence


_MAX_GROWTH: Final = 88.7  # e to that is about the largest f32


class Dry:
    """DRY ("don't repeat yourself"): penalises tokens that would go on with a repetition.

        text   ... a b c d ... a b c      d loses multiplier * base^(3 - allowed_length)

    A sequence holds no breaker, be that a token, part of one, or spread over several; a token that
    holds one is never penalised.
    bytes_of: the bytes of a token, by id.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        bytes_of: Callable[[int], bytes],
    ) -> None:
        self._multiplier, self._base = params.dry_multiplier, params.dry_base
        self._allowed = params.dry_allowed_length
        size = params.dry_penalty_last_n
        self._size = size if size >= 0 else 2**62
        self._off = self._multiplier == 0 or self._base < 1 or size == 0
        self._breakers = [text.encode() for text in params.dry_sequence_breakers]
        self._n_tail = max([len(breaker) for breaker in self._breakers], default=1) - 1
        self._bytes_of = bytes_of
        self._ids = array("q")
        self._n_unbroken = 0  # tokens since the last breaker
        self._tail = b""  # the last bytes of the text, where a breaker may have begun
        if not self._off:
            for token_id in prompt_ids[-self._size :]:
                self.accept(token_id)

    def accept(self, token_id: int) -> None:
        if self._off:
            return
        self._ids.append(token_id)
        text = self._tail + self._bytes_of(token_id)
        n_old = len(self._tail)
        broken = any(text.find(b, max(n_old + 1 - len(b), 0)) >= 0 for b in self._breakers)
        self._n_unbroken = 0 if broken else self._n_unbroken + 1
        self._tail = text[max(len(text) - self._n_tail, 0) :]

    def apply(self, logits: Logits) -> None:
        if self._off or self._n_unbroken < self._allowed:
            return
        ids = np.frombuffer(self._ids, np.int64)[-self._size :]
        if len(ids) <= self._allowed:
            return
        lengths = np.minimum(repetitions(ids), self._n_unbroken)
        longest: dict[int, int] = {}
        for i in np.flatnonzero(lengths >= self._allowed).tolist():
            follower = int(ids[i + 1])
            longest[follower] = max(longest.get(follower, 0), int(lengths[i]))
        for token_id, length in longest.items():
            if not any(breaker in self._bytes_of(token_id) for breaker in self._breakers):
                logits[token_id] -= np.float32(self._penalty(length - self._allowed))

    def _penalty(self, exponent: int) -> float:
        return self._multiplier * math.exp(min(exponent * math.log(self._base), _MAX_GROWTH))
