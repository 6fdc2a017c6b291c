"""Merging the characters of a text into tokens, the best pair of neighbours first.

What SentencePiece and BPE in characters share. Own code, as the `tokenizers` library wants a list
of merges and keeps it in memory: half a million for a vocabulary of 262k, in a second and 170 MB;
and equal ranks would get an order. Does not know what makes one pair better than another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Final

from engine.text.vocabulary import SPACE

# Words come again: most of a prompt is found here. A word takes about 200 bytes.
CACHED_WORDS: Final = 16_384
LONGEST_CACHED: Final = 64  # characters

# (word, start, middle, end) -> rank of joining word[start:middle] and word[middle:end], the lower
# the earlier; None when they do not join.
RankOfPair = Callable[[str, int, int, int], int | None]


class CharacterMerger:
    """Of all pairs of neighbours the one of the lowest rank is joined, the leftmost of equals
    first, again and again. Characters that are no token are spelled in tokens of one byte.

    Any thread may use it.
    """

    def __init__(self, ids: Mapping[str, int], rank_of: RankOfPair, byte_ids: list[int]) -> None:
        """ids:   text -> id of the tokens that text may merge to.
        byte_ids: [256]; token for each byte of a character that is no token.
        """
        self._ids = ids
        self._rank_of = rank_of
        self._byte_ids = byte_ids
        self._split = _word_starts(ids).split
        self._remember = lru_cache(CACHED_WORDS)(self._token_ids)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text that holds no special token."""
        found: list[int] = []
        for word in self._split(text.replace(" ", SPACE)):
            short = len(word) <= LONGEST_CACHED
            found += self._remember(word) if short else self._token_ids(word)
        return found

    def _token_ids(self, word: str) -> tuple[int, ...]:
        found: list[int] = []
        for part in merge(word, self._rank_of):
            token_id = self._ids.get(part)
            if token_id is None:
                found += [self._byte_ids[byte] for byte in part.encode()]
            else:
                found.append(token_id)
        return tuple(found)


def merge(word: str, rank_of: RankOfPair) -> list[str]:
    """The parts of a word once nothing more can be joined, in n log n time.

    A symbol is a range of the word: at first a character, in the end a part. Each is found by where
    it starts and by where it ends.
    """
    n = len(word)
    end_of = [*range(1, n + 1), -1]  # by start; -1: none starts here. [n] serves as [-1] too
    start_of = list(range(-1, n))  # by end
    # A pair of neighbours in one integer, which compares fast: rank, where it starts and ends.
    bits = n.bit_length()
    mask = (1 << bits) - 1
    queue = [
        rank << 2 * bits | i << bits | i + 2
        for i in range(n - 1)
        if (rank := rank_of(word, i, i + 1, i + 2)) is not None
    ]
    heapify(queue)
    while queue:
        best = heappop(queue)
        start, end = best >> bits & mask, best & mask
        middle = end_of[start]
        if end_of[middle] != end:
            continue  # one of the two has been merged with another one since
        end_of[start], end_of[middle], start_of[end] = end, -1, start
        before, behind = start_of[start], end_of[end]
        if before >= 0 and (rank := rank_of(word, before, start, end)) is not None:
            heappush(queue, rank << 2 * bits | before << bits | end)
        if behind >= 0 and (rank := rank_of(word, start, end, behind)) is not None:
            heappush(queue, rank << 2 * bits | start << bits | behind)

    parts = []
    start = 0
    while start < n:
        parts.append(word[start : end_of[start]])
        start = end_of[start]
    return parts


def _word_starts(pieces: Mapping[str, int]) -> re.Pattern[str]:
    """Where text may be cut before merging: between two characters that no piece has side by side,
    the second one a space. Merges never cross such a place.
    """
    inside = (piece for piece in pieces if piece.find(SPACE, 1) > 0)
    found = {SPACE}.union(*(re.findall(f"(?s).(?={SPACE})", piece) for piece in inside))
    return re.compile(f"(?<=[^{''.join(map(re.escape, found))}])(?={SPACE})")
