"""Policies: which request comes first. Each is a key to sort by, the smallest first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from engine.requests.sequence import Sequence

Key = Callable[[Sequence], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Policy:
    """preempts: a waiting request of higher priority takes a running one's place."""

    key: Key
    preempts: bool = False


def _arrival(sequence: Sequence) -> tuple[float, ...]:
    return (sequence.generation.id,)


def _shortest(sequence: Sequence) -> tuple[float, ...]:
    """As if each prompt came when it could have been read: a short one overtakes a long one that
    came before, but nothing overtakes one that has waited for as long as it takes.
    """
    return (sequence.submitted_s + sequence.work_s, sequence.generation.id)


def _most_urgent(sequence: Sequence) -> tuple[float, ...]:
    return (-sequence.options.priority, sequence.generation.id)


POLICIES: Final = {
    "fcfs": Policy(_arrival),
    "sjf": Policy(_shortest),
    "priority": Policy(_most_urgent, preempts=True),
}
