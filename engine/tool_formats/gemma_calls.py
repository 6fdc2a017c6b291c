"""Gemma 4's calls: JSON without quotes, but for texts, which have a mark of their own.

<|tool_call>call:f{k:<|"|>value<|"|>,n:3,o:{a:[1,2]}}<tool_call|>
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.scanner import Markers, Scanner, Steps, Unexpected
from engine.tool_formats.base import MAX_NAME, Call, Calls
from engine.tool_formats.json_object import read_json_calls
from engine.tool_formats.python_literal import to_json

QUOTE: Final = '<|"|>'


@dataclass(frozen=True, slots=True)
class GemmaCalls:
    signs: tuple[str, ...] = ("<|tool_call>call:",)
    openers: tuple[str, ...] = ("<|tool_call>",)
    closers: tuple[str, ...] = ("<tool_call|>",)
    marks: tuple[str, ...] = ("<|tool_call>", "<tool_call|>", QUOTE)

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
            yield from _read_value(scanner, calls)
            calls.end()
        yield from scanner.take_space()
        yield from scanner.accept(*self.closers)

    def write(self, calls: Sequence[Call]) -> str:
        return "".join(
            f"<|tool_call>call:{call.name}{_written(call.arguments)}<tool_call|>" for call in calls
        )

    @property
    def form(self) -> None:
        return None


def _read_value(scanner: Scanner, calls: Calls) -> Steps[None]:
    yield from scanner.take_space()
    if (yield from scanner.accept("{")):
        yield from _read_items(scanner, calls, "{", "}")
    elif (yield from scanner.accept("[")):
        yield from _read_items(scanner, calls, "[", "]")
    elif (yield from scanner.accept(QUOTE)):
        yield from _read_text(scanner, calls)
    else:
        text, end = yield from scanner.take_until(",", "}", "]", "<tool_call|>")
        scanner.unread(end)
        calls.arguments(to_json(text) or json.dumps(text.strip(), ensure_ascii=False))


def _read_items(scanner: Scanner, calls: Calls, opening: str, closing: str) -> Steps[None]:
    calls.arguments(opening)
    while True:
        yield from scanner.take_space()
        if (yield from scanner.accept(closing)):
            break
        if not (yield from scanner.peek()):
            return
        if opening == "{":
            yield from _read_key(scanner, calls)
        yield from _read_value(scanner, calls)
        yield from scanner.take_space()
        if (yield from scanner.accept(",")):
            calls.arguments(", ")
        elif (yield from scanner.peek()) != closing:
            raise Unexpected
    calls.arguments(closing)


def _read_key(scanner: Scanner, calls: Calls) -> Steps[None]:
    if (yield from scanner.accept(QUOTE)):
        yield from _read_text(scanner, calls)
        yield from scanner.expect(":")
    else:
        key, colon = yield from scanner.take_until(":", "}", "<tool_call|>")
        if colon != ":":
            raise Unexpected
        calls.arguments(json.dumps(key.strip().strip('"'), ensure_ascii=False))
    calls.arguments(": ")


def _read_text(scanner: Scanner, calls: Calls) -> Steps[None]:
    calls.arguments('"')
    end = yield from scanner.until(
        Markers([QUOTE]), lambda text: calls.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
    )
    if end:
        calls.arguments('"')


def _written(value: Any) -> str:
    if isinstance(value, str):
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)
