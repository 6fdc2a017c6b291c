"""Fill-in-the-middle: the tokens that tell a model to write what stands between two texts.

    <prefix> text before <suffix> text after <middle>      the reply goes here

Does not know how text becomes ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from engine.gguf_file import GGUFFile
from engine.vocabulary import Vocabulary

# Metadata keys, and the tokens' texts where a file does not name them; llama.cpp knows the same.
_KEYS: Final = {
    "prefix": ("fim_pre", "prefix"),
    "suffix": ("fim_suf", "suffix"),
    "middle": ("fim_mid", "middle"),
}
_TEXTS: Final = {
    "prefix": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "▁<PRE>"),
        *("<｜fim▁begin｜>", "<|code_prefix|>"),
    ),
    "suffix": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "▁<SUF>"),
        *("<｜fim▁hole｜>", "<|code_suffix|>"),
    ),
    "middle": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "▁<MID>"),
        *("<｜fim▁end｜>", "<|code_middle|>"),
    ),
}


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """Their ids."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def from_gguf(cls, gguf: GGUFFile, vocabulary: Vocabulary) -> Self | None:
        """Those of a model; None when it has none of one kind."""
        special = {**vocabulary.user_defined, **vocabulary.control}
        ids = {role: _find(gguf, special, role, len(vocabulary.texts)) for role in _KEYS}
        found = {role: token_id for role, token_id in ids.items() if token_id is not None}
        return cls(**found) if found.keys() == ids.keys() else None


def _find(gguf: GGUFFile, special: Mapping[str, int], role: str, n_vocab: int) -> int | None:
    for key in _KEYS[role]:
        token_id = gguf.get_int(f"tokenizer.ggml.{key}_token_id", None)
        if token_id is not None and 0 <= token_id < n_vocab:
            return token_id
    return next((special[text] for text in _TEXTS[role] if text in special), None)
