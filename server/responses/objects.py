"""A reply as OpenAI's Response, or as the events of its stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from engine import ContentDelta, Delta, ReasoningDelta, Token, ToolCallDelta, ToolCallStart
from server.errors import ApiError, openai_error
from server.framing import ServerSentEvents
from server.notes import summary
from server.openai.logprobs import ChatLogprobs, TokenLogprob
from server.openai.schema import PromptProgress
from server.progress import Status as WaitingStatus
from server.reply_events import Choice, Ended, Piece, Totals, is_content
from server.responses.schema import (
    CallItem,
    IncompleteDetails,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseObject,
    Status,
    StreamError,
    StreamEvent,
    Usage,
)

if TYPE_CHECKING:
    from engine import Engine

Keep = Callable[[ResponseObject], None]


class ResponseEncoder:
    """The Encoder of /v1/responses. A stream's items follow each other: one is open at a time."""

    framing = ServerSentEvents(named=True)

    def __init__(
        self, engine: Engine, echo: dict[str, Any], keep: Keep, *, logprobs: bool, progress: bool
    ) -> None:
        """echo: fields of the Response that repeat the request; keep: hears what is complete;
        progress: whether a waiting client is told how far it is.
        """
        self._head: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(16)}",
            "object": "response",
            "created_at": int(time.time()),
            "background": False,
            "error": None,
            "model": engine.model.name,
            **echo,
        }
        self._keep = keep
        self._token_bytes = engine.token_bytes
        self._has_logprobs = logprobs
        self._has_progress = progress
        self._n_events = 0
        self._items: list[Item] = []
        self._is_open = False  # the last item

    def whole(self, choices: Sequence[Choice], ends: Sequence[Ended]) -> ResponseObject:
        [choice] = choices
        self._items = list(self._of_choice(choice))
        return self._complete(ends)

    def opening(self) -> Iterator[StreamEvent]:
        response = self._response("in_progress")
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def waiting(self, status: WaitingStatus) -> Iterator[StreamEvent]:
        if self._has_progress:
            progress = PromptProgress.of(status)
            response = self._response("in_progress")
            yield self._event("response.in_progress", response=response, prompt_progress=progress)

    def piece(self, piece: Piece) -> Iterator[StreamEvent]:
        logprobs = self._logprobs(piece.tokens) if is_content(piece) else []
        for delta in piece.deltas:
            yield from self._delta(delta, logprobs)

    def ended(self, end: Ended, ends: Sequence[Ended] | None) -> Iterator[StreamEvent]:
        yield from self._close("incomplete" if end.reason == "length" else "completed")

    def closing(self, ends: Sequence[Ended]) -> Iterator[StreamEvent]:
        response = self._complete(ends)
        yield self._event(f"response.{response.status}", response=response)

    def failed(self, error: ApiError) -> Iterator[StreamError]:
        yield StreamError(
            type="error",
            sequence_number=self._number(),
            code=error.code,
            message=error.message,
            param=error.param,
            error=openai_error(error).error.model_dump(),
        )

    # -- items ------------------------------------------------------------------------------

    def _of_choice(self, choice: Choice) -> Iterator[Item]:
        """All items; the last one is as incomplete as the reply."""
        items: list[Item] = []
        if choice.reasoning:
            items.append(_reasoning(choice.reasoning))
        if choice.content:
            items.append(_message(choice.content, self._logprobs(choice.tokens)))
        items += [_call(call.id, call.name, call.arguments) for call in choice.tool_calls]
        is_cut = choice.ended.reason == "length"
        for item in items:
            item.status = "incomplete" if is_cut and item is items[-1] else "completed"
        yield from items

    def _delta(self, delta: Delta, logprobs: list[TokenLogprob]) -> Iterator[StreamEvent]:
        match delta:
            case ContentDelta(text):
                item = yield from self._current(MessageItem, lambda: _message("", []))
                item.content[0].text += text
                item.content[0].logprobs += logprobs
                yield self._at(item, "output_text.delta", 0, delta=text, logprobs=logprobs)
            case ReasoningDelta(text):
                thought = yield from self._current(ReasoningItem, lambda: _reasoning(""))
                thought.content[0].text += text
                yield self._at(thought, "reasoning_text.delta", 0, delta=text)
            case ToolCallStart(_, id, name):
                yield from self._open(_call(id, name, ""))
            case ToolCallDelta(_, arguments):
                call = self._items[-1]
                assert isinstance(call, CallItem), "its start came before"
                call.arguments += arguments
                yield self._at(call, "function_call_arguments.delta", delta=arguments)

    def _current(self, kind: Any, make: Callable[[], Item]) -> Any:
        """The open item if it is a `kind`, else a new one; a generator of the events of that."""
        if not self._is_open or not isinstance(self._items[-1], kind):
            yield from self._open(make())
        return self._items[-1]

    def _open(self, item: Item) -> Iterator[StreamEvent]:
        yield from self._close("completed")
        self._items.append(item)
        self._is_open = True
        bare = item if isinstance(item, CallItem) else item.model_copy(update={"content": []})
        yield self._event(
            "response.output_item.added", output_index=len(self._items) - 1, item=bare
        )
        if not isinstance(item, CallItem):
            yield self._at(item, "content_part.added", 0, part=item.content[0])

    def _close(self, status: Status) -> Iterator[StreamEvent]:
        if not self._is_open:
            return
        self._is_open = False
        item = self._items[-1]
        item.status = status
        match item:
            case MessageItem(content=[part]):
                told: dict[str, Any] = {"text": part.text, "logprobs": part.logprobs}
                yield self._at(item, "output_text.done", 0, **told)
                yield self._at(item, "content_part.done", 0, part=part)
            case ReasoningItem(content=[thought]):
                yield self._at(item, "reasoning_text.done", 0, text=thought.text)
                yield self._at(item, "content_part.done", 0, part=thought)
            case CallItem(name=name, arguments=arguments):
                told = {"name": name, "arguments": arguments}
                yield self._at(item, "function_call_arguments.done", **told)
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    # -- objects ----------------------------------------------------------------------------

    def _complete(self, ends: Sequence[Ended]) -> ResponseObject:
        totals = Totals.of(ends)
        is_cut = any(end.reason == "length" for end in ends)
        response = self._response(
            "incomplete" if is_cut else "completed",
            usage=Usage.of(totals),
            **summary(totals),
            completed_at=int(time.time()),
        )
        self._keep(response)
        return response

    def _response(self, status: Status, usage: Usage | None = None, **more: Any) -> ResponseObject:
        is_cut = status == "incomplete"
        details = IncompleteDetails(reason="max_output_tokens") if is_cut else None
        return ResponseObject(
            **self._head,
            status=status,
            incomplete_details=details,
            output=self._items,
            usage=usage,
            **more,
        )

    def _at(
        self, item: Item, event: str, content_index: int | None = None, **more: Any
    ) -> StreamEvent:
        """An event about the last item, or the part of it."""
        where = {} if content_index is None else {"content_index": content_index}
        return self._event(
            f"response.{event}",
            item_id=item.id,
            output_index=len(self._items) - 1,
            **where,
            **more,
        )

    def _event(self, type: str, **more: Any) -> StreamEvent:
        return StreamEvent(type=type, sequence_number=self._number(), **more)

    def _number(self) -> int:
        self._n_events += 1
        return self._n_events - 1

    def _logprobs(self, tokens: Sequence[Token]) -> list[TokenLogprob]:
        return ChatLogprobs.of(tokens, self._token_bytes).content if self._has_logprobs else []


def _message(text: str, logprobs: list[TokenLogprob]) -> MessageItem:
    part = OutputText(type="output_text", text=text, annotations=[], logprobs=logprobs)
    return MessageItem(
        id=_id("msg"), type="message", role="assistant", status="in_progress", content=[part]
    )


def _reasoning(text: str) -> ReasoningItem:
    part = ReasoningText(type="reasoning_text", text=text)
    return ReasoningItem(
        id=_id("rs"), type="reasoning", summary=[], content=[part], status="in_progress"
    )


def _call(call_id: str, name: str, arguments: str) -> CallItem:
    return CallItem(
        id=_id("fc"),
        type="function_call",
        call_id=call_id,
        name=name,
        arguments=arguments,
        status="in_progress",
    )


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
