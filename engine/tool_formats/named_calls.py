"""Formats with the name outside the arguments, which are a JSON object.

[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{...}                                   Mistral
<｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>                       DeepSeek
<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>  Kimi K2
<function=f>{...}</function>                                                 Functionary 3.1
>>>f\\n{...}                                                                  Functionary 3.2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from engine.tool_formats.base import MAX_NAME, Call, Calls, JsonForm, ToolFormat
from engine.tool_formats.json_object import read_arguments, read_json_call, read_json_calls
from engine.tool_formats.scanner import Scanner, Steps, Unexpected


@dataclass(frozen=True, slots=True)
class NamedCalls(ToolFormat):
    """begin NAME separator ARGUMENTS end, each call so, all of them between opener and closer.

    named: begin and separator with a call's name in place; i is its number.
    head:  cuts what stands between begin and separator into the call's name and id.
    """

    begin: str
    separator: str
    end: str = ""
    opener: str = ""
    closer: str = ""
    named: str = ""
    space: tuple[str, str] = ("", "")  # around the arguments
    head: Callable[[str], tuple[str, str]] = lambda text: (text, "")
    marks_inside: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    takes_json: bool = False  # older models of the family wrote a JSON list behind the opener
    before_text: str = ""  # stands before text as `begin` does before calls

    @property
    def openers(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.opener, self.begin)))

    @property
    def closers(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.end, self.closer)))

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.openers, self.separator, *self.closers, *self.marks_inside)

    def read(self, scanner: Scanner, calls: Calls, opener: str) -> Steps[None]:
        yield from scanner.take_space()
        if self.takes_json and (yield from scanner.peek()) in ("[", "{"):
            yield from read_json_calls(scanner, calls)
            return
        begins = opener == self.begin or bool((yield from scanner.accept(self.begin)))
        if not begins:
            raise Unexpected
        while begins:
            yield from self._read_call(scanner, calls)
            yield from scanner.take_space()
            begins = bool((yield from scanner.accept(self.begin)))
        if self.closer:
            yield from scanner.accept(self.closer)

    def _read_call(self, scanner: Scanner, calls: Calls) -> Steps[None]:
        head, separator = yield from scanner.take_until(
            self.separator, "{", "\n", self.begin, most=MAX_NAME
        )
        if separator not in (self.separator, "{"):
            raise Unexpected
        if separator == "{":  # it was forgotten, or the name too, as it is inside
            scanner.unread("{")
        if separator == "{" and not head.strip():
            yield from read_json_call(scanner, calls)
            yield from self._read_end(scanner)
            return
        name, call_id = self.head(head.strip())
        if self.before_text and not calls.offers(name):
            raise Unexpected  # so common a mark may stand in a text
        if not name:  # DeepSeek R1's kind of call; the name is the rest of the line
            name, newline = yield from scanner.take_until("\n")
            if not newline:
                raise Unexpected
        calls.start(name.strip(), call_id)
        yield from scanner.take_space()
        yield from scanner.accept("```json")
        yield from scanner.take_space()
        yield from read_arguments(scanner, calls)
        calls.end()
        yield from scanner.take_space()
        yield from scanner.accept("```")
        yield from self._read_end(scanner)

    def _read_end(self, scanner: Scanner) -> Steps[None]:
        yield from scanner.take_space()
        if self.end:
            yield from scanner.accept(self.end)

    def write(self, calls: Sequence[Call]) -> str:
        return self.form.write(calls)

    @property
    def form(self) -> JsonForm:
        before_name, _, after_name = self.named.partition("{name}")
        return JsonForm(
            self.begin + before_name,
            after_name + self.space[0],
            self.space[1] + self.end,
            self.opener,
            self.closer,
            before_answer=self.before_text,
        )


def _mistral(text: str) -> tuple[str, str]:
    name, _, call_id = text.partition("[CALL_ID]")
    return name, call_id


def _deepseek(text: str) -> tuple[str, str]:
    return "" if text == "function" else text, ""


def _kimi(text: str) -> tuple[str, str]:
    return text.removeprefix("functions.").rpartition(":")[0] or text, text


def _deepseek_format(named: str, space: tuple[str, str], *signs: str) -> NamedCalls:
    return NamedCalls(
        begin="<｜tool▁call▁begin｜>",
        separator="<｜tool▁sep｜>",
        end="<｜tool▁call▁end｜>",
        opener="<｜tool▁calls▁begin｜>",
        closer="<｜tool▁calls▁end｜>",
        named=named,
        space=space,
        head=_deepseek,
        signs=("<｜tool▁calls▁begin｜>", *signs),
    )


FORMATS: Final = (
    NamedCalls(
        begin="[TOOL_CALLS]",
        separator="[ARGS]",
        named="{name}[ARGS]",
        head=_mistral,
        takes_json=True,
        marks_inside=("[CALL_ID]",),
        signs=("[TOOL_CALLS]", "[ARGS]"),
    ),
    _deepseek_format("function<｜tool▁sep｜>{name}\n", ("```json\n", "\n```"), "```json"),
    _deepseek_format("{name}<｜tool▁sep｜>", ("", "")),
    NamedCalls(
        begin="<|tool_call_begin|>",
        separator="<|tool_call_argument_begin|>",
        end="<|tool_call_end|>",
        opener="<|tool_calls_section_begin|>",
        closer="<|tool_calls_section_end|>",
        named="functions.{name}:{i}<|tool_call_argument_begin|>",
        head=_kimi,
        signs=("<|tool_calls_section_begin|>",),
    ),
    NamedCalls(
        begin=">>>",
        separator="\n",
        named="{name}\n",
        before_text=">>>all\n",
        signs=(">>>all",),
    ),
    NamedCalls(
        begin="<function=",
        separator=">",
        end="</function>",
        named="{name}>",
        signs=("<function=", "</function>"),
    ),
)
