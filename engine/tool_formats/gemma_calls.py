"""Calls in JSON without quotes, but for texts, which have a mark of their own.

<|tool_call>call:f{k:<|"|>value<|"|>,n:3,o:{a:[1,2]}}<tool_call|>                 Gemma 4
<start_function_call>call:f{k:<escape>value<escape>}<end_function_call>         FunctionGemma
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.tool_formats.base import MAX_NAME, Call, Calls, ToolFormat
from engine.tool_formats.json_object import read_json_calls
from engine.tool_formats.python_literal import to_json
from engine.tool_formats.scanner import Markers, Scanner, Steps, Unexpected


@dataclass(frozen=True, slots=True)
class GemmaCalls(ToolFormat):
    """Each call stands between opener and closer, a text between two quotes."""

    opener: str
    closer: str
    quote: str

    @property
    def signs(self) -> tuple[str, ...]:
        return (f"{self.opener}call:",)

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.opener,)

    @property
    def closers(self) -> tuple[str, ...]:
        return (self.closer,)

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.opener, self.closer, self.quote)

    def read(self, scanner: Scanner, calls: Calls, opener: str) -> Steps[None]:
        yield from scanner.take_space()
        if (yield from scanner.peek()) in ("{", "["):
            yield from read_json_calls(scanner, calls)
        else:
            yield from scanner.expect("call:")
            name, brace = yield from scanner.take_until("{", "\n", most=MAX_NAME)
            if brace != "{":
                raise Unexpected
            calls.start(name.strip())
            scanner.unread(brace)
            yield from _Values(scanner, calls, self.quote, self.closer).read()
            calls.end()
        yield from scanner.take_space()
        yield from scanner.accept(self.closer)

    def write(self, calls: Sequence[Call]) -> str:
        return "".join(
            f"{self.opener}call:{call.name}{_written(call.arguments, self.quote)}{self.closer}"
            for call in calls
        )


@dataclass(frozen=True, slots=True)
class _Values:
    """Reads values, and hands them on as JSON as they come."""

    scanner: Scanner
    calls: Calls
    quote: str
    closer: str

    def read(self) -> Steps[None]:
        scanner = self.scanner
        yield from scanner.take_space()
        if (yield from scanner.accept("{")):
            yield from self._read_items("{", "}")
        elif (yield from scanner.accept("[")):
            yield from self._read_items("[", "]")
        elif (yield from scanner.accept(self.quote)):
            yield from self._read_text()
        else:
            text, end = yield from scanner.take_until(",", "}", "]", self.closer)
            scanner.unread(end)
            self.calls.arguments(to_json(text) or json.dumps(text.strip(), ensure_ascii=False))

    def _read_items(self, opening: str, closing: str) -> Steps[None]:
        scanner, calls = self.scanner, self.calls
        calls.arguments(opening)
        while True:
            yield from scanner.take_space()
            if (yield from scanner.accept(closing)):
                break
            if not (yield from scanner.peek()):
                return
            if opening == "{":
                yield from self._read_key()
            yield from self.read()
            yield from scanner.take_space()
            if (yield from scanner.accept(",")):
                calls.arguments(", ")
            elif (yield from scanner.peek()) != closing:
                raise Unexpected
        calls.arguments(closing)

    def _read_key(self) -> Steps[None]:
        scanner = self.scanner
        if (yield from scanner.accept(self.quote)):
            yield from self._read_text()
            yield from scanner.expect(":")
        else:
            key, colon = yield from scanner.take_until(":", "}", self.closer)
            if colon != ":":
                raise Unexpected
            self.calls.arguments(json.dumps(key.strip().strip('"'), ensure_ascii=False))
        self.calls.arguments(": ")

    def _read_text(self) -> Steps[None]:
        calls = self.calls

        def emit(text: str) -> None:
            calls.arguments(json.dumps(text, ensure_ascii=False)[1:-1])

        calls.arguments('"')
        if (yield from self.scanner.until(Markers([self.quote]), emit)):
            calls.arguments('"')


def _written(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, Mapping):
        items = (f"{key}:{_written(item, quote)}" for key, item in value.items())
        return "{" + ",".join(items) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(_written(item, quote) for item in value) + "]"
    return json.dumps(value)


FORMATS: Final = (
    GemmaCalls("<|tool_call>", "<tool_call|>", '<|"|>'),
    GemmaCalls("<start_function_call>", "<end_function_call>", "<escape>"),
)
