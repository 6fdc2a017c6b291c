"""What the bodies of /api/chat and /api/generate share: options, format, thinking.

Options of loading (`num_ctx`, `num_thread`, ...) and `keep_alive` have no effect: one model is
loaded, once, and changes for nobody. A prompt longer than its context is refused as everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from engine import InvalidRequest, SamplingParams
from server.ask import Constraint
from server.request_object import Object, RequestBody
from server.sampling_fields import SamplingFields
from server.whole_numbers import Int32, Whole

MAX_LOGPROBS = 20  # Ollama's limit

_OF_LOADING = frozenset(
    {
        "draft_num_predict",
        "f16_kv",
        "low_vram",
        "main_gpu",
        "num_batch",
        "num_ctx",
        "num_gpu",
        "num_keep",
        "num_thread",
        "numa",
        "use_mlock",
        "use_mmap",
        "vocab_only",
    }
)


def _no_images(value: Any) -> Any:
    if value:
        raise ValueError("images are not supported: this model reads text only")
    return None


def _format(value: Any) -> Any:
    if value not in ("", "json") and not isinstance(value, dict):
        raise ValueError('must be "json" or a JSON schema')
    return value


NoImages = Annotated[None, BeforeValidator(_no_images, json_schema_input_type=list[str])]
Format = Annotated[
    Literal["", "json"] | Object,
    BeforeValidator(_format, json_schema_input_type=Literal["", "json"] | Object),
]


class Options(SamplingFields):
    """The sampler's settings, by the names of local servers."""

    max_tokens: Int32 | None = Field(None, validation_alias="num_predict")  # below 0 = no limit

    def params(self, defaults: SamplingParams) -> SamplingParams:
        """`defaults` with what is set here. Raises: InvalidRequest."""
        unlimited = self.max_tokens is not None and self.max_tokens < 0
        given = self.model_copy(update={"max_tokens": None}) if unlimited else self
        try:
            params = given.sampling_params(defaults)
        except InvalidRequest as error:
            message = str(error).replace("max_tokens", "num_predict")
            name = (error.param or "").replace("max_tokens", "num_predict")
            raise InvalidRequest(f"options.{message}", f"options.{name}") from None
        return dataclasses.replace(params, max_tokens=None) if unlimited else params

    def unknown_keys(self) -> Iterator[str]:
        return (key for key in super().unknown_keys() if key not in _OF_LOADING)


class OllamaBody(RequestBody):
    """Of both routes. As in Ollama, replies are streamed unless that is turned off."""

    inactive: ClassVar[dict[str, tuple[Any, ...]]] = {
        "shift": (False,),  # old text would be dropped without a word
        "truncate": (False,),
    }
    without_effect: ClassVar[frozenset[str]] = frozenset({"keep_alive"})

    model: str  # any name is accepted; replies carry the name of what is served
    stream: bool = True
    format: Format | None = None
    options: Options | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool = False
    top_logprobs: Whole | None = Field(None, ge=0, le=MAX_LOGPROBS)

    def params(self, defaults: SamplingParams) -> SamplingParams:
        """The settings asked for. Raises: InvalidRequest."""
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", "top_logprobs")
        params = (self.options or Options.model_validate({})).params(defaults)
        n_probs = (self.top_logprobs or 0) if self.logprobs else None
        return dataclasses.replace(params, n_probs=n_probs)

    def constraint(self) -> Constraint | None:
        """What the reply's text must be."""
        if isinstance(self.format, dict):
            return Constraint("json_schema", self.format, "format")
        return Constraint("json_object", None, "format") if self.format else None

    @property
    def effort(self) -> str | None:
        """How hard to think, in OpenAI's words."""
        if isinstance(self.think, bool):
            return "medium" if self.think else "none"
        return self.think
