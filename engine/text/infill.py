"""Fill-in-the-middle: the tokens that tell a model to write what stands between two texts.

    <prefix> text before <suffix> text after <middle>      the reply goes here

Does not know how text becomes ids, nor how a vocabulary tells which tokens these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from engine.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """Their ids."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Self | None:
        """Those of a model; None when it has none of one kind."""
        prefix, suffix, middle = map(vocabulary.roles.get, ("fim_pre", "fim_suf", "fim_mid"))
        if prefix is None or suffix is None or middle is None:
            return None
        return cls(prefix, suffix, middle)
