"""What the engine thread and all other threads share, under one lock: who waits and who runs, what
is being done, what is asked for between two steps, and whether it is all over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from engine.errors import EngineClosed, EngineFailed
from engine.model.plan import Batch
from engine.requests.scheduler import Scheduler, Step
from engine.requests.sequence import Sequence


class Desk:
    """Whoever reads or writes an attribute, or calls a method that says so, holds the lock.

    step:         the one that is run now.
    is_preparing: something is read that nobody has asked for yet; all else comes before it.
    """

    def __init__(self, scheduler: Scheduler, batch: Batch) -> None:
        self.lock = threading.Lock()
        self.scheduler = scheduler
        self.step: Step | None = None
        self.is_preparing = False
        self.is_closing = False
        self.failure: EngineFailed | None = None
        self.errands: list[Callable[[], None]] = []  # for the engine thread, between two steps
        self._batch = batch
        self._changed = threading.Condition(self.lock)  # something to do, or closing

    @property
    def sequences(self) -> list[Sequence]:
        """All that are not over. Under the lock."""
        return [*self.scheduler.running, *self.scheduler.waiting]

    def refuse_if_over(self) -> None:
        """Raises EngineFailed or EngineClosed. Under the lock."""
        if self.failure:
            raise EngineFailed(*self.failure.args)  # raised anew: each has its own traceback
        if self.is_closing:
            raise EngineClosed("the engine is closed")

    def wake(self) -> None:
        """There is something to do that comes before any preparation. Under the lock."""
        self._changed.notify()
        if self.is_preparing:
            self._batch.cancel()

    def leave_step(self) -> None:
        """Stop the run when nobody is left who wants it: one that others share goes on. Under the
        lock.
        """
        if self.step and all(s.interruption for s in self.step.sequences):
            self._batch.cancel()

    # --- for the engine thread ------------------------------------------------------------------

    def wait_for_work(self, can_prepare: Callable[[], bool]) -> bool:
        """Returns False when the engine closes and nothing is left to do."""
        with self.lock:
            while not (self.sequences or self.errands):
                if self.is_closing:
                    return False
                if can_prepare():
                    break
                self._changed.wait()
            return True

    def wait_a_little(self, timeout_s: float) -> None:
        """Until that time, or until there is something else to do."""
        with self.lock:
            if not (self.errands or self.is_closing):
                self._changed.wait(timeout_s)

    def run_errands(self) -> None:
        """Those that are there by now: who asks for one after the other does not stop replies."""
        for _ in range(len(self.errands)):
            self.errands.pop(0)()
