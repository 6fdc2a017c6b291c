"""RequestOptions: what a request asks of the engine beside sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a request asks of the engine beside sampling.

    visible_ids: control tokens whose text is to show in Token.text, such as `ChatFormat`'s; all
                 others are ''. End tokens never show.
    """

    visible_ids: frozenset[int] = frozenset()


DEFAULT_OPTIONS: Final = RequestOptions()
