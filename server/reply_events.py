"""What happens in a reply, as every family of APIs hears it: pieces of its choices, and their ends.

Comes from engine events through the model's reply parser (reply.py); each family turns it into its
own objects. Knows no wire shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine import (
    ContentDelta,
    Delta,
    Difference,
    Finished,
    Progress,
    ReasoningDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
)

EndReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Piece:
    """More of one choice. tokens: those that made it, with earlier ones that made nothing yet;
    n_prompt: tokens of its prompt; progress: looks where its generation is now, which may be
    further on.
    """

    index: int
    deltas: tuple[Delta, ...]
    tokens: tuple[Token, ...]
    n_prompt: int
    progress: Callable[[], Progress]


@dataclass(frozen=True, slots=True)
class Ended:
    """A choice is complete.

    finished: the engine's last event. n_reasoning: tokens that were thinking.
    is_repeat: its prompt is another choice's too, which counts it.
    n_dropped: messages that its prompt is without; n_cut: tokens, so; prompt: as the model read it,
    where that is to be shown.
    """

    index: int
    reason: EndReason
    finished: Finished
    n_reasoning: int = 0
    is_repeat: bool = False
    n_dropped: int = 0
    n_cut: int = 0
    prompt: str = ""


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str = ""  # JSON text


@dataclass(slots=True)
class Choice:
    """All of one choice, as pieces are added. `end` is there once it is complete."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)  # of the content
    end: Ended | None = None

    def add(self, piece: Piece) -> None:
        for delta in piece.deltas:
            match delta:
                case ContentDelta(text):
                    self.content += text
                case ReasoningDelta(text):
                    self.reasoning += text
                case ToolCallStart(_, id, name):
                    self.tool_calls.append(ToolCall(id, name))
                case ToolCallDelta(index, arguments):
                    self.tool_calls[index].arguments += arguments
        if is_content(piece):
            self.tokens += piece.tokens

    @property
    def ended(self) -> Ended:
        """The end of a choice that is complete."""
        assert self.end is not None, "the choice is not complete"
        return self.end


def is_content(piece: Piece) -> bool:
    """Whether its tokens are the answer's, not of thinking or calls. Without deltas they are."""
    return not piece.deltas or any(isinstance(delta, ContentDelta) for delta in piece.deltas)


@dataclass(frozen=True, slots=True)
class Totals:
    """Tokens and seconds over all choices of a reply."""

    n_prompt: int  # each prompt once, however many choices it has
    n_cached: int  # of them
    n_prefilled: int  # prompt tokens that were computed, for all choices
    n_reused: int  # prompt tokens that were not, for all choices
    n_decoded: int
    n_reasoning: int  # of them
    n_dropped: int  # messages of all prompts that had no place
    n_cut: int  # tokens, so
    difference: Difference | None  # the first one, if there is any
    prefill_s: float
    decode_s: float

    @classmethod
    def of(cls, ends: Iterable[Ended]) -> Totals:
        all_ends: Sequence[Ended] = tuple(ends)
        finished = [end.finished for end in all_ends]
        firsts = [end.finished for end in all_ends if not end.is_repeat]
        n_reused = sum(f.n_cached for f in finished)
        return cls(
            n_prompt=sum(f.n_prompt for f in firsts),
            n_cached=sum(f.n_cached for f in firsts),
            n_prefilled=sum(f.n_prompt for f in finished) - n_reused,
            n_reused=n_reused,
            n_decoded=sum(f.n_decoded for f in finished),
            n_reasoning=sum(end.n_reasoning for end in all_ends),
            n_dropped=sum(end.n_dropped for end in all_ends if not end.is_repeat),
            n_cut=sum(end.n_cut for end in all_ends if not end.is_repeat),
            difference=next((f.difference for f in finished if f.difference), None),
            prefill_s=sum(f.timings.prefill_s for f in finished),
            decode_s=sum(f.timings.decode_s for f in finished),
        )
