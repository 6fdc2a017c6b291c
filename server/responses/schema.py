"""The objects of OpenAI's Responses and of their streams."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import RootModel

from server.notes import Notes
from server.openai.logprobs import TokenLogprob
from server.openai.schema import PromptProgress
from server.reply_events import Totals
from server.timings import WireTimings
from server.wire_object import WireObject

Status = Literal["in_progress", "completed", "incomplete"]


class InputDetails(WireObject):
    cached_tokens: int


class OutputDetails(WireObject):
    reasoning_tokens: int


class Usage(WireObject):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int

    @classmethod
    def of(cls, totals: Totals) -> Self:
        return cls(
            input_tokens=totals.n_prompt,
            input_tokens_details=InputDetails(cached_tokens=totals.n_cached),
            output_tokens=totals.n_decoded,
            output_tokens_details=OutputDetails(reasoning_tokens=totals.n_reasoning),
            total_tokens=totals.n_prompt + totals.n_decoded,
        )


class OutputText(WireObject):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class ReasoningText(WireObject):
    type: Literal["reasoning_text"]
    text: str


class MessageItem(WireObject):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Status
    content: list[OutputText]


class ReasoningItem(WireObject):
    id: str
    type: Literal["reasoning"]
    summary: list[Any]
    content: list[ReasoningText]
    status: Status


class CallItem(WireObject):
    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: Status


Item = MessageItem | ReasoningItem | CallItem


class IncompleteDetails(WireObject):
    reason: Literal["max_output_tokens"]


class ResponseObject(WireObject):
    """What was asked comes back with what was answered."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None = None
    status: Status
    background: Literal[False]
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: Usage | None
    timings: WireTimings | None = None
    rushlight: Notes | None = None


class DeletedResponse(WireObject):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItems(WireObject):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False]


class StreamEvent(WireObject):
    """`sequence_number` counts the events of a stream from 0. The rest depends on the type."""

    type: str
    sequence_number: int
    response: ResponseObject | None = None
    prompt_progress: PromptProgress | None = None
    output_index: int | None = None
    item: Item | None = None
    item_id: str | None = None
    content_index: int | None = None
    part: OutputText | ReasoningText | None = None
    delta: str | None = None
    text: str | None = None
    name: str | None = None
    arguments: str | None = None
    logprobs: list[TokenLogprob] | None = None


class StreamError(WireObject):
    """`error` holds the same as plain replies do: clients look for that."""

    type: Literal["error"]
    sequence_number: int
    code: str | None
    message: str
    param: str | None
    error: dict[str, Any]


class AnyEvent(RootModel[StreamEvent | StreamError]):
    """For /openapi.json: one event of a stream."""
