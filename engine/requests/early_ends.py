"""Requests that end before their reply does: cancelled, out of time, replaced by another one, or
left by their client. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.requests.desk import Desk
from engine.requests.generation import Phase
from engine.requests.orphans import Orphans
from engine.requests.sequence import Interruption, Sequence


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Of every request, in seconds from its submission; 0 = none."""

    queue_s: float = 0.0  # until its prompt is being read
    request_s: float = 0.0  # until its end
    linger_s: float = 0.0  # after its client has left


class EarlyEnds:
    """orphans: requests whose client has left, under the desk's lock."""

    def __init__(self, desk: Desk, limits: TimeLimits) -> None:
        self._desk, self._limits = desk, limits
        self.orphans = Orphans(limits.linger_s)

    def interrupt(self, sequence: Sequence, why: Interruption) -> None:
        """End a request early: at once while it waits, else as soon as its step can be left."""
        with self._desk.lock:
            sequence.interrupt(why)
            if not self._desk.scheduler.remove(sequence):
                self._desk.leave_step()
                return
        self._report(sequence)

    def replace(self, sequence: Sequence) -> None:
        """End a request that is out of the queue already, as a newer one makes it needless."""
        sequence.interrupt(Interruption.REPLACED)
        self._report(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Its client is gone: let it go on for a while, if nobody else wants the machine."""
        with self._desk.lock:
            is_alone = [sequence] == self._desk.sequences
            if is_alone:
                self.orphans.add(sequence)
        if not is_alone:
            sequence.generation.cancel()
            return

        def end() -> None:
            with self._desk.lock:
                is_orphan = self.orphans.remove(sequence)
            if is_orphan:
                self.interrupt(sequence, Interruption.CANCELLED)

        sequence.set_timer(self.orphans.linger_s, end)

    def set_timers(self, sequence: Sequence) -> None:
        """Have a request that was just queued end when its time is over."""

        def expire_in_queue() -> None:
            if sequence.phase is Phase.QUEUED and not sequence.n_prefilled:
                self.interrupt(sequence, Interruption.TIMEOUT)

        if self._limits.queue_s:
            sequence.set_timer(self._limits.queue_s, expire_in_queue)
        total_s = sequence.options.max_time_s or self._limits.request_s
        if total_s:
            sequence.set_timer(total_s, lambda: self.interrupt(sequence, Interruption.TIMEOUT))

    def _report(self, sequence: Sequence) -> None:
        sequence.end_early()
        sequence.report_last()
