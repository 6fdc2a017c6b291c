"""SentencePiece BPE: characters merged by the scores of the pieces that they make.

Of all neighbours whose joined text is a piece, those with the highest score are joined, the
leftmost first, again and again. Characters that are no piece are spelled in tokens of one byte.
Own code, as the `tokenizers` library wants a list of merges: half a million for a vocabulary of
262k, in seconds, and equal scores would get an order. Does not know special tokens.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from functools import lru_cache
from heapq import heapify, heappop, heappush
from operator import add
from typing import Final, Self

import numpy as np

from engine.errors import GGUFError
from engine.gguf_file import GGUFFile
from engine.vocabulary import SPACE

# Words come again: most of a prompt is found here. A word takes about 200 bytes.
CACHED_WORDS: Final = 16_384
LONGEST_CACHED: Final = 64  # characters


class SentencePiece:
    """The pieces of one vocabulary and the order of merging. Any thread may use it."""

    def __init__(self, ids: Mapping[str, int], ranks: array[int], byte_ids: list[int]) -> None:
        """ids:   piece -> id of the tokens that text may merge to.
        ranks:    i32[n_vocab]; the lower, the earlier a token is merged to.
        byte_ids: [256]; token for each byte of a character that is no piece.
        """
        self._ids = ids
        self._ranks = ranks
        self._byte_ids = byte_ids
        self._split = _word_starts(ids).split
        self._remember = lru_cache(CACHED_WORDS)(self._merge)

    @classmethod
    def from_gguf(cls, gguf: GGUFFile, ids: Mapping[str, int], byte_ids: list[int]) -> Self:
        """Read `tokenizer.ggml.scores`; ids, byte_ids as in the constructor. Raises GGUFError."""
        scores = gguf.get_array("tokenizer.ggml.scores")
        n_vocab = len(gguf.get_strings("tokenizer.ggml.tokens"))
        if len(scores) != n_vocab or np.isnan(scores).any():
            raise GGUFError(gguf.path, f"tokenizer.ggml.scores: not {n_vocab} numbers")
        costs = -scores.astype(np.float64)
        ranks = np.unique(costs, return_inverse=True)[1]  # equal scores, equal ranks
        return cls(ids, array("i", ranks.astype(np.intc).tobytes()), byte_ids)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text that holds no special token."""
        token_ids: list[int] = []
        for word in self._split(text.replace(" ", SPACE)):
            token_ids += self._remember(word) if len(word) <= LONGEST_CACHED else self._merge(word)
        return token_ids

    def _merge(self, word: str) -> tuple[int, ...]:
        """Token ids of a word, in n log n time.

        A symbol is a range of the word: at first a character, in the end a token. Each is found by
        where it starts and by where it ends.
        """
        n = len(word)
        end_of = [*range(1, n + 1), -1]  # by start; -1: none starts here. [n] serves as [-1] too
        start_of = list(range(-1, n))  # by end
        token_at, ranks = self._ids.get, self._ranks
        # A pair of neighbours in one integer, which compares fast: rank, where it starts and ends.
        bits = n.bit_length()
        mask = (1 << bits) - 1

        def pair(token_id: int, start: int, end: int) -> int:
            return ranks[token_id] << 2 * bits | start << bits | end

        seeds = map(token_at, map(add, word, word[1:]))
        queue = [pair(t, i, i + 2) for i, t in enumerate(seeds) if t is not None]
        heapify(queue)
        while queue:
            best = heappop(queue)
            start, end = best >> bits & mask, best & mask
            middle = end_of[start]
            if end_of[middle] != end:
                continue  # one of the two has been merged with another one since
            end_of[start], end_of[middle], start_of[end] = end, -1, start
            before, behind = start_of[start], end_of[end]
            if before >= 0 and (t := token_at(word[before:end])) is not None:
                heappush(queue, pair(t, before, end))
            if behind >= 0 and (t := token_at(word[start:behind])) is not None:
                heappush(queue, pair(t, start, behind))

        token_ids: list[int] = []
        start = 0
        while start < n:
            end = end_of[start]
            token = token_at(word[start:end])
            if token is None:  # a single character
                token_ids += [self._byte_ids[byte] for byte in word[start:end].encode()]
            else:
                token_ids.append(token)
            start = end
        return tuple(token_ids)


def _word_starts(pieces: Mapping[str, int]) -> re.Pattern[str]:
    """Where text may be cut before merging: between two characters that no piece has side by side,
    the second one a space. Merges never cross such a place.
    """
    inside = (piece for piece in pieces if piece.find(SPACE, 1) > 0)
    found = {SPACE}.union(*(re.findall(f"(?s).(?={SPACE})", piece) for piece in inside))
    return re.compile(f"(?<=[^{''.join(map(re.escape, found))}])(?={SPACE})")
