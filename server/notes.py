"""What is worth knowing of a reply beside its text: what its prompt had no place for, and where the
cache could not go on. Headers, the log line and each family's final object say the same.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from engine import Difference
from server.reply_events import Totals
from server.timings import WireTimings
from server.wire_object import WireObject

_MAX_SHOWN: Final = 120  # characters of each text; a header's may become twelve times as long


class CacheDifference(WireObject):
    """token: how many are equal; the texts are of a few tokens from just before there."""

    token: int
    cached: str
    prompt: str


class Notes(WireObject):
    """Only with the keys that have something to say."""

    dropped_messages: int | None = None
    cut_tokens: int | None = None
    cache_difference: CacheDifference | None = None


def summary(totals: Totals) -> dict[str, Any]:
    """The two fields that every family adds to its final object: `timings`, and `rushlight` where
    there is something to note.
    """
    said: dict[str, Any] = {}
    if totals.n_dropped:
        said["dropped_messages"] = totals.n_dropped
    if totals.n_cut:
        said["cut_tokens"] = totals.n_cut
    if found := totals.difference:
        said["cache_difference"] = CacheDifference(
            token=found.at, cached=found.cached[:_MAX_SHOWN], prompt=found.prompt[:_MAX_SHOWN]
        )
    return {"timings": WireTimings.of(totals), **({"rushlight": Notes(**said)} if said else {})}


def dropped_words(n_dropped: int, n_cut: int) -> str:
    """What had no place, for people; no request has both."""
    n, what = (n_dropped, "message") if n_dropped else (n_cut, "token")
    return f"{n} {what}{'s' * (n > 1)}" if n else ""


def headers(n_dropped: int, n_cut: int, difference: Difference | None) -> dict[str, str]:
    """ASCII whatever the texts hold: they are percent-encoded."""
    told = {}
    if dropped := dropped_words(n_dropped, n_cut):
        told["X-Rushlight-Dropped"] = dropped
    if difference:
        cached, prompt = (
            quote(text[:_MAX_SHOWN], safe="") for text in (difference.cached, difference.prompt)
        )
        told["X-Rushlight-Cache"] = (
            f"differs at token {difference.at}; cached={cached}; prompt={prompt}"
        )
    return told
