"""OpenAI's response objects, one model each, and how a finished generation becomes usage.

A key that was not given is left out of the JSON (`wire`), a key given as None is null: OpenAI's
clients tell the two apart. Knows nothing of requests or of how bytes are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from engine import Finished


class WireObject(BaseModel):
    """Base of everything that is sent."""

    model_config = ConfigDict(extra="forbid")

    def wire(self) -> str:
        """JSON with exactly the keys that were given."""
        return self.model_dump_json(exclude_unset=True)


class PromptTokensDetails(WireObject):
    cached_tokens: int


class Usage(WireObject):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @classmethod
    def of(cls, finished: Sequence[Finished]) -> Usage:
        """Token counts over all choices; each choice has a prompt of its own."""
        n_prompt = sum(end.n_prompt for end in finished)
        n_decoded = sum(end.n_decoded for end in finished)
        n_cached = sum(end.n_cached for end in finished)
        return cls(
            prompt_tokens=n_prompt,
            completion_tokens=n_decoded,
            total_tokens=n_prompt + n_decoded,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=n_cached),
        )


class WireTimings(WireObject):
    """llama.cpp's `timings`. Its `prompt_n` does not count tokens that came from the cache.

    Rates are 0 where there is nothing to divide by.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float

    @classmethod
    def of(cls, finished: Sequence[Finished]) -> WireTimings:
        """Times and speeds over all choices."""
        n_cached = sum(end.n_cached for end in finished)
        n_prefilled = sum(end.n_prompt for end in finished) - n_cached
        n_decoded = sum(end.n_decoded for end in finished)
        prefill_s = sum(end.timings.prefill_s for end in finished)
        decode_s = sum(end.timings.decode_s for end in finished)
        return cls(
            cache_n=n_cached,
            prompt_n=n_prefilled,
            prompt_ms=round(prefill_s * 1e3, 3),
            prompt_per_token_ms=_ratio(prefill_s * 1e3, n_prefilled),
            prompt_per_second=_ratio(n_prefilled, prefill_s),
            predicted_n=n_decoded,
            predicted_ms=round(decode_s * 1e3, 3),
            predicted_per_token_ms=_ratio(decode_s * 1e3, n_decoded),
            predicted_per_second=_ratio(n_decoded, decode_s),
        )


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 3) if whole > 0 else 0.0


WireFinishReason = Literal["stop", "length"]


class ChatMessage(WireObject):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(WireObject):
    index: int
    message: ChatMessage
    logprobs: None
    finish_reason: WireFinishReason


class ChatCompletion(WireObject):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: WireTimings


class ChatDelta(WireObject):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(WireObject):
    index: int
    delta: ChatDelta
    logprobs: None
    finish_reason: WireFinishReason | None


class ChatCompletionChunk(WireObject):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    timings: WireTimings | None = None


class TextChoice(WireObject):
    """A choice of a text completion; in a stream `text` is a piece and the reason may be null."""

    text: str
    index: int
    logprobs: None
    finish_reason: WireFinishReason | None


class TextCompletion(WireObject):
    """A text completion, whole or one chunk of its stream: OpenAI gives both the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None
    timings: WireTimings | None = None


class ModelMeta(WireObject):
    """llama.cpp's `meta`, plus what kind of model it is."""

    architecture: str
    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_params: int
    size: int  # bytes of the file
    ftype: str


class Model(WireObject):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    meta: ModelMeta


class ModelList(WireObject):
    object: Literal["list"]
    data: list[Model]


class Health(WireObject):
    """`stage`, `done` and `total` are there while the model loads, `message` when it failed."""

    status: Literal["ok", "loading", "failed"]
    stage: str | None = None
    done: int | None = None
    total: int | None = None
    message: str | None = None


class ErrorBody(WireObject):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(WireObject):
    error: ErrorBody
