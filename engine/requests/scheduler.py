"""Which requests wait, which run, and what the next step does. No thread, no model, no cache.

Whoever calls it holds the desk's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import QueueFull
from engine.requests.policy import Policy
from engine.requests.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Step:
    """One bounded unit of work: the next token of each sequence, or a chunk of one's prompt."""

    sequences: tuple[Sequence, ...]
    is_prefill: bool = False
    others_wait: bool = False  # other replies stand still while this chunk is read


class Scheduler:
    """max_running: chats that decode together. max_waiting: requests that may wait behind them."""

    def __init__(self, policy: Policy, max_running: int, max_waiting: int) -> None:
        self._policy = policy
        self.max_running, self.max_waiting = max_running, max_waiting
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._read_last = False

    def add(self, sequence: Sequence, retry_after_s: Callable[[], float]) -> None:
        """Let a request wait for its turn. Raises QueueFull."""
        if len(self.waiting) + len(self.running) >= self.max_waiting + self.max_running:
            raise QueueFull(len(self.waiting), retry_after_s())
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> bool:
        """Take a request out of the queue. Returns whether it was there."""
        if sequence not in self.waiting:
            return False
        self.waiting.remove(sequence)
        return True

    def replaced_by(self, key: str | None) -> list[Sequence]:
        """Waiting requests that one with this key makes needless."""
        return [s for s in self.waiting if key is not None and s.options.replaces_key == key]

    def ahead_of(self, sequence: Sequence) -> list[Sequence]:
        """Requests that come before one: all others that run, and some that wait."""
        if sequence not in self.waiting:
            return []
        key = self._policy.key(sequence)
        before = [s for s in self.waiting if s is not sequence and self._policy.key(s) < key]
        return [*self.running, *before]

    # --- who runs -----------------------------------------------------------------------------

    def first_waiting(self) -> Sequence | None:
        return min(self.waiting, key=self._policy.key, default=None)

    def last_running(self) -> Sequence:
        """The one to be paused when not all can go on."""
        return max(self.running, key=self._policy.key)

    def to_preempt(self) -> Sequence | None:
        """A running request whose place a waiting one of higher priority takes."""
        first = self.first_waiting()
        if not self._policy.preempts or first is None or len(self.running) < self.max_running:
            return None
        last = self.last_running()
        if last.interruption:  # it is about to leave its place
            return None
        return last if last.options.priority < first.options.priority else None

    def start(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        self.running.append(sequence)

    def pause(self, sequence: Sequence) -> None:
        """Back to the queue, where it keeps the place that its arrival gave it."""
        self.running.remove(sequence)
        self.waiting.append(sequence)

    def end(self, sequence: Sequence) -> None:
        self.running.remove(sequence)

    # --- what they do -------------------------------------------------------------------------

    def next_step(self) -> Step | None:
        """Chunks of prompts and tokens of replies take turns; None: nothing runs."""
        readers = [s for s in self.running if s.n_to_prefill]
        writers = tuple(s for s in self.running if not s.n_to_prefill)
        if readers and not (writers and self._read_last):
            self._read_last = True
            return Step((min(readers, key=self._policy.key),), True, bool(writers))
        self._read_last = False
        return Step(writers) if writers else None
