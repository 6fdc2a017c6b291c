"""The one thread that touches the model and its chats: it runs requests in bounded steps, and what
is asked for between them.

Who comes first is the scheduler's, what a step does the runner's, which pages are kept the cache's.
How requests come here and leave early is for worker.py and early_ends.py.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence as Ids

from engine.cache.chat import Chat
from engine.cache.chat_cache import ChatCache
from engine.cache.kv_cache import PagePool
from engine.cache.resident_chats import NoRoom, RoomComing
from engine.errors import EngineFailed, OutOfMemory
from engine.kernels.kv_page import PAGE
from engine.model.model import Cancelled, Model
from engine.requests.desk import Desk
from engine.requests.generation import Phase
from engine.requests.orphans import Orphans
from engine.requests.runner import Runner
from engine.requests.sequence import Sequence
from engine.requests.speed import Speed

log = logging.getLogger("rushlight.engine")

_MAX_PREPARED = 4  # prompts
ASK_AGAIN_S = 0.02  # for pages that are free once a chat is stored


class EngineThread:
    """idle_since: when the last request ended (monotonic)."""

    def __init__(
        self,
        desk: Desk,
        orphans: Orphans,
        model: Model,
        cache: ChatCache,
        pool: PagePool,
        runner: Runner,
        speed: Speed,
    ) -> None:
        self._desk, self._orphans = desk, orphans
        self._model, self._cache, self._pool = model, cache, pool
        self._runner, self._speed = runner, speed
        self._scheduler = desk.scheduler
        # To be read while there is nothing else to do. Several: a chat's is not to be lost when its
        # title is asked for right behind it.
        self._to_prepare: deque[list[int]] = deque(maxlen=_MAX_PREPARED)
        self.idle_since = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name="rushlight-engine", daemon=True)
        self._thread.start()

    def prepare(self, ids: Ids[int]) -> None:
        """Read these while there is nothing else to do. For errands."""
        self._to_prepare.append(list(ids))

    def join(self, timeout_s: float) -> bool:
        """Returns whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        try:
            while self._desk.wait_for_work(lambda: bool(self._to_prepare)):
                self._desk.run_errands()
                self._end_interrupted()
                self._admit()
                if not self._run_step():
                    self._prepare_a_little()
        except BaseException as error:  # whatever it is, someone waits to be told
            log.exception("the engine thread stopped")
            self._fail(EngineFailed(f"the engine stopped on an internal error: {error!r}"))

    # --- who runs -------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Let waiting requests run, as far as there are places and pages."""
        while True:
            with self._desk.lock:
                preempted = self._scheduler.to_preempt()
                left = self._pause(preempted) if preempted else None
                started = self._scheduler.first_waiting() if self._has_place() else None
                if started:
                    self._scheduler.start(started)
            if left:
                self._cache.close(left)
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
        sequences = (*running, first)
        needed = sum(self._model.chat_bytes(len(sequence.ids) + PAGE) for sequence in sequences)
        return needed <= self._pool.limit_bytes

    def _make_way(self) -> None:
        """Pages ran out: the last of the running ones waits until there are more."""
        with self._desk.lock:
            if any(s.interruption or s.phase is Phase.DONE for s in self._scheduler.running):
                return  # one is about to end, and leaves its pages
            last = self._scheduler.last_running()
            is_alone = len(self._scheduler.running) == 1
            left = None if is_alone else self._pause(last)
        if left:
            self._cache.close(left)
        else:
            last.fail(
                OutOfMemory(
                    "this machine has too little memory left for the chat; try again later, or"
                    " with a shorter one"
                )
            )

    def _pause(self, sequence: Sequence) -> Chat:
        """Back to the queue, where any thread may end it from now on. Returns its chat, to be
        closed. Under the lock.
        """
        self._scheduler.pause(sequence)
        return sequence.pause()

    # --- what is done ---------------------------------------------------------------------------

    def _run_step(self) -> bool:
        """Returns False when nothing runs."""
        desk = self._desk
        with desk.lock:
            step = desk.step = self._scheduler.next_step()
            if step is None:
                return False
            self._model.batch.allow()
            desk.leave_step()  # when all were interrupted meanwhile
        try:
            self._runner.run(step)
        except Cancelled:
            pass  # their interruption ends them
        except RoomComing:
            if not step.others_wait:  # others go on, or nobody
                desk.wait_a_little(ASK_AGAIN_S)
        except NoRoom:
            self._make_way()
        finally:
            with desk.lock:
                desk.step = None
        for sequence in step.sequences:
            if sequence.phase is Phase.DONE:
                self._end(sequence)
        return True

    def _prepare_a_little(self) -> None:
        """One chunk of the prompt that is going to come."""
        desk = self._desk
        with desk.lock:
            if not self._to_prepare or self._scheduler.waiting or desk.errands or desk.is_closing:
                return
            desk.is_preparing = True
            self._model.batch.allow()
        try:
            if not self._runner.prepare(self._to_prepare[0]):
                self._to_prepare.popleft()
        except Cancelled:
            pass  # later
        finally:
            with desk.lock:
                desk.is_preparing = False

    # --- ends -----------------------------------------------------------------------------------

    def _end_interrupted(self) -> None:
        for sequence in [s for s in self._scheduler.running if s.interruption]:
            sequence.end_early()
            self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        with self._desk.lock:  # first: who hears the last event may cancel, or ask for more
            self._scheduler.end(sequence)
            self._orphans.remove(sequence)
        self.idle_since = time.monotonic()
        if sequence.chat is not None:
            self._cache.close(sequence.chat)
            sequence.chat = None
        if sequence.n_decoded:
            self._speed.note_reply(sequence.n_decoded)
        sequence.report_last()

    def _fail(self, failure: EngineFailed) -> None:
        with self._desk.lock:
            self._desk.failure = failure
            victims = self._desk.sequences
            self._scheduler.running.clear()
            self._scheduler.waiting.clear()
        self._desk.run_errands()  # whoever waits for one, or has joined a request
        for sequence in victims:
            if sequence.phase is not Phase.DONE:
                sequence.fail(failure)
                sequence.report_last()
