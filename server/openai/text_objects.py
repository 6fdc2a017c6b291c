"""A text completion as OpenAI's objects, whole or in pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from engine import ContentDelta, Token
from server.openai.fields import CompletionFields
from server.openai.logprobs import TextLogprobs, TextLogprobsWriter
from server.openai.reply_head import ReplyHead
from server.openai.schema import TextChoice, TextCompletion
from server.progress import Status
from server.reply_events import Choice, Ended, Piece

if TYPE_CHECKING:
    from engine import Engine


class TextEncoder(ReplyHead):
    """The Encoder of /v1/completions. Its replies have no structure: all deltas are content."""

    id_prefix = "cmpl-"

    def __init__(self, engine: Engine, body: CompletionFields) -> None:
        super().__init__(engine, body)
        self._writers: defaultdict[int, TextLogprobsWriter] = defaultdict(
            lambda: TextLogprobsWriter(engine.token_bytes)
        )

    def whole(self, choices: Sequence[Choice], ends: Sequence[Ended]) -> TextCompletion:
        shown = [
            self._choice(index, choice.content, choice.tokens, choice.ended)
            for index, choice in enumerate(choices)
        ]
        return self._object(shown, **self._sums(ends))

    def opening(self) -> Iterator[TextCompletion]:
        yield from ()

    def waiting(self, status: Status) -> Iterator[TextCompletion]:
        if self._include_progress:
            yield self._object([], **self._progress(status))

    def piece(self, piece: Piece) -> Iterator[TextCompletion]:
        text = "".join(delta.text for delta in piece.deltas if isinstance(delta, ContentDelta))
        choice = self._choice(piece.index, text, piece.tokens)
        yield self._object([choice], **self._beside(piece))

    def ended(self, end: Ended, ends: Sequence[Ended] | None) -> Iterator[TextCompletion]:
        yield self._object([self._choice(end.index, "", (), end)], **self._end(ends))

    def closing(self, ends: Sequence[Ended]) -> Iterator[TextCompletion]:
        if self._include_usage:
            yield self._object([], **self._sums(ends))

    def _choice(
        self, index: int, text: str, tokens: Sequence[Token], end: Ended | None = None
    ) -> TextChoice:
        reason: Literal["stop", "length"] | None = None
        if end:
            reason = "length" if end.reason == "length" else "stop"
        logprobs: TextLogprobs | None = None
        if self._has_logprobs and (tokens or text):
            logprobs = self._writers[index].write(tokens)
        return TextChoice(text=text, index=index, logprobs=logprobs, finish_reason=reason)

    def _object(self, choices: list[TextChoice], **more: Any) -> TextCompletion:
        return TextCompletion(**self._head, object="text_completion", choices=choices, **more)
