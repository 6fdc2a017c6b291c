"""Formats with a tag for each argument, whose value stands bare in between.

    <function=f>\\n<parameter=k>\\nvalue\\n</parameter>\\n</function>          Qwen 3 Coder
    f\\n<arg_key>k</arg_key>\\n<arg_value>value</arg_value>                    GLM
    <invoke name="f"><parameter name="k">value</parameter></invoke>          MiniMax, DeepSeek
    <function name="f"><param name="k"><![CDATA[value]]></param></function>  MiniCPM 5

Whether 5 is a number or a text is told by the tag where it does so, or else by the tool's schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.tool_formats.argument_types import ALL, TEXT, read_bare
from engine.tool_formats.base import MAX_NAME, Call, Calls, ToolFormat
from engine.tool_formats.json_object import read_json_calls
from engine.tool_formats.nested_tags import read_nested
from engine.tool_formats.scanner import Emit, Markers, Scanner, Steps, Unexpected

# A tag's own word on its value: DeepSeek's string="true", Kimi's type="string".
_TEXT: Final = re.compile(r'string="true"|type="string"')
_NO_TEXT: Final = re.compile(r'string="false"|type="')
_CDATA: Final = ("<![CDATA[", "]]>")
_IS_MARKUP: Final = re.compile(r"[<&\n]")


@dataclass(frozen=True, slots=True)
class Tag:
    """A name stands between begin and end. Where begin ends in a quote the name does so too, and
    attributes may follow.
    """

    begin: str
    end: str

    def cut(self, head: str) -> tuple[str, str]:
        """(name, attributes) of what stands in between."""
        if self.begin.endswith('"'):
            name, _, attributes = head.partition('"')
            return name, attributes
        return head.strip(), ""

    def write(self, name: str, attributes: str = "") -> str:
        quote = '"' if self.begin.endswith('"') else ""
        return f"{self.begin}{name}{quote}{attributes}{self.end}"


@dataclass(frozen=True, slots=True)
class TaggedCalls(ToolFormat):
    """Each call is `call`, its arguments, call_end; an argument is `key`, value, value_end. Opener
    and closer stand around all calls.
    """

    call: Tag
    key: Tag
    value_end: str
    call_end: str
    opener: str = ""
    closer: str = ""
    value_begin: str = ""
    attributes: tuple[str, str] = ("", "")  # of keys, in writing: of texts, and of others
    gap: str = ""  # in writing, behind each tag
    lines: bool = False  # a value stands on lines of its own
    cdata: bool = False  # a value may stand in a CDATA block
    nested: str = ""  # what stands before each tag of objects and lists, if they have tags too
    signs: tuple[str, ...] = ()

    @property
    def openers(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.opener, self.call.begin)))

    @property
    def closers(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.call_end, self.closer)))

    @property
    def marks(self) -> tuple[str, ...]:
        keys = (self.key.begin, self.key.end, self.value_begin, self.value_end)
        return (*self.openers, *self.closers, self.call.end, *filter(None, keys))

    def read(self, scanner: Scanner, calls: Calls, opener: str) -> Steps[None]:
        yield from scanner.take_space()
        if (yield from scanner.peek()) in ("{", "["):  # as its older sisters write
            yield from read_json_calls(scanner, calls)
            yield from scanner.take_space()
            yield from scanner.accept(*self.closers)
            return
        begins = opener == self.call.begin or bool((yield from scanner.accept(self.call.begin)))
        if not begins:
            raise Unexpected
        while begins:
            yield from self._read_call(scanner, calls)
            yield from scanner.take_space()
            begins = bool((yield from scanner.accept(self.call.begin)))
        if self.closer:
            yield from scanner.accept(self.closer)

    def _read_call(self, scanner: Scanner, calls: Calls) -> Steps[None]:
        head, mark = yield from scanner.take_until(
            self.call.end, self.key.begin, self.call_end, "\n", self.call.begin, most=MAX_NAME
        )
        if mark in ("", self.call.begin):
            raise Unexpected
        if mark in (self.key.begin, self.call_end):
            scanner.unread(mark)
        name, _ = self.call.cut(head)
        calls.start(name)
        separator = "{"
        while True:
            yield from scanner.take_space()
            mark = yield from scanner.accept(self.key.begin, self.call_end)
            if mark != self.key.begin:
                break
            head, mark = yield from scanner.take_until(self.key.end)
            if not mark:
                return
            key, attributes = self.key.cut(head)
            if self.value_begin:
                yield from scanner.expect(self.value_begin)
            calls.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            separator = ", "
            allowed = _told_types(attributes) or calls.types(name, key)
            if not (yield from self._read_value(scanner, calls, key, allowed)):
                return  # cut, and so are the arguments
        if separator == "{" and scanner.is_at_end and not mark:
            return
        calls.arguments("{}" if separator == "{" else "}")
        calls.end()

    def _read_value(
        self, scanner: Scanner, calls: Calls, key: str, allowed: frozenset[str]
    ) -> Steps[bool]:
        """Returns whether its end was there."""
        value_end = self.value_end.format(key=key)
        if self.cdata and (yield from scanner.accept(_CDATA[0])):
            value_end = _CDATA[1] + value_end
        if self.lines:
            yield from scanner.accept("\n")
        if allowed == TEXT:
            text = _JsonText(calls, self.lines)
            calls.arguments('"')
            if not (yield from self._read_until(scanner, value_end, text.push)):
                return False
            calls.arguments('"')
            return True
        pieces: list[str] = []
        if not (yield from self._read_until(scanner, value_end, pieces.append)):
            return False
        value = "".join(pieces)
        value = value.removesuffix("\n") if self.lines else value
        if self.nested and self.nested in value:
            calls.arguments(json.dumps(read_nested(value, self.nested), ensure_ascii=False))
        else:
            calls.arguments(read_bare(value, allowed))
        return True

    def _read_until(self, scanner: Scanner, value_end: str, emit: Emit) -> Steps[bool]:
        """Read a value's text and its end. Models that write lines forget that end sometimes: the
        next tag's line ends a value too. Returns whether there was any.
        """
        ends = [value_end]
        if self.lines:
            ends += [f"\n{self.key.begin}", f"\n{self.call_end}\n{self.closer}"]
        end = yield from scanner.until(Markers(ends), emit)
        if end != value_end:
            scanner.unread(end)
        return bool(end)

    def write(self, calls: Sequence[Call]) -> str:
        texts = []
        for call in calls:
            arguments = [self._write_argument(k, v) for k, v in call.arguments.items()]
            texts.append(self.call.write(call.name) + self.gap + "".join(arguments) + self.call_end)
        return f"{self.opener}{self.gap}{self.gap.join(texts)}{self.gap}{self.closer}".strip("\n")

    def _write_argument(self, key: str, value: Any) -> str:
        is_text = isinstance(value, str)
        before = after = "\n" if self.lines else ""
        text = value if is_text else json.dumps(value, ensure_ascii=False)
        if self.cdata and _IS_MARKUP.search(text):
            before, after = _CDATA
        return (
            self.key.write(key, self.attributes[0 if is_text else 1])
            + self.value_begin
            + before
            + text
            + after
            + self.value_end.format(key=key)
            + self.gap
        )


class _JsonText:
    """Passes text on as the inside of a JSON string; its last newline may be the format's own."""

    def __init__(self, calls: Calls, drops_newline: bool) -> None:
        self._calls, self._drops_newline = calls, drops_newline
        self._held = ""

    def push(self, text: str) -> None:
        text, self._held = self._held + text, ""
        if self._drops_newline and text.endswith("\n"):
            text, self._held = text[:-1], "\n"
        self._calls.arguments(json.dumps(text, ensure_ascii=False)[1:-1])


def _told_types(attributes: str) -> frozenset[str]:
    """What a tag itself says of its value's type; nothing where it does not."""
    if _TEXT.search(attributes):
        return TEXT
    return ALL if _NO_TEXT.search(attributes) else frozenset()
