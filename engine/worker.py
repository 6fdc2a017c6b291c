"""Worker: the one thread that runs requests in bounded steps, and its door for all other threads.

While it lives nobody else touches the model and its chats. It hears of requests through `submit`
and tells of them through their on_event. Who comes first is the scheduler's, which pages are kept
the cache's; whether a request makes sense was checked before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence as Ids
from dataclasses import dataclass

from engine.chat import Chat, n_pages, next_of
from engine.chat_cache import ChatCache, NoRoom
from engine.errors import EngineClosed, EngineError, EngineFailed, OutOfMemory
from engine.generation import Difference, Estimate, Generation, Phase, Progress
from engine.kv_cache import PagePool
from engine.model import Cancelled, Model
from engine.scheduler import Scheduler, Step
from engine.sequence import Interruption, Sequence
from engine.speed import Speed
from engine.tokenizer import Tokenizer

log = logging.getLogger("rushlight.engine")

_SCORE_BYTES = 1 << 24  # of logits at once, when all are wanted: they grow with the vocabulary
_OTHERS_WAIT_S = 0.5  # for how long a chunk of one prompt may hold up other replies
_LEAST_CHUNK = 32  # tokens: smaller ones read the weights too often


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Of every request, in seconds from its submission; 0 = none."""

    queue_s: float = 0.0  # until its prompt is being read
    request_s: float = 0.0  # until its end


class Worker:
    """Runs what the scheduler says, over the chats of the cache."""

    def __init__(
        self,
        model: Model,
        cache: ChatCache,
        pool: PagePool,
        tokenizer: Tokenizer,
        scheduler: Scheduler,
        n_ctx: int,
        limits: TimeLimits = TimeLimits(),
    ) -> None:
        self._model, self._cache, self._pool, self._tokenizer = model, cache, pool, tokenizer
        self._scheduler, self._n_ctx, self._limits = scheduler, n_ctx, limits
        self._speed = Speed()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # something to do, or closing
        self._step: Step | None = None  # the one that is run now
        self._closing = False
        self._failure: EngineFailed | None = None
        self._thread = threading.Thread(target=self._serve, name="rushlight-engine", daemon=True)
        self._thread.start()

    # --- for every thread -----------------------------------------------------------------------

    def submit(self, generation: Generation) -> Generation:
        """Queue a request. Raises QueueFull, EngineClosed, EngineFailed or InvalidRequest."""
        sequence = Sequence(generation, self._tokenizer, self._n_ctx)
        sequence.work_s = self._speed.prefill_s(self._n_to_read(sequence)) or 0.0
        generation._progress = lambda: self._progress(sequence)
        generation._on_cancel = lambda: self._interrupt(sequence, Interruption.CANCELLED)
        with self._lock:
            if self._failure:
                raise EngineFailed(*self._failure.args)  # raised anew: each has its own traceback
            if self._closing:
                raise EngineClosed("the engine is closed")
            replaced = self._scheduler.replaced_by(generation.options.replaces_key)
            for old in replaced:
                self._scheduler.remove(old)
            self._scheduler.add(sequence, self._retry_after_s)
            self._changed.notify()
        for old in replaced:
            old.interrupt(Interruption.REPLACED)
            self._report_early_end(old)
        self._set_timers(sequence)
        return generation

    @property
    def n_waiting(self) -> int:
        """Requests in the queue, the running ones not counted."""
        return len(self._scheduler.waiting)

    @property
    def n_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def speed(self) -> Speed:
        return self._speed

    @property
    def failure(self) -> EngineFailed | None:
        """Why the thread stopped for good; None while all is well."""
        return self._failure

    def estimate(self, prompt_ids: Ids[int], n_max: int) -> Estimate:
        """What a request would cost if it came now."""
        n_cached = self._cache.longest_prefix(prompt_ids)[1]
        with self._lock:
            ahead = [*self._scheduler.running, *self._scheduler.waiting]
        return Estimate(
            n_prompt=len(prompt_ids),
            n_cached=n_cached,
            n_ahead=len(ahead),
            queue_s=self._queue_s(ahead),
            prefill_s=self._speed.prefill_s(len(prompt_ids) - n_cached),
            decode_s=self._speed.decode_s(n_max),
        )

    def close(self, timeout_s: float) -> bool:
        """Cancel all requests and end the thread. Returns whether it has ended. Idempotent."""
        with self._lock:
            self._closing = True
            sequences = [*self._scheduler.waiting, *self._scheduler.running]
            self._changed.notify()
        for sequence in sequences:
            sequence.generation.cancel()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _interrupt(self, sequence: Sequence, why: Interruption) -> None:
        """End a request early: at once while it waits, else as soon as its step can be left."""
        with self._lock:
            sequence.interrupt(why)
            if not self._scheduler.remove(sequence):
                self._leave_step()
                return
        self._report_early_end(sequence)

    def _leave_step(self) -> None:
        """Stop the run when nobody is left who wants it: one that others share goes on."""
        if self._step and all(s.interruption for s in self._step.sequences):
            self._model.batch.cancel()

    def _report_early_end(self, sequence: Sequence) -> None:
        sequence.end_early()
        sequence.report_last()

    def _set_timers(self, sequence: Sequence) -> None:
        def expire_in_queue() -> None:
            if sequence.phase is Phase.QUEUED and not sequence.n_prefilled:
                self._interrupt(sequence, Interruption.TIMEOUT)

        if self._limits.queue_s:
            sequence.set_timer(self._limits.queue_s, expire_in_queue)
        total_s = sequence.options.max_time_s or self._limits.request_s
        if total_s:
            sequence.set_timer(total_s, lambda: self._interrupt(sequence, Interruption.TIMEOUT))

    # --- how long it takes ----------------------------------------------------------------------

    def _progress(self, sequence: Sequence) -> Progress:
        with self._lock:
            ahead = self._scheduler.ahead_of(sequence)
            step = self._step
        is_reading = bool(step and step.is_prefill and sequence in step.sequences)
        n_in_chunk = int(sequence.n_reading * self._model.fraction_done) if is_reading else 0
        queue_s = prefill_s = None
        if sequence.phase is Phase.QUEUED:
            queue_s = self._queue_s(ahead)
        if sequence.phase in (Phase.QUEUED, Phase.PREFILL):
            prefill_s = self._speed.prefill_s(self._n_to_read(sequence) - n_in_chunk)
        return sequence.progress(len(ahead), n_in_chunk, queue_s, prefill_s)

    def _n_to_read(self, sequence: Sequence) -> int:
        """Tokens that are not in the cache."""
        if sequence.chat is not None:
            return sequence.n_left
        return len(sequence.ids) - self._cache.longest_prefix(sequence.ids)[1]

    def _queue_s(self, ahead: list[Sequence]) -> float | None:
        """Seconds until those ahead leave a place."""
        if len(ahead) < self._scheduler.max_running:
            return 0.0
        work = [self._rest_s(sequence) for sequence in ahead]
        known = [seconds for seconds in work if seconds is not None]
        return sum(known) / self._scheduler.max_running if len(known) == len(work) else None

    def _rest_s(self, sequence: Sequence) -> float | None:
        n_max = sequence.n_max - sequence.n_decoded
        n_to_write = self._speed.usual_reply(n_max, sequence.n_decoded)
        return self._speed.work_s(self._n_to_read(sequence), n_to_write)

    def _retry_after_s(self) -> float:
        """Until a place in the queue is likely to be free: when the first running one ends."""
        running = self._scheduler.running or self._scheduler.waiting
        rests = [self._rest_s(sequence) for sequence in running]
        return max(1.0, min((s for s in rests if s is not None), default=1.0))

    # --- the engine thread ----------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while self._wait_for_work():
                self._end_interrupted()
                self._admit()
                self._run_step()
        except BaseException as error:  # whatever it is, someone waits to be told
            log.exception("the engine thread stopped")
            self._fail(EngineFailed(f"the engine stopped on an internal error: {error!r}"))

    def _wait_for_work(self) -> bool:
        """Returns False when the engine closes."""
        scheduler = self._scheduler
        with self._lock:
            while not (scheduler.running or scheduler.waiting or self._closing):
                self._changed.wait()
            return bool(scheduler.running or scheduler.waiting)

    def _end_interrupted(self) -> None:
        for sequence in [s for s in self._scheduler.running if s.interruption]:
            sequence.end_early()
            self._end(sequence)

    def _admit(self) -> None:
        """Let waiting requests run, as far as there are places and pages."""
        while True:
            with self._lock:
                paused = self._scheduler.to_preempt()
                if paused:
                    self._scheduler.pause(paused)
                started = self._scheduler.first_waiting() if self._has_place() else None
                if started:
                    self._scheduler.start(started)
            if paused:
                self._cache.close(paused.pause())
            if not started:
                return
            self._open(started)

    def _has_place(self) -> bool:
        first, running = self._scheduler.first_waiting(), self._scheduler.running
        if not running:
            return True
        if first is None or len(running) >= self._scheduler.max_running:
            return False
        # Each with a page to grow by; pages that they share are counted twice, to be safe.
        needed = sum(n_pages(len(sequence.ids)) + 1 for sequence in (*running, first))
        return needed <= self._pool.limit

    def _open(self, sequence: Sequence) -> None:
        parting = self._cache.parting(sequence.ids) if not sequence.n_decoded else None
        if parting:
            decode = self._tokenizer.decode
            sequence.generation.difference = Difference(
                parting.at, decode(parting.cached_ids), decode(parting.prompt_ids)
            )
        sequence.run_on(self._cache.open(sequence.cacheable_ids))

    def _run_step(self) -> None:
        with self._lock:
            step = self._step = self._scheduler.next_step()
            if step is None:
                return
            self._model.batch.allow()
            self._leave_step()  # when all were interrupted meanwhile
        try:
            if step.is_prefill:
                self._prefill(step.sequences[0], step.others_wait)
            else:
                self._decode(step.sequences)
        except Cancelled:
            pass  # their interruption ends them
        except NoRoom:
            self._make_way()
        finally:
            with self._lock:
                self._step = None

    def _prefill(self, sequence: Sequence, others_wait: bool) -> None:
        """Read a chunk of the prompt: all but its last token, which is read as decoding reads."""
        chat = _chat(sequence)
        n = min(sequence.n_left - 1, self._model.max_rows)
        if others_wait:
            n = min(n, max(_LEAST_CHUNK, self._speed.prefill_tokens_in(_OTHERS_WAIT_S)))
        is_scored = sequence.is_scored
        if not is_scored:
            n = min(n, max(_SCORE_BYTES // (4 * self._tokenizer.n_vocab), 1))
        first = len(chat.ids)
        self._cache.make_room([chat], n, len(sequence.ids))
        self._model.batch.rewind()
        sequence.n_reading = n
        start = time.perf_counter()
        try:
            chunk = sequence.ids[first : first + n]
            if is_scored:
                chat.prefill(chunk, want_logits=False)
            else:
                sequence.score(first, chat.score(chunk)[:, : self._tokenizer.n_vocab])
        finally:
            sequence.n_reading = 0
        if is_scored:
            self._speed.note_prefill(n, time.perf_counter() - start)
        sequence.n_prefilled = max(sequence.n_prefilled, len(chat.ids))

    def _decode(self, sequences: tuple[Sequence, ...]) -> None:
        """The next token of each."""
        chats = [_chat(sequence) for sequence in sequences]
        self._cache.make_room(chats, 1, max(len(sequence.ids) for sequence in sequences))
        start = time.perf_counter()
        logits = next_of(chats, [sequence.ids[-1] for sequence in sequences])
        self._speed.note_decode(time.perf_counter() - start)
        for i, sequence in enumerate(sequences):
            sequence.n_prefilled = len(sequence.prompt_ids)
            try:
                sequence.choose(logits[i, : self._tokenizer.n_vocab])
            except EngineError as error:  # this request's own: no token may be chosen
                sequence.fail(error)
            if sequence.phase is Phase.DONE:
                self._end(sequence)

    def _make_way(self) -> None:
        """Pages ran out: the last of the running ones waits until there are more."""
        with self._lock:
            last = self._scheduler.last_running()
            is_alone = len(self._scheduler.running) == 1
            if not is_alone:
                self._scheduler.pause(last)
        if is_alone:
            last.fail(OutOfMemory("this machine has too little memory left for the chat"))
            self._end(last)
        else:
            self._cache.close(last.pause())

    def _end(self, sequence: Sequence) -> None:
        with self._lock:  # first: who hears the last event may cancel, or ask for more
            self._scheduler.end(sequence)
        if sequence.chat is not None:
            self._cache.close(sequence.chat)
            sequence.chat = None
        if sequence.n_decoded:
            self._speed.note_reply(sequence.n_decoded)
        sequence.report_last()

    def _fail(self, failure: EngineFailed) -> None:
        with self._lock:
            self._failure = failure
            victims = [*self._scheduler.running, *self._scheduler.waiting]
            self._scheduler.running.clear()
            self._scheduler.waiting.clear()
        for sequence in victims:
            if sequence.phase is not Phase.DONE:
                sequence.fail(failure)
                sequence.report_last()


def _chat(sequence: Sequence) -> Chat:
    assert sequence.chat is not None, "a request that waits is not stepped"
    return sequence.chat
