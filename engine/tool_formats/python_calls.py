"""Formats whose calls are Python: a list of calls with keyword arguments.

    <|tool_call_start|>[f(k="value", n=3), g()]<|tool_call_end|>     LFM 2
    <|python_tag|>f.call(k="value")                                  Llama 3.1's built-in tools
    <function_calls>\\nf(k="value")\\n</function_calls>                Olmo 3
    <|tool_call_start|>\\n```python\\nf(k="value")\\n```\\n<|tool_call_end|>    MiniCPM 3

Only literals are read, nothing is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.tool_formats.base import Call, Calls, ToolFormat
from engine.tool_formats.json_object import read_json_calls
from engine.tool_formats.python_literal import to_json
from engine.tool_formats.scanner import Scanner, Steps, Unexpected

_NAME_PART: Final = re.compile(r"[\w.\-]")
_KEYWORD: Final = re.compile(r"\s*([\w.\-]+)\s*=(?!=)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PythonCalls(ToolFormat):
    """opener, closer: around all calls. fence: what opens a block of code inside them."""

    opener: str
    closer: str
    is_list: bool = True
    fence: str = ""
    signs: tuple[str, ...] = ()

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.opener,)

    @property
    def closers(self) -> tuple[str, ...]:
        return (self.closer,)

    def read(self, scanner: Scanner, calls: Calls, opener: str) -> Steps[None]:
        yield from scanner.take_space()
        yield from scanner.accept(self.closer)  # an empty block: Llama 4's calls follow it
        yield from scanner.take_space()
        if self.fence:
            yield from scanner.accept(self.fence)
        yield from read_python_or_json_calls(scanner, calls)
        yield from scanner.take_space()
        if self.fence and (yield from scanner.accept("```")):
            yield from scanner.take_space()
        yield from scanner.accept(self.closer)

    def write(self, calls: Sequence[Call]) -> str:
        texts = []
        for call in calls:
            arguments = ", ".join(f"{k}={v!r}" for k, v in call.arguments.items())
            texts.append(f"{call.name}({arguments})")
        if self.is_list:
            return f"{self.opener}[{', '.join(texts)}]{self.closer}"
        lines = [self.opener, self.fence, *texts, self.fence and "```", self.closer]
        return "\n".join(filter(None, lines))


def read_python_or_json_calls(
    scanner: Scanner, calls: Calls, only_offered: bool = False
) -> Steps[None]:
    """One call or a list of them, in either language. Raises Unexpected."""
    yield from scanner.take_space()
    bracket = yield from scanner.accept("[")
    space = yield from scanner.take_space()
    if (yield from scanner.peek()) == "{":
        scanner.unread(bracket + space)
        yield from read_json_calls(scanner, calls, only_offered)
        return
    while True:
        yield from read_python_call(scanner, calls, only_offered)
        space = yield from scanner.take_space()
        comma = yield from scanner.accept(",")
        yield from scanner.take_space()
        follows = _NAME_PART.match((yield from scanner.peek()))
        if not follows or not (comma or (space and not bracket)):
            break
    if bracket:
        yield from scanner.accept("]")


def read_python_call(scanner: Scanner, calls: Calls, only_offered: bool) -> Steps[None]:
    name = ""
    while _NAME_PART.match((yield from scanner.peek())):
        name += yield from scanner.take_char()
    name = name.removesuffix(".call")
    if only_offered and not calls.offers(name):
        raise Unexpected
    yield from scanner.expect("(")
    calls.start(name)
    separator = "{"
    unnamed = iter(calls.parameters(name))
    while True:
        text, end = yield from _take_argument(scanner)
        keyword = _KEYWORD.match(text)
        key, value = keyword.groups() if keyword else (next(unnamed, ""), text)
        if key and value.strip():
            shown = to_json(value) or json.dumps(value.strip(), ensure_ascii=False)
            calls.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: {shown}")
            separator = ", "
        if not end:
            return  # cut, and so are the arguments
        if end == ")":
            break
    calls.arguments("{}" if separator == "{" else "}")
    calls.end()


def _take_argument(scanner: Scanner) -> Steps[tuple[str, str]]:
    """(an argument, the comma or parenthesis behind it; '' at the end)."""
    text, depth, quote, escaped = "", 0, "", False
    while char := (yield from scanner.take_char()):
        if quote:
            quote = "" if char == quote and not escaped else quote
            escaped = char == "\\" and not escaped
        elif char in "'\"":
            quote = char
        elif depth == 0 and char in ",)":
            return text, char
        else:
            depth += (char in "([{") - (char in ")]}")
        text += char
    return text, ""


FORMATS: Final = (
    PythonCalls(
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        is_list=False,
        fence="```python",
        signs=("<|tool_call_start|>", "```python"),
    ),
    PythonCalls("<|tool_call_start|>", "<|tool_call_end|>", signs=("<|tool_call_start|>",)),
    PythonCalls("<|tool_call_start|>", "<|tool_call_end|>", signs=("<|tool_list_start|>",)),
    PythonCalls("<|python_start|>", "<|python_end|>", signs=("<|python_start|>",)),
    PythonCalls("<function_calls>", "</function_calls>", False, signs=("<function_calls>",)),
)
