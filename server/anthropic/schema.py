"""The objects of Anthropic's replies and streams, one model each."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import RootModel

from server.notes import Notes
from server.reply_events import Totals
from server.timings import WireTimings
from server.wire_object import WireObject

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class Usage(WireObject):
    """`input_tokens` does not count those that came from the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, totals: Totals) -> Self:
        return cls(
            input_tokens=totals.n_prompt - totals.n_cached,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=totals.n_cached,
            output_tokens=totals.n_decoded,
        )


class TextBlock(WireObject):
    type: Literal["text"]
    text: str


class ThinkingBlock(WireObject):
    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(WireObject):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class ReplyMessage(WireObject):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage
    timings: WireTimings | None = None
    rushlight: Notes | None = None


class CountedTokens(WireObject):
    input_tokens: int


class MessageStart(WireObject):
    """The usage at the start: the whole prompt, as nobody knows yet what of it is cached."""

    type: Literal["message_start"]
    message: ReplyMessage


class Ping(WireObject):
    type: Literal["ping"]


class BlockStart(WireObject):
    type: Literal["content_block_start"]
    index: int
    content_block: Block


class TextDelta(WireObject):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(WireObject):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(WireObject):
    type: Literal["signature_delta"]
    signature: str


class InputDelta(WireObject):
    type: Literal["input_json_delta"]
    partial_json: str


BlockDelta = TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockDeltaEvent(WireObject):
    type: Literal["content_block_delta"]
    index: int
    delta: BlockDelta


class BlockStop(WireObject):
    type: Literal["content_block_stop"]
    index: int


class Stop(WireObject):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(WireObject):
    type: Literal["message_delta"]
    delta: Stop
    usage: Usage
    timings: WireTimings
    rushlight: Notes | None = None


class MessageStop(WireObject):
    type: Literal["message_stop"]


Event = MessageStart | Ping | BlockStart | BlockDeltaEvent | BlockStop | MessageDelta | MessageStop


class AnyEvent(RootModel[Event]):
    """For /openapi.json: one event of a stream."""
