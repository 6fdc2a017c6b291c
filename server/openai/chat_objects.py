"""A chat reply as OpenAI's objects: chat.completion, or chat.completion.chunk one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from engine import ContentDelta, Delta, ReasoningDelta, Token, ToolCallDelta, ToolCallStart
from server.openai.fields import CompletionFields
from server.openai.logprobs import ChatLogprobs
from server.openai.reply_head import ReplyHead
from server.openai.schema import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatMessage,
    FunctionCall,
    FunctionDelta,
    ToolCall,
    ToolCallChunk,
)
from server.progress import Status
from server.reply_events import Choice, Ended, EndReason, Piece, is_content

if TYPE_CHECKING:
    from engine import Engine


class ChatEncoder(ReplyHead):
    """The Encoder of /v1/chat/completions."""

    id_prefix = "chatcmpl-"

    def __init__(self, engine: Engine, body: CompletionFields) -> None:
        super().__init__(engine, body)
        self._opened: set[int] = set()

    def whole(self, choices: Sequence[Choice], ends: Sequence[Ended]) -> ChatCompletion:
        return ChatCompletion(
            **self._head,
            object="chat.completion",
            choices=[self._choice(index, choice) for index, choice in enumerate(choices)],
            **self._sums(ends),
        )

    def opening(self) -> Iterator[ChatCompletionChunk]:
        yield from ()

    def waiting(self, status: Status) -> Iterator[ChatCompletionChunk]:
        if self._include_progress:
            yield self._object([], **self._progress(status))

    def piece(self, piece: Piece) -> Iterator[ChatCompletionChunk]:
        yield from self._opening_of(piece.index)
        logprobs = self._logprobs(piece.tokens) if is_content(piece) else None
        beside = self._beside(piece)
        for delta in piece.deltas or (ContentDelta(""),):
            yield self._object([_chunk_choice(piece.index, _delta(delta), logprobs)], **beside)
            logprobs = None  # once

    def ended(self, end: Ended, ends: Sequence[Ended] | None) -> Iterator[ChatCompletionChunk]:
        yield from self._opening_of(end.index)
        choice = _chunk_choice(end.index, ChatDelta(), None, end.reason)
        yield self._object([choice], **self._end(ends))

    def closing(self, ends: Sequence[Ended]) -> Iterator[ChatCompletionChunk]:
        if self._include_usage:
            yield self._object([], **self._sums(ends))

    def _choice(self, index: int, choice: Choice) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=_message(choice),
            logprobs=self._logprobs(choice.tokens),
            finish_reason=choice.ended.reason,
        )

    def _opening_of(self, index: int) -> Iterator[ChatCompletionChunk]:
        """Who speaks, before the first of a choice."""
        if index not in self._opened:
            self._opened.add(index)
            choice = _chunk_choice(index, ChatDelta(role="assistant", content=""), None)
            yield self._object([choice], **self._no_usage)

    def _logprobs(self, tokens: Sequence[Token]) -> ChatLogprobs | None:
        return ChatLogprobs.of(tokens, self._token_bytes) if self._has_logprobs else None

    def _object(self, choices: list[ChatChunkChoice], **more: Any) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            **self._head, object="chat.completion.chunk", choices=choices, **more
        )


def _chunk_choice(
    index: int,
    delta: ChatDelta,
    logprobs: ChatLogprobs | None,
    reason: EndReason | None = None,
) -> ChatChunkChoice:
    return ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=reason)


def _message(choice: Choice) -> ChatMessage:
    parts: dict[str, Any] = {}
    if choice.reasoning:
        parts["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        parts["tool_calls"] = [
            ToolCall(
                id=call.id,
                type="function",
                function=FunctionCall(name=call.name, arguments=call.arguments),
            )
            for call in choice.tool_calls
        ]
    content = None if choice.tool_calls and not choice.content else choice.content
    return ChatMessage(role="assistant", content=content, refusal=None, **parts)


def _delta(delta: Delta) -> ChatDelta:
    match delta:
        case ContentDelta(text):
            return ChatDelta(content=text)
        case ReasoningDelta(text):
            return ChatDelta(reasoning_content=text)
        case ToolCallStart(index, id, name):
            function = FunctionDelta(name=name, arguments="")
            call = ToolCallChunk(index=index, id=id, type="function", function=function)
        case ToolCallDelta(index, arguments):
            call = ToolCallChunk(index=index, function=FunctionDelta(arguments=arguments))
    return ChatDelta(tool_calls=[call])
