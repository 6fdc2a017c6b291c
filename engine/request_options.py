"""RequestOptions: what a request asks of the engine beside sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from engine.grammar import Grammar


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a request asks of the engine beside sampling.

    visible_ids: control tokens whose text is to show in Token.text, such as `ChatFormat`'s; all
                 others are ''. End tokens never show.
    grammar:     the reply is a text of it, unless a limit or a stop string cuts it.
    """

    visible_ids: frozenset[int] = frozenset()
    grammar: Grammar | None = None


DEFAULT_OPTIONS: Final = RequestOptions()
