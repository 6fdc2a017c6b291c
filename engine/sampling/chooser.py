"""Chooser: one request's way from logits to a token: grammar, sampler, log-probabilities.

Does not know text: what a token looks like and whether a stop string ends the reply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from engine.grammar.grammar import Grammar
from engine.sampling.logprobs import LogProbs
from engine.sampling.sampler import Sampler
from engine.sampling.sampling_params import SamplingParams
from engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token.

    logprob, top: as in generation.Token.
    is_end:  it ends the reply and is no part of its text.
    is_last: it completes what the grammar allows; nothing may follow.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    is_end: bool = False
    is_last: bool = False


class Chooser:
    """Chooses the tokens of one request. Raises InvalidRequest when the settings allow none."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        tokenizer: Tokenizer,
        grammar: Grammar | None = None,
    ) -> None:
        self._n_probs, self._probs_of_drawing = params.n_probs, params.post_sampling_probs
        self._grammar = grammar.start() if grammar else None
        self._end_ids = params.stop_token_ids | tokenizer.eog_ids
        if params.ignore_eos and not grammar:  # a grammar's end is an end all the same
            self._end_ids = params.stop_token_ids
        self._sampler = Sampler(
            params,
            tokenizer.n_vocab,
            prompt_ids,
            tokenizer.eog_ids,
            tokenizer.vocabulary.bytes_of,
        )

    def choose(self, logits: npt.NDArray[np.float32]) -> Choice:
        """The next token. logits: f32[n_vocab], modified in place.

        Raises EngineError when no token is possible.
        """
        n_probs = self._n_probs
        log_probs = None if n_probs is None or self._probs_of_drawing else LogProbs.of(logits)
        allowed = self._grammar.allowed() if self._grammar else None
        token_id = self._sampler.sample(logits, allowed)
        self._sampler.accept(token_id)
        choice = self._take(token_id)
        if n_probs is None:
            return choice
        if log_probs is None:
            log_probs = LogProbs.of(self._sampler.drawn_from())
        top = log_probs.top(n_probs)
        if self._probs_of_drawing:
            top = tuple((other, logprob) for other, logprob in top if logprob > -math.inf)
        return replace(choice, logprob=log_probs[token_id], top=top)

    def forced(self) -> Iterator[Choice]:
        """The next tokens as far as the grammar leaves no choice: those that `choose` would choose,
        whatever the logits. None where log-probabilities are wanted, as these need the logits.
        """
        if self._grammar and self._n_probs is None:
            for token_id in self._grammar.forced():
                self._sampler.accept_only(token_id)
                yield self._take(token_id)

    def _take(self, token_id: int) -> Choice:
        is_end = token_id in self._end_ids
        is_last = False
        if self._grammar and not is_end:
            self._grammar.accept(token_id)
            is_last = self._grammar.is_over
        return Choice(token_id, is_end=is_end, is_last=is_last)
