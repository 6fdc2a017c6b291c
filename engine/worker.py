"""Worker: the one thread that runs requests in bounded steps, and its door for all other threads.

While it lives nobody else touches the model and its chats. It hears of requests through `submit`
and tells of them through their on_event. Who comes first is the scheduler's, what a step does the
runner's, which pages are kept the cache's; whether a request makes sense was checked before.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Ids
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from engine.chat import n_pages
from engine.chat_cache import ChatCache, NoRoom, RoomComing
from engine.errors import EngineClosed, EngineFailed, OutOfMemory
from engine.estimator import Estimator
from engine.generation import Estimate, Generation, Phase, Progress
from engine.kv_cache import PagePool
from engine.model import Cancelled, Model
from engine.orphans import Orphans
from engine.pressure import Level
from engine.runner import Runner
from engine.scheduler import Scheduler, Step
from engine.sequence import Interruption, Sequence
from engine.speed import Speed
from engine.tokenizer import Tokenizer

log = logging.getLogger("rushlight.engine")

T = TypeVar("T")

_MAX_PREPARED = 4  # prompts
_ASK_AGAIN_S = 0.02  # for pages that are free once a chat is stored


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Of every request, in seconds from its submission; 0 = none."""

    queue_s: float = 0.0  # until its prompt is being read
    request_s: float = 0.0  # until its end
    linger_s: float = 0.0  # after its client has left


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
        self._orphans = Orphans(limits.linger_s)
        # To be read while there is nothing else to do. Several: a chat's is not to be lost when its
        # title is asked for right behind it.
        self._to_prepare: deque[list[int]] = deque(maxlen=_MAX_PREPARED)
        self._is_preparing = False
        self._speed = Speed()
        self._estimator = Estimator(scheduler, cache, self._speed)
        self._runner = Runner(model, cache, tokenizer, self._speed)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # something to do, or closing
        self._step: Step | None = None  # the one that is run now
        self._errands: list[Callable[[], None]] = []
        self._is_short = False  # of memory: requests are refused
        self._idle_since = time.monotonic()
        self._closing = False
        self._failure: EngineFailed | None = None
        self._thread = threading.Thread(target=self._serve, name="rushlight-engine", daemon=True)
        self._thread.start()

    # --- for every thread -----------------------------------------------------------------------

    def submit(self, generation: Generation) -> Generation:
        """Queue a request. Raises QueueFull, EngineClosed, EngineFailed or InvalidRequest."""
        sequence = Sequence(generation, self._tokenizer, self._n_ctx)
        sequence.work_s = self._estimator.read_s(sequence)
        with self._lock:
            self._refuse_if_over()
            if self._is_short:
                raise OutOfMemory("this machine has too little memory left; try again later")
            joined = self._join(generation)
            replaced = [] if joined else self._add(sequence)
            orphans = self._orphans.take_all()
            self._wake()
        self._connect(generation, joined or sequence)
        for old in replaced:
            old.interrupt(Interruption.REPLACED)
            self._report_early_end(old)
        for orphan in orphans:
            self._interrupt(orphan, Interruption.CANCELLED)
        if not joined:
            self._set_timers(sequence)
        return generation

    def _join(self, generation: Generation) -> Sequence | None:
        """The running request that this one repeats, if its client has left; now it is this one's.
        Under the lock.
        """
        joined = self._orphans.same_as(generation)
        if joined:
            joined.generation.disown()
            self._orphans.remove(joined)
            self._errands.append(lambda: joined.report_to(generation))
        return joined

    def _add(self, sequence: Sequence) -> list[Sequence]:
        """Queue it. Returns those that it replaces, taken out of the queue. Under the lock."""
        replaced = self._scheduler.replaced_by(sequence.options.replaces_key)
        for old in replaced:
            self._scheduler.remove(old)
        self._scheduler.add(sequence, self._estimator.retry_after_s)
        return replaced

    def _connect(self, generation: Generation, sequence: Sequence) -> None:
        """Let a handle act on its request."""
        generation._progress = lambda: self._progress(sequence)
        generation._on_cancel = lambda: self._interrupt(sequence, Interruption.CANCELLED)
        if self._orphans.linger_s:
            generation._on_leave = lambda: self._leave(sequence)
        if generation.cancelled:  # by another thread, before it could be heard
            generation.cancel()

    def call(self, errand: Callable[[], T]) -> Future[T]:
        """Have the engine thread do something between two steps. Raises what `submit` raises; the
        future, what the errand raises.
        """
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(errand())
            except Exception as error:
                done.set_exception(error)

        with self._lock:
            self._refuse_if_over()
            self._errands.append(run)
            self._wake()
        return done

    def call_with_room(self, errand: Callable[[], T]) -> T:
        """Have the engine thread do something that takes pages; wait until there are enough. Raises
        what `submit` and the errand raise.
        """
        while True:
            try:
                return self.call(errand).result()
            except RoomComing:
                time.sleep(_ASK_AGAIN_S)

    def prepare(self, ids: Ids[int]) -> None:
        """Read the beginning of a prompt that is going to come, while there is nothing else to do.

        Of many the latest few count. Never raises: nothing is lost but time.
        """
        with contextlib.suppress(EngineClosed, EngineFailed):
            self.call(lambda: self._to_prepare.append(list(ids[: self._n_ctx - 1])))

    def relieve(self, level: Level, n_bytes: int) -> None:
        """Memory is short (or no more): let idle chats leave, and keep the cache from growing."""

        def shrink() -> None:
            self._pool.limit = self._pool.n_pages
            if level:
                self._cache.evict(n_bytes, at_once=level is Level.CRITICAL)
                least = 0 if level is Level.CRITICAL else n_pages(self._n_ctx)
                self._pool.limit = max(self._pool.n_used, least)

        self._is_short = level is Level.CRITICAL
        with contextlib.suppress(EngineClosed, EngineFailed):
            self.call(shrink)

    @property
    def n_waiting(self) -> int:
        """Requests in the queue, the running ones not counted."""
        return len(self._scheduler.waiting)

    @property
    def n_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def idle_s(self) -> float:
        """For how long nothing has run; 0 while something does."""
        return 0.0 if self._scheduler.running else time.monotonic() - self._idle_since

    @property
    def speed(self) -> Speed:
        return self._speed

    @property
    def failure(self) -> EngineFailed | None:
        """Why the thread stopped for good; None while all is well."""
        return self._failure

    def estimate(self, prompt_ids: Ids[int], n_max: int) -> Estimate:
        """What a request would cost if it came now."""
        with self._lock:
            ahead = [*self._scheduler.running, *self._scheduler.waiting]
        return self._estimator.of_prompt(prompt_ids, n_max, ahead)

    def close(self, timeout_s: float) -> bool:
        """Cancel all requests and end the thread. Returns whether it has ended. Idempotent."""
        with self._lock:
            self._closing = True
            sequences = [*self._scheduler.waiting, *self._scheduler.running]
            self._wake()
        for sequence in sequences:
            self._interrupt(sequence, Interruption.CANCELLED)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _refuse_if_over(self) -> None:
        if self._failure:
            raise EngineFailed(*self._failure.args)  # raised anew: each has its own traceback
        if self._closing:
            raise EngineClosed("the engine is closed")

    def _wake(self) -> None:
        """There is something to do that comes before any preparation."""
        self._changed.notify()
        if self._is_preparing:
            self._model.batch.cancel()

    def _leave(self, sequence: Sequence) -> None:
        """Its client is gone: let it go on for a while, if nobody else wants the machine."""
        with self._lock:
            is_alone = [sequence] == [*self._scheduler.running, *self._scheduler.waiting]
            if is_alone:
                self._orphans.add(sequence)
        if not is_alone:
            sequence.generation.cancel()
            return

        def end() -> None:
            with self._lock:
                is_orphan = self._orphans.remove(sequence)
            if is_orphan:
                self._interrupt(sequence, Interruption.CANCELLED)

        sequence.set_timer(self._orphans.linger_s, end)

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

    def _progress(self, sequence: Sequence) -> Progress:
        with self._lock:
            ahead = self._scheduler.ahead_of(sequence)
        return self._estimator.progress(sequence, ahead, self._model.fraction_done)

    # --- the engine thread ----------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while self._wait_for_work():
                self._run_errands()
                self._end_interrupted()
                self._admit()
                if not self._run_step():
                    self._prepare_a_little()
        except BaseException as error:  # whatever it is, someone waits to be told
            log.exception("the engine thread stopped")
            self._fail(EngineFailed(f"the engine stopped on an internal error: {error!r}"))

    def _wait_for_work(self) -> bool:
        """Returns False when the engine closes."""
        scheduler = self._scheduler
        with self._lock:
            while not (scheduler.running or scheduler.waiting or self._errands):
                if self._closing:
                    return False
                if self._to_prepare:
                    break
                self._changed.wait()
            return True

    def _run_errands(self) -> None:
        while self._errands:
            self._errands.pop(0)()

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
            self._runner.open(started)

    def _has_place(self) -> bool:
        first, running = self._scheduler.first_waiting(), self._scheduler.running
        if not running:
            return True
        if first is None or len(running) >= self._scheduler.max_running:
            return False
        # Each with a page to grow by; pages that they share are counted twice, to be safe.
        needed = sum(n_pages(len(sequence.ids)) + 1 for sequence in (*running, first))
        return needed <= self._pool.limit

    def _run_step(self) -> bool:
        """Returns False when nothing runs."""
        with self._lock:
            step = self._step = self._scheduler.next_step()
            if step is None:
                return False
            self._model.batch.allow()
            self._leave_step()  # when all were interrupted meanwhile
        try:
            self._runner.run(step)
        except Cancelled:
            pass  # their interruption ends them
        except RoomComing:
            self._wait_for_room(step)
        except NoRoom:
            self._make_way()
        finally:
            with self._lock:
                self._step = None
        for sequence in step.sequences:
            if sequence.phase is Phase.DONE:
                self._end(sequence)
        return True

    def _prepare_a_little(self) -> None:
        """One chunk of the prompt that is going to come."""
        with self._lock:
            if not self._to_prepare or self._scheduler.waiting or self._errands or self._closing:
                return
            self._is_preparing = True
            self._model.batch.allow()
        try:
            if not self._runner.prepare(self._to_prepare[0]):
                self._to_prepare.popleft()
        except Cancelled:
            pass  # later
        finally:
            with self._lock:
                self._is_preparing = False

    def _wait_for_room(self, step: Step) -> None:
        """Pages are free once a chat is stored: until then others go on, or nobody."""
        with self._lock:
            if not (step.others_wait or self._errands or self._closing):
                self._changed.wait(_ASK_AGAIN_S)

    def _make_way(self) -> None:
        """Pages ran out: the last of the running ones waits until there are more."""
        with self._lock:
            last = self._scheduler.last_running()
            is_alone = len(self._scheduler.running) == 1
            if not is_alone:
                self._scheduler.pause(last)
        if is_alone:
            last.fail(OutOfMemory("this machine has too little memory left for the chat"))
        else:
            self._cache.close(last.pause())

    def _end(self, sequence: Sequence) -> None:
        with self._lock:  # first: who hears the last event may cancel, or ask for more
            self._scheduler.end(sequence)
            self._orphans.remove(sequence)
        self._idle_since = time.monotonic()
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
        self._run_errands()  # whoever waits for one, or has joined a request
        for sequence in victims:
            if sequence.phase is not Phase.DONE:
                sequence.fail(failure)
                sequence.report_last()
