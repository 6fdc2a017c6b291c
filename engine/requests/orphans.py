"""Requests whose client is gone while they still run. For a while they go on, as long as nobody
else wants the machine: the same client, sending its request again, joins instead of starting anew.

Whoever calls it holds the desk's lock.
"""

from __future__ import annotations

from engine.requests.generation import Generation
from engine.requests.sequence import Sequence


class Orphans:
    """linger_s: for how long they go on; 0 = there are none."""

    def __init__(self, linger_s: float) -> None:
        self.linger_s = linger_s
        self._sequences: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        self._sequences.append(sequence)

    def remove(self, sequence: Sequence) -> bool:
        """Returns whether it was one."""
        if sequence not in self._sequences:
            return False
        self._sequences.remove(sequence)
        return True

    def same_as(self, generation: Generation) -> Sequence | None:
        """One that asks for exactly the same."""
        wanted = (generation.prompt_ids, generation.params, generation.options)
        for sequence in self._sequences:
            own = sequence.generation
            if not sequence.interruption and wanted == (own.prompt_ids, own.params, own.options):
                return sequence
        return None

    def take_all(self) -> list[Sequence]:
        """All of them, to be ended."""
        taken, self._sequences = self._sequences, []
        return taken
