"""What a waiting client is told, as words for an SSE comment: its place, then the prefill.

Measures the prefill's speed from what it sees; knows nothing of SSE.
"""

from __future__ import annotations

from engine import Phase, Progress
from server.reply import Reply


class ProgressWords:
    """Watches one reply."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._first_look: dict[int, Progress] = {}  # at each choice's prefill

    def now(self) -> str:
        """Where the first unfinished choice is."""
        index, progress = self._reply.progress()
        match progress.phase:
            case Phase.QUEUED:
                return f"queued, {progress.n_ahead} ahead"
            case Phase.PREFILL:
                left = self._time_left(index, progress)
                return f"prefill {progress.n_prefilled}/{progress.n_prompt}{left}"
            case _:
                return f"decode, {progress.n_decoded} tokens"

    def _time_left(self, index: int, now: Progress) -> str:
        """From the speed since the first look: tokens that came from the cache took no time."""
        first = self._first_look.setdefault(index, now)
        n_done = now.n_prefilled - first.n_prefilled
        took_s = now.elapsed_s - first.elapsed_s
        if n_done <= 0 or took_s <= 0:
            return ""
        return f", about {(now.n_prompt - now.n_prefilled) * took_s / n_done:.0f} s left"
