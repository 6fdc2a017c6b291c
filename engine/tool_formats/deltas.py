"""What a reply is made of, piece by piece: content, reasoning and tool calls.

Joined in order, the pieces of one kind are the whole. Does not know how a model writes them, nor
how they go over the wire.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text of the thinking before it, or between."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins. index: 0, 1, ... in one reply; id: the model's own, or a new one."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a call's arguments; all pieces joined are a JSON object, unless it was cut."""

    index: int
    arguments: str


Delta = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallDelta
