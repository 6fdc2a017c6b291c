"""Stop strings in streamed text: what may be shown now, what must wait, where the text is cut.

Pure text in, text out. Does not know tokens, or why else a generation ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

NEVER: Final = 1 << 62


class StopChecker:
    """Cuts streamed text at the earliest place where any of the stop strings begins.

    How the text is split over pushes does not matter: what is shown in the end is `text[:start]`,
    with the smallest `start` at which a whole stop string stands. Text that may begin one waits; so
    does one that is whole while a longer one, begun before it, may still come true.
    Time is linear in the text, for each stop string. Empty stop strings are ignored.
    """

    def __init__(self, stop: Iterable[str]) -> None:
        self._matchers = [_Matcher(text) for text in dict.fromkeys(stop) if text]
        self._held = ""
        self._held_at = 0  # where it begins in the text
        self._cut = NEVER  # where the earliest whole stop string begins, as far as is known
        self._cut_by = ""  # the stop string there
        self.stopped = False

    @property
    def stop_string(self) -> str | None:
        """Which of them ended the text, if one did."""
        return self._cut_by if self.stopped else None

    def push(self, text: str) -> tuple[str, bool]:
        """(text to show now, whether a stop string ended the text); ('', True) ever after."""
        if self.stopped:
            return "", True
        if not self._matchers:
            return text, False
        pos = self._held_at + len(self._held)  # characters seen
        self._held += text
        for char in text:
            pos += 1
            for matcher in self._matchers:
                start = pos - len(matcher.text)
                if matcher.advance(char) and start < self._cut:
                    self._cut, self._cut_by = start, matcher.text
            if self._cut <= self._first_possible(pos):
                self.stopped = True
                break
        return self._show_until(min(self._cut, self._first_possible(pos))), self.stopped

    def flush(self) -> str:
        """The waiting text, when no more comes. Sets `stopped` if a whole stop string is in it."""
        self.stopped = self._cut < NEVER
        shown = self._show_until(min(self._cut, self._held_at + len(self._held)))
        self._held = ""
        return shown

    def _first_possible(self, pos: int) -> int:
        """Where the earliest stop string begins that the text up to `pos` may yet complete."""
        return pos - max(matcher.n_matched for matcher in self._matchers)

    def _show_until(self, end: int) -> str:
        n_shown = end - self._held_at
        shown, self._held = self._held[:n_shown], self._held[n_shown:]
        self._held_at = end
        return shown


class _Matcher:
    """Finds one string in a stream of characters (Knuth, Morris and Pratt)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.n_matched = 0  # length of the longest beginning of `text` that the stream ends with
        # For each length matched, the next shorter one that the stream ends with as well.
        self._shorter = [0, 0]
        for char in text[1:]:
            n = self._shorter[-1]
            while n and text[n] != char:
                n = self._shorter[n]
            self._shorter.append(n + 1 if text[n] == char else 0)

    def advance(self, char: str) -> bool:
        """Take one character; True when `text` is complete with it."""
        n = self.n_matched
        while n and self.text[n] != char:
            n = self._shorter[n]
        n += self.text[n] == char
        complete = n == len(self.text)
        self.n_matched = self._shorter[n] if complete else n
        return complete
