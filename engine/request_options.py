"""RequestOptions: what one request asks of the engine beside sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The defaults ask for nothing. Raises InvalidRequest naming a field out of its range."""

    visible_ids: frozenset[int] = frozenset()  # special tokens whose text shows in Token.text
    priority: int = 0  # with the policy "priority": a higher one runs first, and preempts
    max_time_s: float | None = None  # for queue, prefill and decode together; None = no limit
    replaces_key: str | None = None  # a waiting request with the same key is ended by this one

    def __post_init__(self) -> None:
        if self.max_time_s is not None and not 0 < self.max_time_s < 1e7:  # NaN fails too
            raise InvalidRequest(
                f"max_time_s must be more than 0 and less than 10000000, not {self.max_time_s}",
                param="max_time_s",
            )


DEFAULT_OPTIONS: Final = RequestOptions()
