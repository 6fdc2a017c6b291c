"""Builders of the objects of one reply: chat and text completions differ here and nowhere else.

A builder knows the id, the time and the model that all objects of a reply share, and the shapes of
schema.py. Knows nothing of bytes, engines or events.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, Protocol

from engine import Finished
from server.schema import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatMessage,
    TextChoice,
    TextCompletion,
    Usage,
    WireFinishReason,
    WireObject,
    WireTimings,
)


class Objects(Protocol):
    """What a route hands to the code that collects or streams a reply."""

    def whole(self, choices: Sequence[tuple[str, Finished]]) -> WireObject:
        """The one object of a reply that is not streamed."""

    def opening(self, index: int) -> WireObject | None:
        """The chunk before the first text of a choice, if there is one."""

    def piece(self, index: int, text: str) -> WireObject:
        """A chunk with the next text of a choice."""

    def closing(self, index: int, end: Finished, ends: Sequence[Finished] | None) -> WireObject:
        """The last chunk of a choice; `ends` are given where it is the last of the stream."""

    def usage(self, ends: Sequence[Finished]) -> WireObject:
        """The chunk of token counts after all choices."""


class _Builder:
    """What both builders share. `with_usage`: every chunk but the last shows a null usage."""

    id_prefix: str

    def __init__(self, model: str, with_usage: bool) -> None:
        self._head: dict[str, Any] = {
            "id": self.id_prefix + secrets.token_hex(12),
            "created": int(time.time()),
            "model": model,
        }
        self._no_usage: dict[str, Any] = {"usage": None} if with_usage else {}


class ChatObjects(_Builder):
    """chat.completion and chat.completion.chunk."""

    id_prefix = "chatcmpl-"

    def whole(self, choices: Sequence[tuple[str, Finished]]) -> ChatCompletion:
        ends = [end for _, end in choices]
        return ChatCompletion(
            **self._head,
            object="chat.completion",
            choices=[
                ChatChoice(
                    index=index,
                    message=ChatMessage(role="assistant", content=text, refusal=None),
                    logprobs=None,
                    finish_reason=_reason(end),
                )
                for index, (text, end) in enumerate(choices)
            ],
            usage=Usage.of(ends),
            timings=WireTimings.of(ends),
        )

    def opening(self, index: int) -> ChatCompletionChunk:
        return self._chunk(index, ChatDelta(role="assistant", content=""))

    def piece(self, index: int, text: str) -> ChatCompletionChunk:
        return self._chunk(index, ChatDelta(content=text))

    def closing(
        self, index: int, end: Finished, ends: Sequence[Finished] | None
    ) -> ChatCompletionChunk:
        return self._chunk(index, ChatDelta(), _reason(end), **_timings(ends))

    def usage(self, ends: Sequence[Finished]) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            **self._head,
            object="chat.completion.chunk",
            choices=[],
            usage=Usage.of(ends),
            **_timings(ends),
        )

    def _chunk(
        self, index: int, delta: ChatDelta, reason: WireFinishReason | None = None, **last: Any
    ) -> ChatCompletionChunk:
        choice = ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=reason)
        return ChatCompletionChunk(
            **self._head,
            object="chat.completion.chunk",
            choices=[choice],
            **self._no_usage,
            **last,
        )


class TextObjects(_Builder):
    """text_completion, whole and in pieces."""

    id_prefix = "cmpl-"

    def whole(self, choices: Sequence[tuple[str, Finished]]) -> TextCompletion:
        ends = [end for _, end in choices]
        return TextCompletion(
            **self._head,
            object="text_completion",
            choices=[
                TextChoice(text=text, index=index, logprobs=None, finish_reason=_reason(end))
                for index, (text, end) in enumerate(choices)
            ],
            usage=Usage.of(ends),
            timings=WireTimings.of(ends),
        )

    def opening(self, index: int) -> None:
        return None

    def piece(self, index: int, text: str) -> TextCompletion:
        return self._chunk(index, text)

    def closing(self, index: int, end: Finished, ends: Sequence[Finished] | None) -> TextCompletion:
        return self._chunk(index, "", _reason(end), **_timings(ends))

    def usage(self, ends: Sequence[Finished]) -> TextCompletion:
        return TextCompletion(
            **self._head,
            object="text_completion",
            choices=[],
            usage=Usage.of(ends),
            **_timings(ends),
        )

    def _chunk(
        self, index: int, text: str, reason: WireFinishReason | None = None, **last: Any
    ) -> TextCompletion:
        choice = TextChoice(text=text, index=index, logprobs=None, finish_reason=reason)
        return TextCompletion(
            **self._head,
            object="text_completion",
            choices=[choice],
            **self._no_usage,
            **last,
        )


def _reason(end: Finished) -> WireFinishReason:
    return "stop" if end.finish_reason == "stop" else "length"


def _timings(ends: Sequence[Finished] | None) -> dict[str, Any]:
    return {"timings": WireTimings.of(ends)} if ends else {}
