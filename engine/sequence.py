"""All state of one request inside the engine: from its prompt to its last event."""

from __future__ import annotations

import logging
import time

import numpy as np
import numpy.typing as npt

from engine.chooser import Chooser
from engine.errors import EngineError
from engine.generation import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Generation,
    Phase,
    Progress,
    Timings,
    Token,
)
from engine.stop import StopChecker
from engine.tokenizer import StreamDecoder, Tokenizer

log = logging.getLogger("rushlight.engine")


class Sequence:
    """One request on its way. Written by the engine thread only."""

    def __init__(self, generation: Generation, tokenizer: Tokenizer, n_ctx: int) -> None:
        self.generation = generation
        self.prompt_ids = generation.prompt_ids
        self.phase = Phase.QUEUED
        self.n_cached = 0
        self.n_prefilled = 0
        self.n_decoded = 0
        self.n_reading = 0  # prompt tokens of the chunk being read
        self._last: Finished | Failed | None = None
        self.next_id: int | None = None  # sampled, not yet read by the model
        params = generation.params
        room = n_ctx - len(self.prompt_ids)
        self._n_max = room if params.max_tokens is None else min(params.max_tokens, room)
        self._chooser = Chooser(params, self.prompt_ids, tokenizer, generation.options.grammar)
        self._decoder = StreamDecoder(
            tokenizer, self.prompt_ids[-1], generation.options.visible_ids
        )
        self._stop = StopChecker(params.stop)
        self._since = time.monotonic()  # when the phase began
        self._spent: dict[Phase, float] = {}

    def enter(self, phase: Phase) -> None:
        """Go on to the next phase; the clock of the old one stops."""
        now = time.monotonic()
        self._spent[self.phase] = now - self._since
        self.phase, self._since = phase, now

    def progress(self, n_ahead: int, n_in_chunk: int) -> Progress:
        """n_ahead: requests before this one; n_in_chunk: tokens done of the chunk being read."""
        return Progress(
            phase=self.phase,
            n_ahead=n_ahead,
            n_prompt=len(self.prompt_ids),
            n_prefilled=min(self.n_prefilled + n_in_chunk, len(self.prompt_ids)),
            n_decoded=self.n_decoded,
            elapsed_s=time.monotonic() - self._since,
        )

    def choose(self, logits: npt.NDArray[np.float32]) -> int | None:
        """Sample the next token from logits f32[n_vocab] and report it.

        Returns it, or None when the reply has ended.
        """
        choice = self._chooser.choose(logits)
        self.n_decoded += 1
        if choice.is_end:
            self.finish(FinishReason.STOP)
            return None
        text, stopped = self._stop.push(self._decoder.push(choice.token_id))
        self._report(Token(choice.token_id, text, choice.logprob, choice.top))
        if stopped:
            self._end(FinishReason.STOP, "")
            return None
        if choice.is_last:
            self.finish(FinishReason.STOP)
            return None
        if self.n_decoded >= self._n_max:
            self.finish(FinishReason.LENGTH)
            return None
        return choice.token_id

    def finish(self, reason: FinishReason) -> None:
        """End the reply: text that was held back is text after all."""
        text = self._stop.flush()
        self._end(FinishReason.STOP if self._stop.stopped else reason, text)

    def fail(self, error: EngineError) -> None:
        self.enter(Phase.DONE)
        self._last = Failed(error)

    def report_last(self) -> None:
        """Tell that it is over. Not in `finish` and `fail`, so that the engine is free by then."""
        assert self._last is not None, "the request is not over"
        self._report(self._last)

    def _end(self, reason: FinishReason, text: str) -> None:
        self.enter(Phase.DONE)
        spent = self._spent
        timings = Timings(
            queue_s=spent.get(Phase.QUEUED, 0.0),
            prefill_s=spent.get(Phase.PREFILL, 0.0),
            decode_s=spent.get(Phase.DECODE, 0.0),
        )
        self._last = Finished(
            reason, text, len(self.prompt_ids), self.n_cached, self.n_decoded, timings
        )

    def _report(self, event: Event) -> None:
        try:
            self.generation.on_event(event)
        except Exception:  # a listener's bug is not to end the engine
            log.exception("request %d is dropped: its on_event failed", self.generation.id)
            self.generation.cancel()
