"""Special tokens in text: finding them, and keeping the text of messages from becoming one.

A chat template prints control tokens as text (`<|im_end|>`) among the users' words, and one string
comes out. Before rendering, `shield` breaks every special token's text inside a message with MARK;
afterwards only the template's own are whole: `split` finds them, and `unshield` gives back the
words between. Does not know which tokens a model has, nor which of them a message may hold.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Final

# VARIATION SELECTOR-256. Text has no use for it (and a message that has it gets it back: it is
# doubled), Jinja's filters leave it alone, and it is printable, so that repr() does not escape it.
MARK: Final = "\U000e01ef"

_MARKS: Final = re.compile(f"{MARK}({MARK}?)")


class SpecialTokens:
    """A set of special tokens: text -> token id.

    The search looks where the first character of some token stands, and compares by length: linear
    in the text whatever the number of tokens.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = {text: token_id for text, token_id in ids.items() if text}
        self._sorted = sorted(self._ids)
        self._longest = max(map(len, self._ids), default=0)
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        firsts = "".join(map(re.escape, self._lengths))
        self._first = re.compile(f"[{firsts}]" if firsts else r"(?!)")

    def split(self, text: str) -> Iterator[str | int]:
        """The text in order: ordinary pieces (str, not empty) and special tokens (int).

        Of tokens that begin at the same place the longest counts.
        """
        done = pos = 0
        while found := self._first.search(text, pos):
            start = found.start()
            token = self._longest_at(text, start)
            if not token:
                pos = start + 1
                continue
            if start > done:
                yield text[done:start]
            yield self._ids[token]
            done = pos = start + len(token)
        if done < len(text):
            yield text[done:]

    def shield(self, text: str) -> str:
        """The text with every special token in it broken by MARK after its first character.

        A beginning of one at the very end is broken too: the template may print the rest behind it.
        """
        text = text.replace(MARK, MARK + MARK)
        pieces = []
        done = 0
        for found in self._first.finditer(text):
            start = found.start()
            if self._longest_at(text, start) or self._begins_at_end(text, start):
                pieces.append(text[done : start + 1])
                done = start + 1
        return MARK.join([*pieces, text[done:]])

    def _longest_at(self, text: str, start: int) -> str:
        for length in self._lengths[text[start]]:
            candidate = text[start : start + length]
            if candidate in self._ids:
                return candidate
        return ""

    def _begins_at_end(self, text: str, start: int) -> bool:
        if len(text) - start >= self._longest:
            return False
        tail = text[start:]
        place = bisect_left(self._sorted, tail)
        return place < len(self._sorted) and self._sorted[place].startswith(tail)


def unshield(text: str) -> str:
    """The text without shielding, exactly as it was before `shield`."""
    return _MARKS.sub(r"\1", text) if MARK in text else text
