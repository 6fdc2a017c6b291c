"""SamplingParams: what one request asks of the sampler and of the engine's loop, and its limits.

Apart from the sampler, whose compiled loops bring Numba: a server checks requests without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from engine.errors import InvalidRequest

MAX_BIAS: Final = 100.0  # in logit_bias: 100 means only this token, -100 never this one


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What one request asks of the sampler and of the engine's loop.

    Raises InvalidRequest naming the field when a value is outside its range.
    """

    max_tokens: int | None = None  # None = until the context is full
    temperature: float = 0.8  # 0 = argmax, whatever else is set
    top_k: int = 40  # 0 or less = off
    top_p: float = 0.95  # 1 = off; 0 keeps only the best token
    min_p: float = 0.05  # 0 = off; keep tokens at least min_p times as likely as the best
    repeat_penalty: float = 1.0  # 1 = off
    repeat_last_n: int = 64  # tokens the three penalties look back on; -1 = all, 0 = none
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)  # -100 = never, 100 = only this one
    seed: int | None = None  # None = different each time
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False  # end-of-generation tokens are never chosen

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _check("max_tokens", self.max_tokens, 1, math.inf)
        _check("temperature", self.temperature, 0, 1e30)
        _check("top_p", self.top_p, 0, 1)
        _check("min_p", self.min_p, 0, 1)
        _check("repeat_penalty", self.repeat_penalty, 1e-6, 1e6)
        _check("repeat_last_n", self.repeat_last_n, -1, math.inf)
        _check("presence_penalty", self.presence_penalty, -2, 2)
        _check("frequency_penalty", self.frequency_penalty, -2, 2)
        for token_id, bias in self.logit_bias.items():
            _check("logit_bias", token_id, 0, math.inf, "token id")
            _check("logit_bias", bias, -MAX_BIAS, MAX_BIAS, f"bias of token {token_id}")


def _check(param: str, value: float, low: float, high: float, what: str = "") -> None:
    if not low <= value <= high:  # NaN fails too
        allowed = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        name = f"{param}: {what}" if what else param
        raise InvalidRequest(f"{name} must be {allowed}, not {value}", param=param)
