"""What the bodies of OpenAI's two completion routes share."""

from __future__ import annotations

import dataclasses

from pydantic import Field

from engine import InvalidRequest, RequestOptions, SamplingParams
from server.request_object import RequestBody, RequestObject
from server.sampling_fields import SamplingFields
from server.whole_numbers import Int32, Whole

MAX_CHOICES = 128  # OpenAI's limits
MAX_LOGPROBS = 20


class StreamOptions(RequestObject):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # hides token lengths from the network; no effect here
    include_progress: bool | None = None  # data chunks, while the request waits


class CompletionFields(SamplingFields, RequestBody):
    """Of both routes."""

    model: str | None = None  # any name is accepted; replies carry the name of what is served
    stream_options: StreamOptions | None = None
    return_progress: bool | None = None  # llama.cpp's name for include_progress
    timings_per_token: bool | None = None  # with every piece of a stream
    n: Whole | None = Field(None, ge=1, le=MAX_CHOICES)
    user: str | None = None
    priority: Int32 | None = None  # a higher one runs first, where the policy is "priority"
    max_time_ms: float | None = None  # for queue, prefill and decode together
    n_probs: Int32 | None = Field(None, ge=0)  # llama.cpp's way to ask for logprobs; 0 = none
    cache_prompt: bool | None = None  # false = the whole prompt is read anew, as to measure that

    @property
    def wanted_probs(self) -> int | None:
        """How many alternatives to show for each token; None = no probabilities at all."""
        return self.n_probs or None

    def sampling_params(self, defaults: SamplingParams) -> SamplingParams:
        params = super().sampling_params(defaults)
        return dataclasses.replace(params, n_probs=self.wanted_probs)

    def options(self) -> RequestOptions:
        """What is asked of the engine beside sampling. Raises: InvalidRequest."""
        if self.max_time_ms is not None and not 0 < self.max_time_ms < 1e10:
            raise InvalidRequest(
                f"max_time_ms must be more than 0 and less than 1e10, not {self.max_time_ms:g}",
                "max_time_ms",
            )
        max_time_s = None if self.max_time_ms is None else self.max_time_ms / 1e3
        return RequestOptions(
            use_cache=self.cache_prompt is not False,
            priority=self.priority or 0,
            max_time_s=max_time_s,
        )

    @property
    def include_usage(self) -> bool:
        """Whether a stream should end with a chunk of token counts."""
        return self.stream and bool(self.stream_options and self.stream_options.include_usage)

    @property
    def include_progress(self) -> bool:
        """Whether a stream should have chunks that say how far it is."""
        asked = self.stream_options and self.stream_options.include_progress
        return bool(asked or self.return_progress)
