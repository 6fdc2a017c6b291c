"""llama.cpp's `timings`, which every family shows on its final object, and some on each piece."""

from __future__ import annotations

from typing import Self

from engine import Progress
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
        """Of a reply that is complete."""
        return cls._of(
            totals.n_reused,
            totals.n_prefilled,
            totals.prefill_s,
            totals.n_decoded,
            totals.decode_s,
        )

    @classmethod
    def so_far(cls, now: Progress) -> Self:
        """Of one choice that is being written."""
        timings = now.timings
        n_prefilled = now.n_prefilled - now.n_cached
        return cls._of(
            now.n_cached, n_prefilled, timings.prefill_s, now.n_decoded, timings.decode_s
        )

    @classmethod
    def _of(
        cls, n_cached: int, n_prefilled: int, prefill_s: float, n_decoded: int, decode_s: float
    ) -> Self:
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
