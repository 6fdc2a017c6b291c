"""How the next token is chosen from the logits: one request's settings, applied in order.

The order is llama.cpp's: bias, penalties, DRY, top_n_sigma, top_k, typical_p, top_p, min_p, XTC,
temperature, unless a request says otherwise; with mirostat bias, penalties, DRY, temperature,
mirostat. Does not know text, stop strings or how grammars work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from engine.errors import EngineError
from engine.kernels.sampling import apply_bitmask, find, total
from engine.sampling.infill_cut import infill
from engine.sampling.mirostat import Mirostat
from engine.sampling.penalties import Bias, Dry, Repetition
from engine.sampling.sampling_params import INFILL, SamplingParams
from engine.sampling.truncation import (
    Candidates,
    cut_top_k,
    min_p,
    top_n_sigma,
    top_p,
    typical,
    xtc,
)

Logits = npt.NDArray[np.float32]

# The logit of a banned token where a grammar has the last word: finite, as it may allow no other.
_UNWANTED = -1e30


class Sampler:
    """Chooses the tokens of one request, one at a time: `sample` chooses, `accept` takes note.

    n_vocab:    length of the logits.
    prompt_ids: the prompt; its end counts for the penalties.
    eog_ids:    the model's own end tokens, which `ignore_eos` bans.
    bytes_of:   the bytes of a token, by id; for DRY and the infill sampler.
    `logit_bias` and `stop_token_ids` may name only tokens below `n_vocab`.
    Raises InvalidRequest when `logit_bias` and `ignore_eos` allow no token.
    """

    def __init__(
        self,
        params: SamplingParams,
        n_vocab: int,
        prompt_ids: Sequence[int],
        eog_ids: Iterable[int],
        bytes_of: Callable[[int], bytes] = lambda token_id: b"",
    ) -> None:
        self._params = params = params.in_force()
        seed = None if params.seed is None else params.seed % 2**64
        self._random = np.random.Generator(np.random.PCG64(seed))
        eog = {token_id for token_id in eog_ids if token_id < n_vocab}
        self._bias = Bias(params, eog | params.stop_token_ids, eog if params.ignore_eos else ())
        self._repetition = Repetition(params, prompt_ids)
        self._dry = Dry(params, prompt_ids, bytes_of)
        self._mirostat = Mirostat(params, n_vocab) if params.mirostat else None
        self._n_accepted = 0
        self._infills = INFILL in params.samplers and not params.mirostat
        self._greedy = not self._infills and (
            params.temperature == 0 or (not params.mirostat and _keeps_the_best(params))
        )
        self._n_vocab = n_vocab
        self._drawn_from: Candidates | None = None
        self._best = 0
        self._end_ids = np.array(sorted(eog), np.int64)
        self._bytes_of = bytes_of

    def sample(self, logits: Logits, allowed: npt.NDArray[np.uint32] | None = None) -> int:
        """The next token's id. logits: f32[n_vocab], modified in place.

        allowed: a bit for each token that may be chosen, lowest first. It wins over every ban.
        Raises EngineError when no token is possible: all logits are NaN or -inf, or banned.
        """
        may_end = self._n_accepted >= self._params.min_tokens
        self._bias.apply(logits, may_end, -np.inf if allowed is None else _UNWANTED)
        self._repetition.apply(logits)
        self._dry.apply(logits)
        if allowed is not None:
            apply_bitmask(logits, allowed)
        self._best = best = _argmax(logits)
        if self._greedy:
            return best
        end = self._likeliest_end(logits) if self._infills else None
        candidates = Candidates(logits)
        if self._mirostat:
            return self._draw_by_mirostat(self._mirostat, candidates)
        self._cut(candidates, end)
        return self._draw(candidates)[0]

    def drawn_from(self) -> Logits:
        """f32[n_vocab]: the logits that the last token was drawn by; -inf for what was cut."""
        logits = np.full(self._n_vocab, -np.inf, np.float32)
        if self._drawn_from is None:
            logits[self._best] = 0.0
        elif self._drawn_from.ids is None:
            logits[:] = self._drawn_from.logits
        else:
            logits[self._drawn_from.ids] = self._drawn_from.logits
        return logits

    def accept(self, token_id: int) -> None:
        """Count a token as part of the text: the one that `sample` gave, or another."""
        self._n_accepted += 1
        self._repetition.accept(token_id)
        self._dry.accept(token_id)

    def accept_only(self, token_id: int) -> None:
        """Count a token that was the only possible one, as `sample` and `accept` would."""
        # What is drawn changes nothing here; later tokens are to fall as if it had been drawn for.
        if self._mirostat and not self._greedy:
            self._mirostat.note(0.0)  # no surprise
            self._random.random()
        elif not self._greedy:
            self._tries_xtc()
            self._random.random()
        self.accept(token_id)

    def _cut(self, candidates: Candidates, end: int | None) -> None:
        """end: the end token that may be chosen, if any may."""
        params = self._params
        for name in params.samplers:
            match name:
                case "top_n_sigma" if params.top_n_sigma > 0:
                    top_n_sigma(candidates, params.top_n_sigma)
                case "top_k":
                    cut_top_k(candidates, params.top_k)
                case "typ_p" if params.typical_p < 1:
                    typical(candidates, params.typical_p, params.min_keep)
                case "top_p" if params.top_p < 1:
                    top_p(candidates, params.top_p, params.min_keep)
                case "min_p" if params.min_p > 0:
                    min_p(candidates, params.min_p, params.min_keep)
                case "xtc" if self._tries_xtc():
                    xtc(candidates, params.xtc_threshold, params.min_keep)
                case "temperature":
                    candidates.temper(self._temperature(candidates))
                case "infill":
                    infill(candidates, self._end_ids, end, self._bytes_of)

    def _likeliest_end(self, logits: Logits) -> int | None:
        ends = logits[self._end_ids]
        if not len(ends) or not ends.max() > _UNWANTED:
            return None
        return int(self._end_ids[ends.argmax()])

    def _tries_xtc(self) -> bool:
        params = self._params
        return (
            params.xtc_threshold <= 0.5
            and params.xtc_probability > 0
            and self._random.random() < params.xtc_probability
        )

    def _temperature(self, candidates: Candidates) -> float:
        """The temperature; with `dynatemp_range` the higher, the nearer to equal all tokens are."""
        params = self._params
        n = candidates.n if params.dynatemp_range > 0 else 0
        if n <= 1:
            return params.temperature
        share = max(candidates.entropy()[0], 0.0) / math.log(n)
        low = max(params.temperature - params.dynatemp_range, 0.0)
        high = params.temperature + params.dynatemp_range
        return low + (high - low) * math.pow(share, params.dynatemp_exponent)

    def _draw(self, candidates: Candidates) -> tuple[int, float]:
        """A token's id, and its probability in what it was drawn from."""
        self._drawn_from = candidates
        weights = candidates.weights
        sum_ = total(weights)
        chosen = find(weights, self._random.random() * sum_)
        ids = candidates.ids
        return int(chosen if ids is None else ids[chosen]), float(weights[chosen]) / sum_

    def _draw_by_mirostat(self, mirostat: Mirostat, candidates: Candidates) -> int:
        candidates.temper(self._params.temperature)
        mirostat.cut(candidates)
        token_id, probability = self._draw(candidates)
        mirostat.note(-math.log2(probability))
        return token_id


def _keeps_the_best(params: SamplingParams) -> bool:
    """Whether the cuts leave only the likeliest token, so that nothing need be computed."""
    for name in params.samplers:
        match name:
            case "typ_p" if params.typical_p < 1:
                return False  # it may drop the likeliest, as XTC may
            case "xtc" if params.xtc_probability > 0 and params.xtc_threshold <= 0.5:
                return False
            case "top_k" if params.top_k == 1:
                return True
            case "top_p" if params.top_p == 0 and params.min_keep <= 1:
                return True
    return False


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
