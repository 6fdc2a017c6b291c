"""The objects of OpenAI's completion replies, one model each. Knows nothing of how they come."""

from __future__ import annotations

from typing import Literal, Self

from server.notes import Notes
from server.openai.logprobs import ChatLogprobs, TextLogprobs
from server.progress import Status
from server.reply_events import EndReason, Totals
from server.timings import WireTimings
from server.wire_object import WireObject


class PromptTokensDetails(WireObject):
    cached_tokens: int


class CompletionTokensDetails(WireObject):
    reasoning_tokens: int


class Usage(WireObject):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails

    @classmethod
    def of(cls, totals: Totals) -> Self:
        return cls(
            prompt_tokens=totals.n_prompt,
            completion_tokens=totals.n_decoded,
            total_tokens=totals.n_prompt + totals.n_decoded,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=totals.n_cached),
            completion_tokens_details=CompletionTokensDetails(reasoning_tokens=totals.n_reasoning),
        )


class PromptProgress(WireObject):
    """llama.cpp's, and what it does not tell: the place in the queue and the time that is left."""

    total: int
    cache: int
    processed: int
    time_ms: int
    queue_ahead: int
    seconds_left: float | None

    @classmethod
    def of(cls, status: Status) -> Self:
        now, left = status.progress, status.seconds_left
        return cls(
            total=now.n_prompt,
            cache=status.n_cached,
            processed=now.n_prefilled,
            time_ms=round(now.elapsed_s * 1e3),
            queue_ahead=now.n_ahead,
            seconds_left=None if left is None else round(left, 1),
        )


class FunctionCall(WireObject):
    name: str
    arguments: str  # JSON text


class ToolCall(WireObject):
    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(WireObject):
    """`reasoning_content` and `tool_calls` are there only where the reply has them."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(WireObject):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: EndReason


class ChatCompletion(WireObject):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: WireTimings
    rushlight: Notes | None = None


class FunctionDelta(WireObject):
    name: str | None = None
    arguments: str


class ToolCallChunk(WireObject):
    """`id`, `type` and `function.name` come once, with the first of a call's deltas."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class ChatDelta(WireObject):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallChunk] | None = None


class ChatChunkChoice(WireObject):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: EndReason | None


class ChatCompletionChunk(WireObject):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    timings: WireTimings | None = None
    rushlight: Notes | None = None
    prompt_progress: PromptProgress | None = None


class TextChoice(WireObject):
    """Of a text completion; in a stream `text` is a piece and the reason may be null."""

    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class TextCompletion(WireObject):
    """A text completion, whole or one chunk of its stream: OpenAI gives both the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None
    timings: WireTimings | None = None
    rushlight: Notes | None = None
    prompt_progress: PromptProgress | None = None
