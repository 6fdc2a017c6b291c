"""ChannelParser: replies that are a row of messages, each with a header that says what it is.

    <|channel|>analysis<|message|>thinking<|end|><|start|>assistant<|channel|>final<|message|>...
    to=self<|message|>thinking<|eom|><|start|>assistant to=user<|message|>...

gpt-oss and Muse write so. A reply without any header is content.
"""

from __future__ import annotations

import re
from typing import Final

from engine.replies.reply_parser import ReplyParser, Trimmed
from engine.tool_formats.scanner import Markers, Steps

SIGNS: Final = ("<|start|>", "<|message|>")  # of templates with such replies
MARKS: Final = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|eom|>")
_MESSAGE: Final = "<|message|>"
_HEADER_BEGINS: Final = ("<|start|>", "<|channel|>", "<|constrain|>", " to=", "to=", _MESSAGE)
_ENDS: Final = ("<|end|>", "<|eom|>", "<|eot|>", "<|call|>", "<|return|>", "<|start|>")
_RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")
_PEOPLE: Final = ("self", "user", "assistant", "all")


class ChannelParser(ReplyParser):
    """Reads one such reply."""

    def _reply(self) -> Steps[None]:
        while True:
            header = yield from self._read_header()
            if header is None:
                return
            recipient = (_RECIPIENT.findall(header) or [""])[-1]
            is_call = recipient.startswith("functions.") or (
                "<|channel|>" in header and recipient not in ("", *_PEOPLE)
            )
            if is_call and self._tool_format:
                end = yield from self._read_call(recipient.removeprefix("functions."))
            elif "<|channel|>analysis" in header or recipient == "self":
                end = yield from self._read_analysis()
            else:
                end = yield from self._read_content(*_ENDS)
            if not end:
                self._content.flush()
                return
            self._content.pass_mark()
            if end == "<|start|>":
                self._scanner.unread(end)

    def _read_header(self) -> Steps[str | None]:
        """'' where there is none; None where it is cut."""
        begin = yield from self._scanner.accept(*_HEADER_BEGINS)
        if begin in ("", _MESSAGE):
            return ""
        rest, end = yield from self._scanner.take_until(_MESSAGE)
        return begin + rest if end else None

    def _read_analysis(self) -> Steps[str]:
        self._reasoning.pass_mark()
        end = yield from self._scanner.until(Markers(_ENDS), self._reasoning.push)
        if end:
            self._reasoning.pass_mark()
        self._reasoning.flush()
        return end

    def _read_call(self, name: str) -> Steps[str]:
        self._calls.start(name)
        arguments = Trimmed(self._calls.arguments)
        arguments.pass_mark()
        end = yield from self._scanner.until(Markers(_ENDS), arguments.push)
        if end and not arguments.has_text:
            self._calls.arguments("{}")
        self._calls.end()
        self._scanner.release()
        return end
