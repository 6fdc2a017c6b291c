"""Worker: what all other threads see of the engine thread. They hand in requests through `submit`,
and hear of them through their on_event.

Whether a request makes sense was checked before; how it is run is engine_thread.py's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from collections.abc import Sequence as Ids
from concurrent.futures import Future
from typing import TypeVar

from engine.cache.chat_cache import ChatCache
from engine.cache.kv_cache import PagePool
from engine.cache.resident_chats import RoomComing
from engine.errors import EngineClosed, EngineFailed, OutOfMemory
from engine.memory.pressure import Level
from engine.model.model import Model
from engine.requests.desk import Desk
from engine.requests.early_ends import EarlyEnds, TimeLimits
from engine.requests.engine_thread import ASK_AGAIN_S, EngineThread
from engine.requests.estimator import Estimator
from engine.requests.generation import Estimate, Generation, Progress
from engine.requests.runner import Runner
from engine.requests.scheduler import Scheduler
from engine.requests.sequence import Interruption, Sequence
from engine.requests.speed import Speed
from engine.text.tokenizer import Tokenizer

T = TypeVar("T")


class Worker:
    """For every thread. Has requests run as the scheduler says, over the chats of the cache.

    speed: how long steps took.
    """

    def __init__(
        self,
        model: Model,
        cache: ChatCache,
        pool: PagePool,
        tokenizer: Tokenizer,
        scheduler: Scheduler,
        n_ctx: int,
        limits: TimeLimits,
    ) -> None:
        self._model, self._cache, self._pool, self._tokenizer = model, cache, pool, tokenizer
        self._scheduler, self._n_ctx = scheduler, n_ctx
        self.speed = Speed()
        self._estimator = Estimator(scheduler, cache, self.speed)
        self._is_short = False  # of memory: requests are refused
        self._desk = Desk(scheduler, model.batch)
        self._ends = EarlyEnds(self._desk, limits)
        runner = Runner(model, cache, tokenizer, self.speed)
        orphans = self._ends.orphans
        self._thread = EngineThread(self._desk, orphans, model, cache, pool, runner, self.speed)

    # --- requests -------------------------------------------------------------------------------

    def submit(self, generation: Generation) -> Generation:
        """Queue a request. Raises QueueFull, EngineClosed, EngineFailed or InvalidRequest."""
        sequence = Sequence(generation, self._tokenizer, self._n_ctx)
        sequence.work_s = self._estimator.read_s(sequence)
        with self._desk.lock:
            self._desk.refuse_if_over()
            if self._is_short:
                raise OutOfMemory("this machine has too little memory left; try again later")
            joined = self._join(generation)
            replaced = [] if joined else self._add(sequence)
            orphans = self._ends.orphans.take_all()
            self._desk.wake()
        self._connect(generation, joined or sequence)
        for old in replaced:
            self._ends.replace(old)
        for orphan in orphans:
            self._ends.interrupt(orphan, Interruption.CANCELLED)
        if not joined:
            self._ends.set_timers(sequence)
        return generation

    def _join(self, generation: Generation) -> Sequence | None:
        """The running request that this one repeats, if its client has left; now it is this one's.
        Under the lock.
        """
        joined = self._ends.orphans.same_as(generation)
        if joined:
            joined.generation.disown()
            self._ends.orphans.remove(joined)
            self._desk.errands.append(lambda: joined.report_to(generation))
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
        generation._on_cancel = lambda: self._ends.interrupt(sequence, Interruption.CANCELLED)
        if self._ends.orphans.linger_s:
            generation._on_leave = lambda: self._ends.leave(sequence)
        if generation.cancelled:  # by another thread, before it could be heard
            generation.cancel()

    def _progress(self, sequence: Sequence) -> Progress:
        with self._desk.lock:
            ahead = self._scheduler.ahead_of(sequence)
        return self._estimator.progress(sequence, ahead, self._model.fraction_done)

    # --- errands --------------------------------------------------------------------------------

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

        with self._desk.lock:
            self._desk.refuse_if_over()
            self._desk.errands.append(run)
            self._desk.wake()
        return done

    def call_with_room(self, errand: Callable[[], T]) -> T:
        """Have the engine thread do something that takes pages; wait until there are enough. Raises
        what `submit` and the errand raise.
        """
        while True:
            try:
                return self.call(errand).result()
            except RoomComing:
                time.sleep(ASK_AGAIN_S)

    def prepare(self, ids: Ids[int]) -> None:
        """Read the beginning of a prompt that is going to come, while there is nothing else to do.

        Of many the latest few count. Never raises: nothing is lost but time.
        """
        with contextlib.suppress(EngineClosed, EngineFailed):
            self.call(lambda: self._thread.prepare(ids[: self._n_ctx - 1]))

    def relieve(self, level: Level, n_bytes: int) -> None:
        """Memory is short (or no more): let idle chats leave, and keep the cache from growing."""

        def shrink() -> None:
            self._pool.limit_bytes = self._pool.n_bytes
            if level:
                self._cache.evict(n_bytes, at_once=level is Level.CRITICAL)
                least = 0 if level is Level.CRITICAL else self._model.chat_bytes(self._n_ctx)
                self._pool.limit_bytes = max(self._pool.used_bytes, least)

        self._is_short = level is Level.CRITICAL
        with contextlib.suppress(EngineClosed, EngineFailed):
            self.call(shrink)

    # --- how it stands --------------------------------------------------------------------------

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
        return 0.0 if self._scheduler.running else time.monotonic() - self._thread.idle_since

    @property
    def failure(self) -> EngineFailed | None:
        """Why the thread stopped for good; None while all is well."""
        return self._desk.failure

    def estimate(self, prompt_ids: Ids[int], n_max: int, use_cache: bool) -> Estimate:
        """What a request would cost if it came now."""
        with self._desk.lock:
            ahead = self._desk.sequences
        return self._estimator.of_prompt(prompt_ids, n_max, use_cache, ahead)

    def close(self, timeout_s: float) -> bool:
        """Cancel all requests and end the thread. Returns whether it has ended. Idempotent."""
        with self._desk.lock:
            self._desk.is_closing = True
            sequences = self._desk.sequences
            self._desk.wake()
        for sequence in sequences:
            self._ends.interrupt(sequence, Interruption.CANCELLED)
        return self._thread.join(timeout_s)
