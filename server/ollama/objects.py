"""A reply as Ollama's objects: one, or one for each piece and a last one with counts and times."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from engine import ContentDelta, ReasoningDelta
from server.errors import ApiError
from server.framing import JsonLines
from server.notes import Notes, summary
from server.ollama.errors import OllamaError, ollama_error
from server.openai.logprobs import ChatLogprobs, TokenLogprob
from server.progress import Status
from server.reply_events import Choice, Ended, Piece, ToolCall, Totals, is_content
from server.timings import WireTimings
from server.wire_object import WireObject

if TYPE_CHECKING:
    from engine import Engine
    from server.ollama.fields import OllamaBody


class CalledFunction(WireObject):
    index: int
    name: str
    arguments: dict[str, Any]


class Call(WireObject):
    id: str
    function: CalledFunction


class ReplyMessage(WireObject):
    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[Call] | None = None


class Line(WireObject):
    """What every object has, and what only the last one has. Durations are in nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load"] | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    logprobs: list[TokenLogprob] | None = None
    timings: WireTimings | None = None
    rushlight: Notes | None = None


class ChatLine(Line):
    message: ReplyMessage


class GenerateLine(Line):
    response: str
    thinking: str | None = None


AnyLine = TypeVar("AnyLine", bound=Line)


class OllamaEncoder(Generic[AnyLine]):
    """The Encoder of both routes, but for where the text stands in an object."""

    framing = JsonLines()

    def __init__(self, engine: Engine, body: OllamaBody) -> None:
        self._model = engine.model.name
        self._token_bytes = engine.token_bytes
        self._has_logprobs = body.logprobs
        self._so_far = Choice()
        self._n_calls_sent = 0
        self._began_ns = time.monotonic_ns()

    def line(self, content: str, thinking: str, calls: list[Call], **more: Any) -> AnyLine:
        """One object. more: of Line."""
        raise NotImplementedError

    def whole(self, choices: Sequence[Choice], ends: Sequence[Ended]) -> AnyLine:
        if not choices:
            return self._end("", "", [], ends)
        [choice] = choices
        calls = list(_complete(choice.tool_calls, 0))
        more = self._logprobs(choice.tokens)
        return self._end(choice.content, choice.reasoning, calls, ends, **more)

    def opening(self) -> Iterator[AnyLine]:
        yield from ()

    def waiting(self, status: Status) -> Iterator[AnyLine]:
        """A line without text: there are no comments, and proxies cut what says nothing."""
        yield self._piece("", "", [])

    def piece(self, piece: Piece) -> Iterator[AnyLine]:
        self._so_far.add(piece)
        content = "".join(d.text for d in piece.deltas if isinstance(d, ContentDelta))
        thinking = "".join(d.text for d in piece.deltas if isinstance(d, ReasoningDelta))
        logprobs = self._logprobs(piece.tokens) if is_content(piece) else {}
        calls = self._new_calls(is_over=False)
        if content or thinking or calls or logprobs:
            yield self._piece(content, thinking, calls, **logprobs)

    def ended(self, end: Ended, ends: Sequence[Ended] | None) -> Iterator[AnyLine]:
        if calls := self._new_calls(is_over=True):
            yield self._piece("", "", calls)

    def closing(self, ends: Sequence[Ended]) -> Iterator[AnyLine]:
        yield self._end("", "", [], ends)

    def failed(self, error: ApiError) -> Iterator[OllamaError]:
        yield ollama_error(error)

    def _new_calls(self, is_over: bool) -> list[Call]:
        """Calls that became complete. The last one is not before the reply is."""
        calls = self._so_far.tool_calls
        complete = calls if is_over else calls[:-1]
        new = list(_complete(complete, self._n_calls_sent))
        self._n_calls_sent = len(complete)
        return new

    def _logprobs(self, tokens: Sequence[Any]) -> dict[str, Any]:
        if not self._has_logprobs:
            return {}
        return {"logprobs": ChatLogprobs.of(tokens, self._token_bytes).content}

    def _piece(self, content: str, thinking: str, calls: list[Call], **more: Any) -> AnyLine:
        return self.line(content, thinking, calls, **self._head(), done=False, **more)

    def _end(
        self, content: str, thinking: str, calls: list[Call], ends: Sequence[Ended], **more: Any
    ) -> AnyLine:
        totals = Totals.of(ends)
        reason = "load" if not ends else "length" if ends[0].reason == "length" else "stop"
        return self.line(
            content,
            thinking,
            calls,
            **self._head(),
            done=True,
            done_reason=reason,
            total_duration=time.monotonic_ns() - self._began_ns,
            load_duration=0,
            prompt_eval_count=totals.n_prompt,
            prompt_eval_duration=round(totals.prefill_s * 1e9),
            eval_count=totals.n_decoded,
            eval_duration=round(totals.decode_s * 1e9),
            **summary(totals),
            **more,
        )

    def _head(self) -> dict[str, Any]:
        return {"model": self._model, "created_at": datetime.now(UTC).isoformat()}


def _complete(calls: Sequence[ToolCall], first: int) -> Iterator[Call]:
    """Arguments are an object here: a call that the limit cut has none, and `done_reason` tells."""
    for index, call in enumerate(calls[first:], first):
        try:
            arguments = json.loads(call.arguments or "{}")
        except ValueError:
            continue
        if isinstance(arguments, dict):
            function = CalledFunction(index=index, name=call.name, arguments=arguments)
            yield Call(id=call.id, function=function)
