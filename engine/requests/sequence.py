"""All state of one request inside the engine: from its prompt to its last event.

Does not know when it runs: that is the scheduler's.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from engine.cache.chat import Chat
from engine.errors import EngineError, Replaced, TimedOut
from engine.replies.line_limits import LineLimits
from engine.replies.stop import StopChecker
from engine.requests.generation import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Generation,
    Phase,
    Progress,
    PromptScored,
    Timings,
    Token,
)
from engine.sampling.chooser import Choice, Chooser
from engine.sampling.logprobs import LogProbs
from engine.text.tokenizer import StreamDecoder, Tokenizer

log = logging.getLogger("rushlight.engine")


class Interruption(enum.Enum):
    """Why a request ends before its reply does."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    REPLACED = "replaced"


class Sequence:
    """One request on its way. Written by the engine thread only, but for `interrupt`.

    ids:  the prompt and the reply as far as it is chosen. What follows the last one is chosen when
          that is read; only where a grammar leaves no choice are several chosen before.
    chat: what the model has read of it; None while it waits.
    """

    def __init__(self, generation: Generation, tokenizer: Tokenizer, n_ctx: int) -> None:
        self.generation = generation
        self.options = generation.options
        self.prompt_ids = generation.prompt_ids
        self.ids = list(generation.prompt_ids)
        self.chat: Chat | None = None
        self.phase = Phase.QUEUED
        self.submitted_s = time.monotonic()
        self.work_s = 0.0  # that reading its prompt takes, as estimated when it came
        self.n_cached = 0
        self.precise_until = 0  # Model.precise_until of the prompt; 0 = nothing is read yet
        self.n_prefilled = 0
        self.n_decoded = 0
        self.interruption: Interruption | None = None
        self._n_scored = 0  # prompt tokens whose logits were seen
        self.n_reading = 0  # prompt tokens of the chunk being read
        self._last: Finished | Failed | None = None
        self._told: list[Event] = []  # for a client that joins later
        params = generation.params
        room = n_ctx - len(self.prompt_ids)
        # From this place on tokens are read as decoding reads; those before it in chunks.
        self._decoded_from = len(self.prompt_ids) - 1
        self.n_max = room if params.max_tokens is None else min(params.max_tokens, room)
        self._chooser = Chooser(params, self.prompt_ids, tokenizer, generation.options.grammar)
        self._decoder = StreamDecoder(
            tokenizer, self.prompt_ids[-1], generation.options.visible_ids
        )
        self._stop = StopChecker(params.stop)
        self._lines = LineLimits(generation.options.n_indent, generation.options.max_write_s)
        self._since = time.monotonic()  # when the phase began
        self._spent: dict[Phase, float] = {}
        self._timers: list[threading.Timer] = []

    def enter(self, phase: Phase) -> None:
        """Go on to the next phase; the clock of the old one stops."""
        now = time.monotonic()
        self._spent[self.phase] = self._spent.get(self.phase, 0.0) + now - self._since
        self.phase, self._since = phase, now

    @property
    def n_left(self) -> int:
        """Tokens that are not read yet."""
        return len(self.ids) - self._n_read

    @property
    def n_to_prefill(self) -> int:
        """Tokens that are to be read in chunks before the reply goes on."""
        return max(self._decoded_from - self._n_read, 0)

    @property
    def _n_read(self) -> int:
        chat = self.chat  # another thread may ask while it is given back
        return len(chat.ids) if chat else 0

    @property
    def is_scored(self) -> bool:
        """Whether the logits of no prompt token are wanted any more."""
        return not self.options.prompt_logprobs or self._n_scored + 1 >= len(self.prompt_ids)

    @property
    def cacheable_ids(self) -> list[int]:
        """The tokens that may come from the cache. Those to be scored must be read, and without a
        cache all that were not read before a pause.
        """
        if not self.is_scored:
            return self.ids[: self._n_scored + 1]
        if not self.options.use_cache and not self.n_decoded:
            return self.ids[: self.n_prefilled + 1]
        return self.ids

    def score(self, first: int, logits: npt.NDArray[np.float32]) -> None:
        """Report how likely the prompt's tokens are.

        logits: f32[n, n_vocab] after its tokens from place `first` on; the last may be left out.
        """
        logits = logits[max(self._n_scored - first, 0) :]  # after a pause some come again
        n_probs = self.generation.params.n_probs or 0
        logprobs, tops = [], []
        for row, token_id in zip(logits, self.prompt_ids[self._n_scored + 1 :], strict=False):
            log_probs = LogProbs.of(row)
            logprobs.append(log_probs[token_id])
            tops.append(log_probs.top(n_probs))
        self._report(PromptScored(self._n_scored + 1, tuple(logprobs), tuple(tops)))
        self._n_scored += len(logprobs)

    def run_on(self, chat: Chat) -> None:
        """Begin, or go on after a pause."""
        self.chat = chat
        if self.n_decoded:
            self.enter(Phase.DECODE)
            return
        if not self.precise_until:  # nothing is read yet
            self.n_cached = len(chat.ids)
        self.n_prefilled = len(chat.ids)
        self.enter(Phase.PREFILL)

    def note_loaded(self, n: int) -> None:
        """n more tokens came from the store."""
        self.n_prefilled += n
        if not self.precise_until:  # so far nothing was read
            self.n_cached += n

    def pause(self) -> Chat:
        """Leave the model to others. Returns the chat, to go on from later."""
        assert self.chat is not None, "it does not run"
        chat, self.chat = self.chat, None
        # If that is lost meanwhile, it comes back in chunks; what was not read yet is still to be
        # read as decoding reads.
        self._decoded_from = max(self._decoded_from, len(chat.ids))
        self.enter(Phase.QUEUED)
        return chat

    def interrupt(self, why: Interruption) -> None:
        """Have it ended at the next occasion. Any thread; the first reason counts."""
        self.interruption = self.interruption or why

    def report_to(self, generation: Generation) -> None:
        """Tell another client all from the beginning, and from now on. Engine thread only."""
        generation.difference = self.generation.difference
        self.generation = generation
        for event in list(self._told):
            self._tell(event)

    def set_timer(self, after_s: float, expire: Callable[[], None]) -> None:
        """Call `expire` then, from another thread, unless the request has ended."""
        timer = threading.Timer(after_s, expire)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()
        if self.phase is Phase.DONE:  # meanwhile
            timer.cancel()

    def progress(
        self, n_ahead: int, n_in_chunk: int, queue_s: float | None, prefill_s: float | None
    ) -> Progress:
        """n_ahead: requests before this one; n_in_chunk: tokens done of the chunk being read;
        seconds left, as estimated.
        """
        return Progress(
            phase=self.phase,
            n_ahead=n_ahead,
            n_prompt=len(self.prompt_ids),
            n_prefilled=min(self.n_prefilled + n_in_chunk, len(self.prompt_ids)),
            n_decoded=self.n_decoded,
            elapsed_s=time.monotonic() - self._since,
            n_cached=self.n_cached,
            timings=self._timings(),
            queue_s=queue_s,
            prefill_s=prefill_s,
        )

    def choose(self, logits: npt.NDArray[np.float32]) -> None:
        """Sample the next token from logits f32[n_vocab] and report it; may end the reply."""
        if self.n_max:
            self._take(self._chooser.choose(logits))
        else:  # only what is known of the prompt was wanted
            self.enter(Phase.DECODE)
            self.finish(FinishReason.LENGTH)

    def choose_forced(self) -> None:
        """Choose and report the next tokens as far as there is no choice; may end the reply."""
        for choice in self._chooser.forced() if self.n_max else ():
            self._take(choice)
            if self.phase is Phase.DONE:
                return

    def _take(self, choice: Choice) -> None:
        if self.phase is Phase.PREFILL:
            self.enter(Phase.DECODE)
        self.n_decoded += 1
        self.ids.append(choice.token_id)
        if choice.is_end:
            self.finish(FinishReason.STOP)
            return
        text, stopped = self._stop.push(self._decoder.push(choice.token_id))
        text = self._lines.push(text)
        self._report(Token(choice.token_id, text, choice.logprob, choice.top))
        if self._lines.is_over:
            self._end(FinishReason.LENGTH, "")
        elif stopped:
            self._end(FinishReason.STOP, "")
        elif choice.is_last:
            self.finish(FinishReason.STOP)
        elif self.n_decoded >= self.n_max:
            self.finish(FinishReason.LENGTH)

    def end_early(self) -> None:
        """End an interrupted request, with the word that is true of it."""
        if self.interruption is Interruption.REPLACED:
            self.fail(Replaced())
        elif self.interruption is Interruption.TIMEOUT and not self.n_decoded:
            waited_s = time.monotonic() - self.submitted_s
            self.fail(TimedOut(waited_s, self.n_prefilled, len(self.prompt_ids)))
        elif self.interruption is Interruption.TIMEOUT:
            self.finish(FinishReason.TIMEOUT)
        else:
            self.finish(FinishReason.CANCELLED)

    def finish(self, reason: FinishReason) -> None:
        """End the reply: text that was held back is text after all."""
        text = self._lines.push(self._stop.flush())
        if self._lines.is_over:
            reason = FinishReason.LENGTH
        elif self._stop.stopped:
            reason = FinishReason.STOP
        self._end(reason, text)

    def fail(self, error: EngineError) -> None:
        self.enter(Phase.DONE)
        self._last = Failed(error)

    def report_last(self) -> None:
        """Tell that it is over. Not in `finish` and `fail`, so that the engine is free by then."""
        assert self._last is not None, "the request is not over"
        for timer in self._timers:
            timer.cancel()
        self._report(self._last)

    def _end(self, reason: FinishReason, text: str) -> None:
        self.enter(Phase.DONE)
        self._last = Finished(
            reason,
            text,
            len(self.prompt_ids),
            self.n_cached,
            self.n_decoded,
            self._timings(),
            self.generation.difference,
            # One that came with the end of a line did not end a reply that ends before it.
            self._stop.stop_string if reason is FinishReason.STOP else None,
        )

    def _timings(self) -> Timings:
        phase, since_s = self.phase, time.monotonic() - self._since
        spent = {**self._spent, phase: self._spent.get(phase, 0.0) + since_s}
        return Timings(
            queue_s=spent.get(Phase.QUEUED, 0.0),
            prefill_s=spent.get(Phase.PREFILL, 0.0),
            decode_s=spent.get(Phase.DECODE, 0.0),
        )

    def _report(self, event: Event) -> None:
        self._told.append(event)
        self._tell(event)

    def _tell(self, event: Event) -> None:
        try:
            self.generation.on_event(event)
        except Exception:  # a listener's bug is not to end the engine
            log.exception("request %d is dropped: its on_event failed", self.generation.id)
            self.generation.cancel()
