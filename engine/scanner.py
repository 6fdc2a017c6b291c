"""Scanner: streamed text, read in order by generators that wait where they need more.

A parser on it is written top to bottom as for whole text: `yield from` stops it until the next
piece comes. How the text was cut into pieces therefore cannot matter. Knows no format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]  # runs on when more text has come, or the end

QUOTES: Final = "`'\""
_NOWHERE: Final = 1 << 62


class Markers:
    """Texts to look for. Of those that begin at the same place the longest counts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts: Final = tuple(sorted(set(texts), key=len, reverse=True))
        self._found = re.compile("|".join(map(re.escape, self.texts)) or r"(?!)")
        self._longest = max(map(len, self.texts), default=0)

    def search(self, text: str, start: int) -> re.Match[str] | None:
        return self._found.search(text, start)

    def half(self, text: str, start: int) -> int:
        """Where the end of the text may be the beginning of a marker; its length if nowhere."""
        for pos in range(max(start, len(text) - self._longest + 1), len(text)):
            tail = text[pos:]
            if any(len(marker) > len(tail) and marker.startswith(tail) for marker in self.texts):
                return pos
        return len(text)


class Scanner:
    """The text that has come and is not read yet.

    ended: no more comes.
    """

    def __init__(self) -> None:
        self.ended = False
        self._text = ""
        self._pos = 0  # what lies before is read
        self._kept = _NOWHERE  # from here on the text is kept, to come back to

    def feed(self, text: str) -> None:
        done = max(0, min(self._pos, self._kept) - 1)  # but for one: a quote before a marker counts
        self._text = self._text[done:] + text
        self._pos -= done
        if self._kept != _NOWHERE:
            self._kept -= done

    def keep(self) -> None:
        """From now on, `rewind` comes back to here."""
        self._kept = self._pos

    def rewind(self) -> None:
        self._pos = self._kept

    def release(self) -> None:
        """Nobody will rewind to what is read."""
        self._kept = _NOWHERE

    def until(self, markers: Markers, emit: Callable[[str], None]) -> Steps[str]:
        """Pass the text before the first marker to `emit` as it comes, and read the marker.

        A marker between two equal quotes is text: somebody speaks of it. Returns the marker; '' at
        the end of the text.
        """
        seen = 0  # characters after `_pos` known to hold no marker
        while True:
            text, start = self._text, self._pos + seen
            found = markers.search(text, start)
            end = len(text) if self.ended else markers.half(text, start)
            if found and found.start() < end:
                quote = text[: found.start()][-1:]
                if quote and quote in QUOTES:
                    after = text[found.end() : found.end() + 1]
                    if after == quote:
                        seen = found.end() - self._pos
                        continue
                    waits = not after and not self.ended
                else:
                    waits = False
                if not waits:
                    emit(text[self._pos : found.start()])
                    self._pos = found.end()
                    return found[0]
                end = found.start()
            if end > self._pos:
                emit(text[self._pos : end])
                self._pos, seen = end, 0
            if self.ended:
                return ""
            yield

    def take_until(self, *texts: str) -> Steps[tuple[str, str]]:
        """(the text before the first of the markers, the marker or '' at the end)."""
        pieces: list[str] = []
        marker = yield from self.until(Markers(texts), pieces.append)
        return "".join(pieces), marker
