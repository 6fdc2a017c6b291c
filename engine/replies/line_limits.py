"""Replies that end with a line: where the indentation becomes less, or when they took too long.

Editors ask for both, to fill in code. Pure text in, text out; does not know tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class LineLimits:
    """Cuts streamed text. How it is split over pushes does not matter, but for the time it takes.

    n_indent: a line behind the first that begins with fewer spaces and tabs, and goes on with
    something else, ends the text, which is cut where that would stand. Empty lines count for
    nothing. 0 = no limit.
    max_s: from the first push on; the line that is being written then is the last. None = no limit.
    """

    def __init__(
        self, n_indent: int, max_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._n_indent, self._max_s, self._clock = n_indent, max_s, clock
        self._end_s: float | None = None
        self._n_spaces: int | None = None  # that this line has so far; None = it has begun
        self.is_over = False

    def push(self, text: str) -> str:
        """What is left of more text; "" ever after the end."""
        if self.is_over:
            return ""
        if self._max_s is not None and self._end_s is None:
            self._end_s = self._clock() + self._max_s
        if not self._n_indent and self._end_s is None:
            return text
        is_late = self._end_s is not None and self._clock() > self._end_s
        for i, char in enumerate(text):
            if char == "\n":
                self._n_spaces = 0
                if is_late:
                    return self._end(text[: i + 1])
            elif self._n_spaces is not None and char in " \t":
                self._n_spaces += 1
            elif self._n_spaces is not None and char != "\r":
                if self._n_spaces < self._n_indent:
                    return self._end(text[:i])
                self._n_spaces = None
        return text

    def _end(self, text: str) -> str:
        self.is_over = True
        return text
