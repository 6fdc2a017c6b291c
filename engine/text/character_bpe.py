"""BPE in characters, as Gemma 4 has it: spaces spelled as SPACE, whole lines merged by a list.

Does not know special tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Self

from engine.files.gguf_file import GGUFFile
from engine.text.character_merger import CharacterMerger

_NEWLINES: Final = re.compile("(\n+)")


class CharacterBPE:
    """The merges of one vocabulary. Any thread may use it."""

    def __init__(self, merger: CharacterMerger, newlines: Mapping[str, int]) -> None:
        """newlines: runs of newlines that are one token whatever the merges say."""
        self._merger = merger
        self._newlines = newlines

    @classmethod
    def from_gguf(
        cls, gguf: GGUFFile, ids: Mapping[str, int], byte_ids: list[int], ignore_merges: bool
    ) -> Self:
        """Read `tokenizer.ggml.merges`.

        ids, byte_ids: as CharacterMerger's.
        ignore_merges: whether every run of newlines in the vocabulary is one token.
        Raises GGUFError.
        """
        merges = gguf.get_strings("tokenizer.ggml.merges").to_list()
        ranks = dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))

        def rank_of(word: str, start: int, middle: int, end: int) -> int | None:
            return ranks.get(f"{word[start:middle]} {word[middle:end]}")

        newlines = {text: i for text, i in ids.items() if ignore_merges and not text.strip("\n")}
        return cls(CharacterMerger(ids, rank_of, byte_ids), newlines)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text that holds no special token."""
        found: list[int] = []
        for line in _NEWLINES.split(text):
            if line in self._newlines:
                found.append(self._newlines[line])
            else:
                found += self._merger.encode(line)
        return found
