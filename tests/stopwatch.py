"""How long a piece of work takes, beside a loop of plain Python that is timed right after it: on a
slow machine, or one with much to do, both are slow. Only the time of the thread that asks counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

_STEPS = 1_000_000  # of the loop: about 35 ms on a core of 2.6 GHz


class Stopwatch:
    """`with Stopwatch() as watch:`, and then watch.seconds, watch.loops."""

    seconds: float

    def __enter__(self) -> Stopwatch:
        self._start = time.thread_time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.seconds = time.thread_time() - self._start

    @property
    def loops(self) -> float:
        """How many such loops take as long as the work did."""
        start, total = time.thread_time(), 0
        for i in range(_STEPS):
            total += i
        return self.seconds / (time.thread_time() - start)


def fastest(n: int, work: Callable[[], object]) -> Stopwatch:
    """Of n runs, of which one may meet Python's collector."""
    watches = [Stopwatch() for _ in range(n)]
    for watch in watches:
        with watch:
            work()
    return min(watches, key=lambda watch: watch.seconds)
