"""A chat reply as Anthropic's objects: one message, or the events of its stream."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from engine import ContentDelta, Delta, Finished, ReasoningDelta, ToolCallDelta, ToolCallStart
from server.anthropic.errors import AnthropicError, anthropic_error
from server.anthropic.schema import (
    Block,
    BlockDelta,
    BlockDeltaEvent,
    BlockStart,
    BlockStop,
    Event,
    InputDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    ReplyMessage,
    SignatureDelta,
    Stop,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    Usage,
)
from server.errors import ApiError
from server.framing import ServerSentEvents
from server.notes import summary
from server.progress import Status
from server.reply_events import Choice, Ended, Piece, Totals

if TYPE_CHECKING:
    from engine import Engine


class MessageEncoder:
    """The Encoder of /v1/messages. A stream's blocks follow each other: one is open at a time."""

    framing = ServerSentEvents(named=True)

    def __init__(self, engine: Engine) -> None:
        self._n_ctx = engine.model.n_ctx
        self._head: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": engine.model.name,
        }
        self._has_begun = False
        self._open: type[Block] | None = None  # the kind of block that is open
        self._index = -1
        self._thinking = ""  # of the open block

    def whole(self, choices: Sequence[Choice], ends: Sequence[Ended]) -> ReplyMessage:
        [choice] = choices
        totals = Totals.of(ends)
        return ReplyMessage(
            **self._head,
            content=list(_blocks(choice)),
            **self._stop(choice.ended).model_dump(),
            usage=Usage.of(totals),
            **summary(totals),
        )

    def opening(self) -> Iterator[Event]:
        yield from ()

    def waiting(self, status: Status) -> Iterator[Event]:
        """First comes the message, with what its prompt counts."""
        yield from self._begin(status.progress.n_prompt)
        yield Ping(type="ping")

    def piece(self, piece: Piece) -> Iterator[Event]:
        yield from self._begin(0)
        for delta in piece.deltas:
            yield from self._delta(delta)

    def ended(self, end: Ended, ends: Sequence[Ended] | None) -> Iterator[Event]:
        yield from self._begin(end.finished.n_prompt)
        yield from self._close()
        totals = Totals.of([end])
        yield MessageDelta(
            type="message_delta",
            delta=self._stop(end),
            usage=Usage.of(totals),
            **summary(totals),
        )

    def closing(self, ends: Sequence[Ended]) -> Iterator[Event]:
        yield MessageStop(type="message_stop")

    def failed(self, error: ApiError) -> Iterator[AnthropicError]:
        yield anthropic_error(error)

    def _begin(self, n_prompt: int) -> Iterator[Event]:
        if self._has_begun:
            return
        self._has_begun = True
        usage = Usage(
            input_tokens=n_prompt,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=0,
            output_tokens=0,
        )
        message = ReplyMessage(
            **self._head, content=[], stop_reason=None, stop_sequence=None, usage=usage
        )
        yield MessageStart(type="message_start", message=message)

    def _delta(self, delta: Delta) -> Iterator[Event]:
        match delta:
            case ContentDelta(text):
                if self._open is not TextBlock:
                    yield from self._start(TextBlock(type="text", text=""))
                yield self._more(TextDelta(type="text_delta", text=text))
            case ReasoningDelta(text):
                if self._open is not ThinkingBlock:
                    empty = ThinkingBlock(type="thinking", thinking="", signature="")
                    yield from self._start(empty)
                self._thinking += text
                yield self._more(ThinkingDelta(type="thinking_delta", thinking=text))
            case ToolCallStart(_, id, name):
                yield from self._start(ToolUseBlock(type="tool_use", id=id, name=name, input={}))
            case ToolCallDelta(_, arguments):
                yield self._more(InputDelta(type="input_json_delta", partial_json=arguments))

    def _start(self, block: Block) -> Iterator[Event]:
        yield from self._close()
        self._open, self._thinking = type(block), ""
        self._index += 1
        yield BlockStart(type="content_block_start", index=self._index, content_block=block)

    def _more(self, delta: BlockDelta) -> Event:
        return BlockDeltaEvent(type="content_block_delta", index=self._index, delta=delta)

    def _close(self) -> Iterator[Event]:
        if self._open is None:
            return
        if self._open is ThinkingBlock:
            signature = _signature(self._thinking)
            yield self._more(SignatureDelta(type="signature_delta", signature=signature))
        self._open = None
        yield BlockStop(type="content_block_stop", index=self._index)

    def _stop(self, end: Ended) -> Stop:
        """Why it ended, and the stop string that ended it."""
        reason: StopReason = "end_turn"
        if end.reason == "length":
            reason = self._limit(end.finished)
        elif end.reason == "tool_calls":
            reason = "tool_use"
        elif end.finished.stop_string is not None:
            return Stop(stop_reason="stop_sequence", stop_sequence=end.finished.stop_string)
        return Stop(stop_reason=reason, stop_sequence=None)

    def _limit(self, finished: Finished) -> StopReason:
        is_full = finished.n_prompt + finished.n_decoded >= self._n_ctx
        return "model_context_window_exceeded" if is_full else "max_tokens"


def _blocks(choice: Choice) -> Iterator[Block]:
    """A call that the limit cut has no object of arguments, and is left out; the stop reason tells
    that there was more.
    """
    if choice.reasoning:
        signature = _signature(choice.reasoning)
        yield ThinkingBlock(type="thinking", thinking=choice.reasoning, signature=signature)
    if choice.content:
        yield TextBlock(type="text", text=choice.content)
    for call in choice.tool_calls:
        try:
            arguments = json.loads(call.arguments or "{}")
        except ValueError:
            continue
        if isinstance(arguments, dict):
            yield ToolUseBlock(type="tool_use", id=call.id, name=call.name, input=arguments)


def _signature(thinking: str) -> str:
    """Clients keep it and send it back; here nobody checks it, as a model reads any thinking."""
    return hashlib.sha256(thinking.encode()).hexdigest()
