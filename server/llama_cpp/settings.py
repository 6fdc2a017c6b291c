"""The sampler's settings as llama-server shows them: those in force, with a reply or in /props."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Literal, Self

from engine import SamplingParams
from server.wire_object import WireObject

# What llama-server can do and this server never does: clients find its names all the same.
_NEVER: Final[dict[str, Any]] = {
    "n_keep": 0,
    "n_discard": 0,
    "grammar_lazy": False,
    "grammar_triggers": [],
    "preserved_tokens": [],
    "backend_sampling": False,
    "lora": [],
}


class TokenBias(WireObject):
    bias: float
    token: int


class GenerationSettings(WireObject):
    """seed, n_predict: -1 = a new one each time, no limit; grammar: where one was asked for as
    text, as a schema is not made into one.
    """

    n_ctx: int
    n_predict: int
    max_tokens: int
    seed: int
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    typical_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: list[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    samplers: list[str]
    stop: list[str]
    stop_token_ids: list[int]
    min_tokens: int
    min_keep: int
    ignore_eos: bool
    n_probs: int
    post_sampling_probs: bool
    logit_bias: list[TokenBias]
    stream: bool
    timings_per_token: bool
    grammar: str
    n_keep: Literal[0]
    n_discard: Literal[0]
    grammar_lazy: Literal[False]
    grammar_triggers: list[str]
    preserved_tokens: list[int]
    backend_sampling: Literal[False]
    lora: list[Any]

    @classmethod
    def of(
        cls,
        params: SamplingParams,
        n_ctx: int,
        *,
        stream: bool = False,
        timings_per_token: bool = False,
        grammar: str = "",
    ) -> Self:
        """What is in force of a request, or, where none is there, without one."""
        given: dict[str, Any] = dataclasses.asdict(params)
        limit = -1 if params.max_tokens is None else params.max_tokens
        given |= {
            "max_tokens": limit,
            "n_predict": limit,
            "seed": -1 if params.seed is None else params.seed,
            "n_probs": params.n_probs or 0,
            "logit_bias": [{"bias": b, "token": i} for i, b in params.logit_bias.items()],
            "dry_sequence_breakers": list(params.dry_sequence_breakers),
            "samplers": list(params.samplers),
            "stop": list(params.stop),
            "stop_token_ids": sorted(params.stop_token_ids),
        }
        given |= {"stream": stream, "timings_per_token": timings_per_token, "grammar": grammar}
        return cls(n_ctx=n_ctx, **given, **_NEVER)
