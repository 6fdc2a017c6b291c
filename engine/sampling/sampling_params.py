"""SamplingParams: what one request asks of the sampler and of the engine's loop, and its limits.

Apart from the sampler, whose compiled loops bring Numba: a server checks requests without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final

from engine.errors import InvalidRequest

MAX_BIAS: Final = 100.0  # in logit_bias: 100 means only this token, -100 never this one
MAX_PROBS: Final = 1000  # more alternatives than that for every token are not worth their bytes

# What changes or cuts the choice, by llama.cpp's names and in its order; how each is turned off.
_OFF: Final[dict[str, dict[str, float]]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": -1.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
}
SAMPLERS: Final = tuple(_OFF)
INFILL: Final = "infill"  # one more, which only those who ask for it have
_FIRST: Final = ("penalties", "dry")  # these see every token; what follows sees what is left

_RANGES: Final = {
    "min_tokens": (0, math.inf),
    "repeat_penalty": (1e-6, 1e6),
    "repeat_last_n": (-1, math.inf),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "dry_multiplier": (0, 1e6),
    "dry_base": (0, 1e6),
    "dry_allowed_length": (0, math.inf),
    "dry_penalty_last_n": (-1, math.inf),
    "temperature": (0, 1e30),
    "dynatemp_range": (0, 1e30),
    "dynatemp_exponent": (0, 1e3),
    "top_n_sigma": (-math.inf, math.inf),
    "typical_p": (0, 1),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "min_keep": (0, math.inf),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "mirostat": (0, 2),
    "mirostat_tau": (0, 1e3),
    "mirostat_eta": (0, 1e3),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What one request asks of the sampler and of the engine's loop.

    Settings that llama.cpp has too are called and defined as there, and applied in its order.
    Raises InvalidRequest naming the field when a value is outside its range.
    """

    max_tokens: int | None = None  # None = until the context is full
    min_tokens: int = 0  # before that many, no token that would end the reply is chosen
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()  # end the reply as the model's own end tokens do
    ignore_eos: bool = False  # end-of-generation tokens are never chosen
    seed: int | None = None  # None = different each time
    n_probs: int | None = None  # log-probabilities: of the chosen token and of the n best; None: no
    post_sampling_probs: bool = False  # those in what the token was drawn from, not the model's own
    logit_bias: dict[int, float] = field(default_factory=dict)  # -100 = never, 100 = only this one

    repeat_penalty: float = 1.0  # 1 = off
    repeat_last_n: int = 64  # tokens the three penalties look back on; -1 = all, 0 = none
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    # DRY: a token that would go on with a repetition of n tokens loses
    # multiplier * base^(n - allowed_length) of its logit.
    dry_multiplier: float = 0.0  # 0 = off
    dry_base: float = 1.75  # below 1 = off
    dry_allowed_length: int = 2  # shorter repetitions are free
    dry_penalty_last_n: int = 64  # tokens it looks back on; -1 = all, 0 = off
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")  # none goes on across these

    temperature: float = 0.8  # 0 = argmax, whatever else is set
    dynatemp_range: float = 0.0  # temperature +- this, by the entropy; 0 = off
    dynatemp_exponent: float = 1.0
    top_n_sigma: float = -1.0  # keep logits within n standard deviations of the best; 0, less = off
    top_k: int = 40  # 0 or less = off
    typical_p: float = 1.0  # 1 = off
    top_p: float = 0.95  # 1 = off; 0 keeps only the best token
    min_p: float = 0.05  # 0 = off; keep tokens at least min_p times as likely as the best
    min_keep: int = 0  # typical_p, top_p, min_p and XTC leave at least that many tokens
    xtc_probability: float = 0.0  # how often XTC cuts; 0 = never
    xtc_threshold: float = 0.1  # it drops all tokens this likely but the last; above 0.5 = off
    mirostat: int = 0  # 1, 2: aims at a surprise of tau bits; no dynatemp and no cuts then
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1  # how fast it corrects its aim

    samplers: tuple[str, ...] = SAMPLERS  # those in force, in order; none counts with mirostat

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _check("max_tokens", self.max_tokens, 0, math.inf)
        if self.n_probs is not None:
            _check("n_probs", self.n_probs, 0, MAX_PROBS)
        for param, (low, high) in _RANGES.items():
            _check(param, getattr(self, param), low, high)
        for token_id in self.stop_token_ids:
            _check("stop_token_ids", token_id, 0, math.inf, "token id")
        if "" in self.dry_sequence_breakers:
            raise InvalidRequest(
                "dry_sequence_breakers: an empty string breaks nothing; leave it out",
                param="dry_sequence_breakers",
            )
        _check_samplers(self.samplers)
        for token_id, bias in self.logit_bias.items():
            _check("logit_bias", token_id, 0, math.inf, "token id")
            _check("logit_bias", bias, -MAX_BIAS, MAX_BIAS, f"bias of token {token_id}")

    def in_force(self) -> SamplingParams:
        """These, with the samplers turned off that are not to be used."""
        if self.mirostat or self.samplers == SAMPLERS:
            return self
        off = {k: v for name in _OFF if name not in self.samplers for k, v in _OFF[name].items()}
        return replace(self, **off)  # type: ignore[arg-type]


def _check_samplers(names: tuple[str, ...]) -> None:
    for name in names:
        if name not in (*SAMPLERS, INFILL):
            known = ", ".join((*SAMPLERS, INFILL))
            raise InvalidRequest(f"samplers: there is no '{name:.40}'; known: {known}", "samplers")
    if len(set(names)) < len(names):
        raise InvalidRequest("samplers: one stands there twice", "samplers")
    first = [name for name in _FIRST if name in names]
    if list(names[: len(first)]) != first:
        raise InvalidRequest(
            f"samplers: {' and '.join(first)} can only stand at the beginning", "samplers"
        )


def _check(param: str, value: float, low: float, high: float, what: str = "") -> None:
    if not low <= value <= high:  # NaN fails too
        allowed = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        name = f"{param}: {what}" if what else param
        raise InvalidRequest(f"{name} must be {allowed}, not {value}", param=param)
