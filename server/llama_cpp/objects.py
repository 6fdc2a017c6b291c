"""A completion as llama-server's objects: one for each choice, whole or in pieces.

The last piece of a stream has all that a whole one has, but for the text and its tokens. A client
may ask for some fields of it only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from engine import ContentDelta, FinishReason, SamplingParams, Token
from server.errors import ApiError
from server.framing import ServerSentEvents
from server.llama_cpp.errors import LlamaError, llama_error
from server.llama_cpp.schema import (
    Completion,
    CompletionPiece,
    Completions,
    DrawnToken,
    ListedCandidate,
    ListedToken,
    ScoredToken,
    SomeFields,
)
from server.llama_cpp.settings import GenerationSettings
from server.notes import summary
from server.openai.logprobs import TokenBytes, named
from server.openai.schema import PromptProgress
from server.progress import Status
from server.reply_events import Choice, Ended, Piece, Totals
from server.timings import WireTimings

if TYPE_CHECKING:
    from engine import Engine
    from server.llama_cpp.fields import NativeBody

_SLOT: Final = 0  # that of the chat which was answered last


class NativeEncoder:
    """The Encoder of /completion and /infill."""

    framing = ServerSentEvents()

    def __init__(self, engine: Engine, body: NativeBody, params: SamplingParams) -> None:
        """params: as asked for."""
        self._engine, self._body = engine, body
        self._settings = GenerationSettings.of(
            params,
            engine.model.n_ctx,
            stream=body.stream,
            timings_per_token=bool(body.timings_per_token),
            grammar=body.grammar_text,
        )
        self._n_sent: Counter[int] = Counter()  # tokens of each choice
        self._has_new_line: set[int] = set()  # choices

    def whole(
        self, choices: Sequence[Choice], ends: Sequence[Ended]
    ) -> Completion | SomeFields | Completions:
        objects = [self._complete(c.content, c.tokens, "\n" in c.content, c.ended) for c in choices]
        return objects[0] if len(objects) == 1 else Completions(objects)

    def opening(self) -> Iterator[CompletionPiece]:
        yield from ()

    def waiting(self, status: Status) -> Iterator[CompletionPiece]:
        if self._body.include_progress:
            more = {"prompt_progress": PromptProgress.of(status)}
            yield self._piece(status.index, "", (), status.progress.n_prompt, **more)

    def piece(self, piece: Piece) -> Iterator[CompletionPiece]:
        text = "".join(delta.text for delta in piece.deltas if isinstance(delta, ContentDelta))
        if "\n" in text:
            self._has_new_line.add(piece.index)
        self._n_sent[piece.index] += len(piece.tokens)
        more = self._scores(piece.tokens)
        if self._body.timings_per_token:
            more["timings"] = WireTimings.so_far(piece.progress())
        yield self._piece(piece.index, text, piece.tokens, piece.n_prompt, **more)

    def ended(self, end: Ended, ends: Sequence[Ended] | None) -> Iterator[Completion | SomeFields]:
        yield self._complete("", (), end.index in self._has_new_line, end)

    def closing(self, ends: Sequence[Ended]) -> Iterator[CompletionPiece]:
        yield from ()

    def failed(self, error: ApiError) -> Iterator[LlamaError]:
        yield llama_error(error)

    def _piece(
        self, index: int, text: str, tokens: Sequence[Token], n_prompt: int, **more: Any
    ) -> CompletionPiece:
        return CompletionPiece(
            index=index,
            content=text,
            tokens=[token.token_id for token in tokens],
            stop=False,
            id_slot=_SLOT,
            tokens_predicted=self._n_sent[index],
            tokens_evaluated=n_prompt,
            **more,
        )

    def _complete(
        self, text: str, tokens: Sequence[Token], has_new_line: bool, end: Ended
    ) -> Completion | SomeFields:
        done, n_ctx = end.finished, self._engine.model.n_ctx
        n_both = done.n_prompt + done.n_decoded
        is_full = done.finish_reason is FinishReason.LENGTH and n_both >= n_ctx
        completion = Completion(
            index=end.index,
            content=text,
            tokens=[token.token_id for token in tokens] if self._body.return_tokens else [],
            id_slot=_SLOT,
            stop=True,
            model=self._engine.model.name,
            tokens_predicted=done.n_decoded,
            tokens_evaluated=done.n_prompt,
            generation_settings=self._settings,
            prompt=end.prompt,
            has_new_line=has_new_line,
            truncated=is_full or end.n_cut > 0,
            stop_type=_stop_type(end),
            stopping_word=done.stop_string or "",
            tokens_cached=n_both - (done.n_decoded > 0),  # the last one is not read any more
            **summary(Totals.of([end])),
            **self._scores(tokens),
        )
        wanted = self._body.response_fields
        return _some_fields(completion, wanted) if wanted else completion

    def _scores(self, tokens: Sequence[Token]) -> dict[str, Any]:
        if self._body.wanted_probs is None or not tokens:
            return {}
        token_bytes = self._engine.token_bytes
        if self._body.post_sampling_probs:
            return {"completion_probabilities": [_drawn(token, token_bytes) for token in tokens]}
        return {"completion_probabilities": [_scored(token, token_bytes) for token in tokens]}


def _scored(token: Token, token_bytes: TokenBytes) -> ScoredToken:
    top = [ListedToken(id=i, **named(i, logprob, token_bytes)) for i, logprob in token.top]
    chosen = named(token.token_id, token.logprob, token_bytes)
    return ScoredToken(id=token.token_id, **chosen, top_logprobs=top)


def _drawn(token: Token, token_bytes: TokenBytes) -> DrawnToken:
    top = [ListedCandidate(**_candidate(i, logprob, token_bytes)) for i, logprob in token.top]
    chosen = _candidate(token.token_id, token.logprob, token_bytes)
    return DrawnToken(**chosen, top_probs=top)


def _candidate(token_id: int, logprob: float | None, token_bytes: TokenBytes) -> dict[str, Any]:
    fields = named(token_id, logprob, token_bytes)
    return {"id": token_id, "prob": math.exp(fields.pop("logprob")), **fields}


def _stop_type(end: Ended) -> Literal["eos", "limit", "word"]:
    if end.finished.finish_reason is not FinishReason.STOP:
        return "limit"
    return "eos" if end.finished.stop_string is None else "word"


def _some_fields(completion: Completion, wanted: Sequence[str]) -> SomeFields:
    """Those that are there; a path leads to a field of a field."""
    whole = completion.model_dump(mode="json", exclude_unset=True)
    found: dict[str, Any] = {}
    for path in wanted:
        value: Any = whole
        for name in path.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            found[path] = value
    return SomeFields(found)
