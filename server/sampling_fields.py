"""The sampler's settings as request fields: the names of local servers, which every family takes.

A null is an absent field. Ranges are SamplingParams' to check.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BeforeValidator, Field

from engine import INFILL, SAMPLERS, InvalidRequest, SamplingParams
from server.request_object import RequestObject
from server.whole_numbers import Int32, Whole

MAX_STOP_STRINGS = 64

ALIASES = {
    "max_tokens": ("max_tokens", "max_completion_tokens", "n_predict"),
    "repeat_penalty": ("repeat_penalty", "repetition_penalty"),
    "repeat_last_n": ("repeat_last_n", "repetition_context_size"),
}


def _alias(name: str) -> Any:
    return Field(None, validation_alias=AliasChoices(*ALIASES[name]))


def _stop_strings(value: Any) -> Any:
    """A string or a list of strings; empty ones can stop nothing and are dropped."""
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(text, str) for text in strings):
        raise ValueError("must be a string or a list of strings")
    if len(strings) > MAX_STOP_STRINGS:
        raise ValueError(f"has {len(strings)} strings; at most {MAX_STOP_STRINGS} are allowed")
    return [text for text in strings if text]


def _token_biases(value: Any) -> Any:
    """JSON keys are strings; they must spell token ids."""
    if not isinstance(value, dict):
        raise ValueError("must be an object of token ids and numbers")
    for key in value:
        # "05" and "5" would be two biases of one token.
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and key == str(int(key))):
            raise ValueError(f"the key '{key:.40}' is not a token id")
    return {int(key): bias for key, bias in value.items()}


# llama.cpp's letters for its samplers, in their usual order.
_SAMPLERS = dict(zip("edskypmxti", (*SAMPLERS, INFILL), strict=True))


def _samplers(value: Any) -> Any:
    """A list of names, or a text of letters."""
    if not isinstance(value, str):
        return value
    if wrong := [letter for letter in value if letter not in _SAMPLERS]:
        raise ValueError(f"has the letter '{wrong[0]}', which stands for no sampler")
    return [_SAMPLERS[letter] for letter in value]


Samplers = Annotated[list[str], BeforeValidator(_samplers, json_schema_input_type=str | list[str])]
StopStrings = Annotated[
    list[str], BeforeValidator(_stop_strings, json_schema_input_type=str | list[str])
]
TokenBiases = Annotated[
    dict[int, float], BeforeValidator(_token_biases, json_schema_input_type=dict[str, float])
]


class SamplingFields(RequestObject):
    """None = absent: config.toml decides."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = ALIASES

    max_tokens: Int32 | None = _alias("max_tokens")  # -1 = until the context is full
    temperature: float | None = None
    top_k: Int32 | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = _alias("repeat_penalty")
    repeat_last_n: Int32 | None = _alias("repeat_last_n")
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: Int32 | None = None
    dry_penalty_last_n: Int32 | None = None
    dry_sequence_breakers: list[str] | None = Field(None, min_length=1)
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    top_n_sigma: float | None = None
    typical_p: float | None = None
    min_keep: Int32 | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    mirostat: Int32 | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    samplers: Samplers | None = None  # those in force, in order
    logit_bias: TokenBiases | None = None
    seed: Whole | None = Field(None, ge=-(2**63), le=2**63 - 1)  # -1 = a new one each time
    stop: StopStrings | None = None
    stop_token_ids: list[Int32] | None = Field(None, max_length=MAX_STOP_STRINGS)
    min_tokens: Int32 | None = None
    ignore_eos: bool | None = None

    def least_tokens(self) -> int:
        """The smallest max_tokens of this request."""
        return 1

    def sampling_params(self, defaults: SamplingParams) -> SamplingParams:
        """`defaults` with everything that the request sets. Raises: InvalidRequest."""
        params = dataclasses.replace(defaults, **dict(self._given()))
        least = self.least_tokens()
        if params.max_tokens is not None and params.max_tokens < least:
            raise InvalidRequest(
                f"max_tokens must be at least {least}, not {params.max_tokens}", "max_tokens"
            )
        return params

    def _given(self) -> Iterator[tuple[str, Any]]:
        for field in dataclasses.fields(SamplingParams):
            value = getattr(self, field.name) if field.name in type(self).model_fields else None
            if value is not None:
                yield field.name, _READ[field.name](value) if field.name in _READ else value


# Where the wire and the engine say the same thing differently.
_READ: dict[str, Any] = {
    "max_tokens": lambda n: None if n == -1 else n,
    "seed": lambda seed: None if seed == -1 else seed & (2**63 - 1),  # never negative
    "stop": tuple,
    "stop_token_ids": frozenset,
    "dry_sequence_breakers": tuple,
    "samplers": tuple,
}
