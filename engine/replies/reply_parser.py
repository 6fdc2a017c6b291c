"""ReplyParser: a model's streamed text taken apart into content, reasoning and tool calls.

Marks never show; half of one at the end of a piece waits until it is told from text. Whitespace
next to a mark belongs to it. Does not know where the text comes from, nor any format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from engine.replies.thinking import THINK, ThinkingMarks
from engine.tool_formats.base import Calls, Tool, ToolFormat
from engine.tool_formats.deltas import ContentDelta, Delta, ReasoningDelta
from engine.tool_formats.python_calls import read_python_or_json_calls
from engine.tool_formats.scanner import Emit, Markers, Scanner, Steps, Unexpected

# Where models put a call whose format they have not learnt.
FENCES: Final = ("```json", "```tool_call", "```tool_code", "```python")


class ReplyParser:
    """Reads one reply. What `push` and `finish` give, joined, does not depend on the pieces.

    A call that breaks off before its name is complete is content, all of it.
    open_thinking: the marks of the thinking that the text so far is in.
    """

    def __init__(
        self,
        thinking: Sequence[ThinkingMarks] = (),
        tool_format: ToolFormat | None = None,
        tools: Sequence[Tool] | None = None,
        hidden: Iterable[str] = (),
        ends_thinking: Iterable[str] = (),
        written: str = "",
    ) -> None:
        """thinking:      marks that the model is known to use. Without any, THINK may open a reply.
        tool_format:   None: no calls are looked for.
        tools:         those of the request; None when they are not known.
        hidden:        more marks that never show.
        ends_thinking: marks of the tool format that end the thinking without its own mark.
        written:       the beginning of the reply that the prompt holds: read, but not given out.
        """
        self.open_thinking: ThinkingMarks | None = None
        self._scanner = Scanner()
        self._deltas: list[Delta] = []
        self._content = Trimmed(lambda text: self._deltas.append(ContentDelta(text)))
        self._reasoning = Trimmed(lambda text: self._deltas.append(ReasoningDelta(text)))
        self._calls = Calls(self._scanner, self._deltas.append, tools)
        self._is_known_to_think = bool(thinking)
        self._thinking = {marks.open: marks for marks in thinking or (THINK,)}
        self._hidden = {*hidden, *(m for marks in thinking for m in (marks.close, *marks.dropped))}
        self._tool_format = tool_format
        self._ends_thinking = tuple(ends_thinking)
        self._steps = self._reply()
        self.push(written)
        self._scanner.silence()
        self._calls.n = 0
        self._content.restart()
        self._reasoning.restart()

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
        deltas = self._deltas.copy()
        self._deltas.clear()
        return deltas

    def _reply(self) -> Steps[None]:
        yield from self._read_content()
        self._content.flush()

    def _read_content(self, *ends: str) -> Steps[str]:
        """Content, and the thinking and the calls in it, up to a mark that ends it; '' for none."""
        while True:
            if self._tool_format and not self._content.has_text:
                while (yield from self._try_plain_call()):
                    pass
            mark = yield from self._scanner.until(self._markers(ends), self._content.push)
            if not mark or mark in ends:
                return mark
            if mark in self._thinking:
                yield from self._read_thinking(self._thinking[mark], ends)
            elif self._tool_format and mark in (*self._tool_format.openers, *FENCES):
                yield from self._try_calls(self._tool_format, mark)
            else:
                self._content.pass_mark()

    def _markers(self, ends: tuple[str, ...]) -> Markers:
        marks = {*self._hidden, *ends}
        if self._is_known_to_think or not self._content.has_text:
            marks.update(self._thinking)
        if self._tool_format:
            marks.update(self._tool_format.openers, FENCES)
            if self._calls.n:
                marks.update(self._tool_format.closers)
        return Markers(marks, quotable=True)

    def _read_thinking(self, marks: ThinkingMarks, ends: tuple[str, ...]) -> Steps[None]:
        self._content.pass_mark()
        self._reasoning.pass_mark()
        self.open_thinking = marks
        markers = Markers((marks.open, marks.close, *self._ends_thinking, *ends), quotable=True)
        while mark := (yield from self._scanner.until(markers, self._reasoning.push)):
            self._reasoning.pass_mark()
            if mark == marks.open:  # said by the template, and by the model again
                continue
            if mark != marks.close:
                self._scanner.unread(mark)
            self.open_thinking = None
            return
        self._reasoning.flush()

    def _try_calls(self, tool_format: ToolFormat, opener: str) -> Steps[None]:
        if opener in FENCES:
            calls = self._read_fence()
        else:
            calls = tool_format.read(self._scanner, self._calls, opener)
        if not (yield from self._try(calls)):
            self._content.push(opener)

    def _try_plain_call(self) -> Steps[bool]:
        """Where content begins, a call may stand without any mark. Returns whether one did."""
        self._content.push((yield from self._scanner.take_space()))
        first = yield from self._scanner.peek()
        if first not in ("{", "["):
            return False
        calls = read_python_or_json_calls(self._scanner, self._calls, only_offered=True)
        return (yield from self._try(calls))

    def _read_fence(self) -> Steps[None]:
        yield from read_python_or_json_calls(self._scanner, self._calls, only_offered=True)
        yield from self._scanner.take_space()
        yield from self._scanner.accept("```")

    def _try(self, calls: Steps[None]) -> Steps[bool]:
        """Read calls; what is none is unread. Returns whether there was one, or the rest of one."""
        n_before = self._calls.n
        is_cut = False
        self._scanner.keep()
        try:
            yield from calls
        except Unexpected:
            # The end may cut a call anywhere. Behind another call what is left is no content.
            is_behind = self._calls.n > n_before or (n_before > 0 and self._content.is_after_mark)
            is_cut = is_behind and self._scanner.is_at_end
            if not is_cut:
                self._scanner.rewind()
        self._scanner.release()
        self._calls.is_open = False
        if self._calls.n == n_before and not is_cut:
            return False
        self._content.pass_mark()
        if self._tool_format:
            yield from self._scanner.skip_cut(*self._tool_format.marks, *FENCES)
        return True


class Trimmed:
    """Passes text on, but no whitespace before a mark, or between a mark and the first text."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._space = ""  # comes before the next text, or before a mark
        self.is_after_mark = False
        self.has_text = False

    def push(self, text: str) -> None:
        text = self._space + text
        if self.is_after_mark and not self.has_text:
            text = text.lstrip()
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self.is_after_mark, self.has_text = False, True
            self._emit(shown)

    def pass_mark(self) -> None:
        """A mark stands here."""
        self._space = ""
        self.is_after_mark = True

    def restart(self) -> None:
        """What came so far is not ours to pass on, its space neither; a mark still counts."""
        self._space, self.has_text = "", False

    def flush(self) -> None:
        """The text is over."""
        if self._space and not self.is_after_mark:
            self._emit(self._space)
        self._space = ""
