"""ReplyParser: a model's streamed text taken apart into content and reasoning.

Marks never show; half of one at the end of a piece waits until it is told from text. Whitespace
next to a mark belongs to it. Does not know where the text comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.deltas import ContentDelta, Delta, ReasoningDelta
from engine.scanner import Markers, Scanner, Steps
from engine.thinking import ThinkingMarks


class ReplyParser:
    """Reads one reply. What `push` and `finish` give, joined, does not depend on the pieces."""

    def __init__(self, thinking: Sequence[ThinkingMarks], written: str = "") -> None:
        """written: the beginning of the reply that the prompt holds already: it is read, not given
        out.
        """
        self._thinking = {marks.open: marks for marks in thinking}
        self._scanner = Scanner()
        self._deltas: list[Delta] = []
        self._content = _Trimmed(lambda text: self._deltas.append(ContentDelta(text)))
        self._reasoning = _Trimmed(lambda text: self._deltas.append(ReasoningDelta(text)))
        self._steps = self._reply()
        self.push(written)

    def push(self, text: str) -> list[Delta]:
        """What is certain with this text."""
        self._scanner.feed(text)
        return self._run()

    def finish(self) -> list[Delta]:
        """The text that was held back, when no more comes. The last call."""
        self._scanner.ended = True
        return self._run()

    def _run(self) -> list[Delta]:
        next(self._steps, None)
        deltas, self._deltas = self._deltas, []
        return deltas

    def _reply(self) -> Steps[None]:
        opens = Markers(self._thinking)
        while opened := (yield from self._scanner.until(opens, self._content.push)):
            self._content.drop_space()
            self._reasoning.begin()
            close = Markers([self._thinking[opened].close])
            if not (yield from self._scanner.until(close, self._reasoning.push)):
                self._reasoning.flush()
                return
            self._reasoning.drop_space()
            self._content.begin()
        self._content.flush()


class _Trimmed:
    """Passes text on, but for the whitespace before a mark, and between a mark and the first text."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._space = ""  # comes before the next text, or before a mark
        self._has_text = False
        self._skips_space = False

    def begin(self) -> None:
        """A mark is over."""
        self._skips_space = not self._has_text

    def push(self, text: str) -> None:
        text = self._space + text
        if self._skips_space:
            text = text.lstrip()
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._skips_space, self._has_text = False, True
            self._emit(shown)

    def drop_space(self) -> None:
        """A mark comes."""
        self._space = ""

    def flush(self) -> None:
        """The text is over without one."""
        if self._space:
            self._emit(self._space)
            self._space = ""
