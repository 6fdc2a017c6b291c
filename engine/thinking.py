"""Thinking: between which marks models write it, and which variables of a template turn it off.

One table of all known marks. Does not know how a reply is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """Reasoning stands between `open` and `close`.

    dropped: marks around the answer, which are no part of it.
    """

    open: str
    close: str
    dropped: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return (self.open, self.close, *self.dropped)


THINK: Final = ThinkingMarks("<think>", "</think>")
MARKS: Final = (
    ThinkingMarks("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),  # Apriel
    ThinkingMarks(
        "<|open|>think<|sep|>",  # Kimi K3
        "<|close|>think<|sep|>",
        ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    ThinkingMarks("<think:opensource>", "</think:opensource>"),  # Hunyuan
    ThinkingMarks("<think>", "</think>", ("<response>", "</response>")),  # Granite 3
    THINK,
    ThinkingMarks("[THINK]", "[/THINK]"),  # Magistral
    ThinkingMarks(
        "<|START_THINKING|>",  # Command
        "<|END_THINKING|>",
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    ThinkingMarks("<seed:think>", "</seed:think>"),
    ThinkingMarks("<mm:think>", "</mm:think>"),  # MiniMax
    ThinkingMarks("<|channel>thought\n", "<channel|>"),  # Gemma 4
)


def find_marks(text: str) -> list[ThinkingMarks]:
    """The marks that a template's text, or what it prints, speaks of."""
    found = {marks.open: marks for marks in reversed(MARKS) if _speaks_of(text, marks)}
    return list(found.values())


def _speaks_of(text: str, marks: ThinkingMarks) -> bool:
    either = marks.open.rstrip() in text or marks.close in text
    return either and (not marks.dropped or any(mark in text for mark in marks.dropped))


SWITCHES: Final = ("enable_thinking", "thinking", "reasoning_effort")


def find_switch(variables: Iterable[str]) -> str:
    """The variable that turns a template's thinking on and off; '' when it has none."""
    return next((name for name in SWITCHES if name in frozenset(variables)), "")
