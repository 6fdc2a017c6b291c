"""Worker: the one thread that runs requests in bounded steps, and the queue in front of it.

While it lives nobody else touches the model and its chat. It hears of requests through `submit` and
tells of them through their on_event. Whether a request makes sense was checked before.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from engine.chat import Chat
from engine.errors import EngineClosed, EngineError, EngineFailed, QueueFull
from engine.generation import FinishReason, Generation, Phase, Progress
from engine.model import Cancelled, Model
from engine.sequence import Sequence
from engine.tokenizer import Tokenizer

log = logging.getLogger("rushlight.engine")


class Worker:
    """Serves requests first come, first served.

    max_waiting: requests that may wait behind the running one.
    """

    def __init__(self, model: Model, chat: Chat, tokenizer: Tokenizer, max_waiting: int) -> None:
        self._model, self._chat, self._tokenizer = model, chat, tokenizer
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # something to do, or closing
        self._waiting: deque[Sequence] = deque()
        self._running: Sequence | None = None
        self._closing = False
        self._failure: EngineFailed | None = None
        self._thread = threading.Thread(target=self._serve, name="rushlight-engine", daemon=True)
        self._thread.start()

    # --- for every thread -----------------------------------------------------------------------

    def submit(self, generation: Generation) -> Generation:
        """Queue a request. Raises QueueFull, EngineClosed, EngineFailed or InvalidRequest."""
        sequence = Sequence(generation, self._tokenizer, self._chat.n_ctx)
        generation._progress = lambda: self._progress(sequence)
        generation._on_cancel = lambda: self._cancel(sequence)
        with self._lock:
            if self._failure:
                raise EngineFailed(*self._failure.args)  # raised anew: each has its own traceback
            if self._closing:
                raise EngineClosed("the engine is closed")
            if len(self._waiting) + (self._running is not None) > self._max_waiting:
                raise QueueFull(len(self._waiting))
            self._waiting.append(sequence)
            self._changed.notify()
        return generation

    @property
    def n_waiting(self) -> int:
        """Requests in the queue, the running one not counted."""
        return len(self._waiting)

    @property
    def failure(self) -> EngineFailed | None:
        """Why the thread stopped for good; None while all is well."""
        return self._failure

    def close(self, timeout_s: float) -> bool:
        """Cancel all requests and end the thread. Returns whether it has ended. Idempotent."""
        with self._lock:
            self._closing = True
            waiting, running = list(self._waiting), self._running
            self._changed.notify()
        for sequence in waiting:
            sequence.generation.cancel()
        if running:
            running.generation.cancel()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _progress(self, sequence: Sequence) -> Progress:
        with self._lock:
            ahead = self._waiting.index(sequence) if sequence in self._waiting else 0
            if sequence.phase is Phase.QUEUED and self._running is not None:
                ahead += 1
            is_reading = sequence is self._running and sequence.phase is Phase.PREFILL
        n_in_chunk = int(sequence.n_reading * self._model.fraction_done) if is_reading else 0
        return sequence.progress(ahead, n_in_chunk)

    def _cancel(self, sequence: Sequence) -> None:
        with self._lock:
            if sequence is self._running:
                self._model.batch.cancel()
                return
            if sequence not in self._waiting:
                return
            self._waiting.remove(sequence)
        sequence.finish(FinishReason.CANCELLED)
        sequence.report_last()

    # --- the engine thread ----------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while self._next_request():
                while self._running is not None:
                    self._step(self._running)
        except BaseException as error:  # whatever it is, someone waits to be told
            log.exception("the engine thread stopped")
            self._fail(EngineFailed(f"the engine stopped on an internal error: {error!r}"))

    def _next_request(self) -> bool:
        """Wait for a request and make it the running one. Returns False when the engine closes."""
        with self._lock:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if not self._waiting:
                return False
            sequence = self._waiting.popleft()
            self._running = sequence
            self._model.batch.allow()
            if sequence.generation.cancelled:  # its flag is set before the lock is asked for
                self._model.batch.cancel()
        sequence.enter(Phase.PREFILL)
        sequence.n_cached = sequence.n_prefilled = self._chat.keep_prefix(sequence.prompt_ids)
        return True

    def _step(self, sequence: Sequence) -> None:
        """One bounded unit of work: a chunk of the prompt, or one token of the reply."""
        try:
            if sequence.n_prefilled < len(sequence.prompt_ids):
                self._prefill(sequence)
            else:
                self._decode(sequence)
        except Cancelled:
            sequence.finish(FinishReason.CANCELLED)
        except EngineError as error:  # this request's own: no token may be chosen
            sequence.fail(error)
        if sequence.phase is Phase.DONE:
            with self._lock:  # first: who hears the last event may cancel, or ask for more
                self._running = None
            sequence.report_last()

    def _prefill(self, sequence: Sequence) -> None:
        first, ids = sequence.n_prefilled, sequence.prompt_ids
        chunk = ids[first : first + self._model.max_rows]
        is_last = first + len(chunk) == len(ids)
        self._model.batch.rewind()
        sequence.n_reading = len(chunk)
        logits = self._chat.prefill(chunk, want_logits=is_last)
        sequence.n_prefilled += len(chunk)
        sequence.n_reading = 0
        if logits is not None:
            sequence.enter(Phase.DECODE)
            sequence.next_id = sequence.choose(logits[: self._tokenizer.n_vocab])

    def _decode(self, sequence: Sequence) -> None:
        assert sequence.next_id is not None, "a finished request is not stepped"
        logits = self._chat.next(sequence.next_id)
        sequence.next_id = sequence.choose(logits[: self._tokenizer.n_vocab])

    def _fail(self, failure: EngineFailed) -> None:
        with self._lock:
            self._failure = failure
            victims = [*([self._running] if self._running else []), *self._waiting]
            self._running = None
            self._waiting.clear()
        for sequence in victims:
            if sequence.phase is not Phase.DONE:
                sequence.fail(failure)
                sequence.report_last()
