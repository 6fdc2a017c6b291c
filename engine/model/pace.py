"""Pace: how many threads a decode step uses: all, or one while another process takes a core.

Threads that share the work of a step wait for each other some hundred times in it. One that has
lost its core to another process holds the others for a time slice, again and again, and then one
thread alone is faster. Knows durations only, not what is computed.
"""

from __future__ import annotations

import statistics
from collections import deque

_SLOW = 1.5  # times the best duration from which on one thread is tried
_TRIAL = 3  # steps of a trial
_STAY = 64  # steps until the next trial


class Pace:
    """Chooses between n_threads and one, by trying the other when there is reason to."""

    def __init__(self, n_threads: int) -> None:
        self._all = n_threads
        self._n = n_threads  # now in use
        self._on_trial = False
        self._until_trial = 0  # steps before one may begin
        self._best_s = float("inf")  # of a step on all threads
        self._recent_s: dict[int, deque[float]] = {n: deque(maxlen=_TRIAL) for n in (1, n_threads)}

    @property
    def n_threads(self) -> int:
        """For the next step."""
        return self._n

    def note(self, duration_s: float) -> None:
        """Tell how long a step took on the threads asked for."""
        if self._all == 1:
            return
        recent = self._recent_s[self._n]
        recent.append(duration_s)
        if self._n == self._all:
            # A best of long ago fades: steps take longer as the context grows.
            self._best_s = min(self._best_s * 1.001, duration_s)
        self._until_trial -= 1
        if len(recent) < _TRIAL:
            return
        if self._on_trial:
            self._judge()
        elif self._until_trial <= 0 and self._has_reason():
            self._on_trial = True
            self._n = 1 if self._n == self._all else self._all
            self._recent_s[self._n].clear()

    def _has_reason(self) -> bool:
        """All threads are slower than they were; or one thread has been in use for long."""
        return self._n == 1 or statistics.median(self._recent_s[self._n]) > _SLOW * self._best_s

    def _judge(self) -> None:
        one, many = (statistics.median(self._recent_s[n]) for n in (1, self._all))
        self._n = 1 if one < many else self._all
        self._on_trial = False
        self._until_trial = _STAY
