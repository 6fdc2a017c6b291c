"""What a waiting client is told: its place in the queue, how far its prompt is, how long it takes.

Measures the prefill's speed from what it sees; before that the engine's estimates hold. Knows
nothing of streams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine import Phase, Progress


@dataclass(frozen=True, slots=True)
class Status:
    """index: of the first choice that is not complete; seconds_left: to its first token, None
    where nothing is known yet; n_cached: prompt tokens that were there already.
    """

    index: int
    progress: Progress
    n_cached: int
    seconds_left: float | None

    def words(self) -> str:
        """For people."""
        now = self.progress
        match now.phase:
            case Phase.QUEUED:
                return f"queued, {now.n_ahead} ahead{self._left()}"
            case Phase.PREFILL:
                return f"prefill {now.n_prefilled}/{now.n_prompt}{self._left()}"
            case _:
                return f"decode, {now.n_decoded} tokens"

    def _left(self) -> str:
        return "" if self.seconds_left is None else f", about {self.seconds_left:.0f} s left"


class Watch:
    """Looks at one reply again and again."""

    def __init__(self, look: Callable[[], tuple[int, Progress]]) -> None:
        """look: index and progress of the first choice that is not complete."""
        self._look = look
        self._first: dict[int, Progress] = {}  # of each choice's prefill

    def now(self) -> Status:
        """Where the reply is."""
        index, progress = self._look()
        if progress.phase is Phase.QUEUED:
            return Status(index, progress, 0, progress.first_token_s)
        first = self._first.setdefault(index, progress)
        return Status(index, progress, first.n_prefilled, _prefill_left(first, progress))


def _prefill_left(first: Progress, now: Progress) -> float | None:
    """From the speed since the first look: tokens that came from the cache took no time. Before
    there is one, what the engine expects.
    """
    if now.phase is not Phase.PREFILL:
        return None
    n_done = now.n_prefilled - first.n_prefilled
    took_s = now.elapsed_s - first.elapsed_s
    if n_done <= 0 or took_s <= 0:
        return now.prefill_s
    return (now.n_prompt - now.n_prefilled) * took_s / n_done
