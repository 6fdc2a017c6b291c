"""llama.cpp's `timings`, which every family shows on its final object."""

from __future__ import annotations

from typing import Self

from server.reply_events import Totals
from server.wire_object import WireObject


class WireTimings(WireObject):
    """Its `prompt_n` does not count tokens that came from the cache.

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
    def of(cls, totals: Totals) -> Self:
        return cls(
            cache_n=totals.n_reused,
            prompt_n=totals.n_prefilled,
            prompt_ms=round(totals.prefill_s * 1e3, 3),
            prompt_per_token_ms=_ratio(totals.prefill_s * 1e3, totals.n_prefilled),
            prompt_per_second=_ratio(totals.n_prefilled, totals.prefill_s),
            predicted_n=totals.n_decoded,
            predicted_ms=round(totals.decode_s * 1e3, 3),
            predicted_per_token_ms=_ratio(totals.decode_s * 1e3, totals.n_decoded),
            predicted_per_second=_ratio(totals.n_decoded, totals.decode_s),
        )


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 3) if whole > 0 else 0.0
