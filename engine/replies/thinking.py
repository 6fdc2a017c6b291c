"""Thinking: between which marks models write it, and which variables of a template turn it off.

One table of all known marks. Does not know how a reply is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final


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
    ThinkingMarks("<think>", "</think>", ("<response>", "</response>")),  # Granite 3.3
    ThinkingMarks("<think>", "</think>", ("<answer>", "</answer>")),  # Hunyuan, GLM 4.1V
    THINK,
    ThinkingMarks("Here is my thought process:", "Here is my response:"),  # Granite 3.2
    ThinkingMarks("<thought>", "</thought>"),  # EXAONE Deep
    ThinkingMarks("<|thought_start|>", "<|thought_end|>"),  # MiniCPM 3
    ThinkingMarks("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ThinkingMarks("<longcat_think>", "</longcat_think>"),
    ThinkingMarks("◁think▷", "◁/think▷"),  # Kimi VL
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


@dataclass(frozen=True, slots=True)
class ThinkingSwitch:
    """The template's variable that turns thinking on and off, and its values for that."""

    variable: str
    off: Any = False
    on: Any = True


SWITCHES: Final = (
    ThinkingSwitch("enable_thinking"),
    ThinkingSwitch("thinking"),
    ThinkingSwitch("thinking_mode", "disabled", "enabled"),
    ThinkingSwitch("reasoning_effort", "no_think", "high"),
    ThinkingSwitch("reasoning_effort", "none", "high"),
    ThinkingSwitch("reasoning"),
)


def find_switch(
    variables: Collection[str], prompt_end: Callable[[dict[str, Any]], str]
) -> ThinkingSwitch | None:
    """The switch that a template has: one that makes a difference.

    variables:  those that the template reads.
    prompt_end: the text after what the user says, with some variables set; '' when it fails.
    """
    for switch in SWITCHES:
        if switch.variable not in variables:
            continue
        off, on = (prompt_end({switch.variable: value}) for value in (switch.off, switch.on))
        # Some models are only told in the system text; a word that is no level counts for nothing.
        if off and on and (off != on or switch.off is False):
            return switch
    return None
