"""Log-probabilities: how likely the model finds tokens, before any setting changes its logits.

Does not know which token was chosen why, nor what becomes of the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.kernels.sampling import total
from engine.sampling.truncation import top_k


@dataclass(frozen=True, slots=True)
class LogProbs:
    """The model's distribution over the next token.

    logits: f32[n_vocab], own copy.
    norm:   logarithm of the sum of their exponentials.
    """

    logits: npt.NDArray[np.float32]
    norm: float

    @classmethod
    def of(cls, logits: npt.NDArray[np.float32]) -> LogProbs:
        """Of raw logits f32[n_vocab], which may change afterwards. A NaN counts as -inf."""
        logits = logits.copy()
        highest = logits.max()
        if np.isnan(highest):
            np.nan_to_num(logits, copy=False, nan=-np.inf, neginf=-np.inf)
            highest = logits.max()
        if highest == -np.inf:
            return cls(logits, 0.0)
        return cls(logits, float(highest) + math.log(total(np.exp(logits - highest))))

    def __getitem__(self, token_id: int) -> float:
        """The natural logarithm of one token's probability; may be -inf."""
        return float(self.logits[token_id]) - self.norm

    def top(self, n: int) -> tuple[tuple[int, float], ...]:
        """The n most likely tokens, best first, of equals the lowest id first."""
        n = min(n, len(self.logits))
        if n == 0:
            return ()
        ids = np.sort(top_k(self.logits, n)) if n < len(self.logits) else np.arange(n)
        best_first = ids[np.argsort(-self.logits[ids], kind="stable")]
        return tuple((token_id, self[token_id]) for token_id in best_first.tolist())
