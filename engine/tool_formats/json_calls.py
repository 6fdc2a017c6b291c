"""Formats whose calls are JSON objects, name and arguments inside, between marks.

<tool_call>{"name": "f", "arguments": {...}}</tool_call>      Hermes, Qwen, Granite 4
[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]          lists, in other families
<|tools_prefix|>[{"f": {...}}, ...]<|tools_suffix|>           the name as a key: Apertus
{"name": "f", "parameters": {...}}                            nothing around them: Llama 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.tool_formats.base import Call, Calls, JsonForm, ToolFormat
from engine.tool_formats.json_object import read_keyed_calls
from engine.tool_formats.python_calls import read_python_or_json_calls
from engine.tool_formats.scanner import Scanner, Steps


@dataclass(frozen=True, slots=True)
class JsonCalls(ToolFormat):
    """opener, closer: around each call, or around a list of all."""

    opener: str
    closer: str = ""
    is_list: bool = False
    name_key: str = "name"
    arguments_key: str = "arguments"
    is_keyed: bool = False  # the name is the key of the arguments
    space: str = ""  # inside the marks
    between: str = "\n"  # calls that are no list
    also: tuple[str, ...] = ()  # other openers of such models; a tag closes as tags do
    signs: tuple[str, ...] = ()

    @property
    def openers(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.opener, *self.also)))

    @property
    def closers(self) -> tuple[str, ...]:
        tags = (f"</{tag[1:]}" for tag in self.also if tag.startswith("<"))
        return tuple(filter(None, (self.closer, *tags)))

    def read(self, scanner: Scanner, calls: Calls, opener: str) -> Steps[None]:
        if self.is_keyed:
            yield from read_keyed_calls(scanner, calls)
        else:
            yield from read_python_or_json_calls(scanner, calls)
        yield from scanner.take_space()
        if self.closers:
            yield from scanner.accept(*self.closers)

    def write(self, calls: Sequence[Call]) -> str:
        return self.form.write(calls)

    @property
    def form(self) -> JsonForm:
        before, after = '{"', '": '
        if not self.is_keyed:
            before, after = f'{before}{self.name_key}": "', f'", "{self.arguments_key}{after}'
        opening, closing = self.opener + self.space, self.space + self.closer
        if self.is_list:
            return JsonForm(before, after, "}", f"{opening}[", f"]{closing}", ", ")
        return JsonForm(opening + before, after, "}" + closing, separator=self.between)


FORMATS: Final = (
    JsonCalls(
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        is_list=True,
        name_key="tool_name",
        arguments_key="parameters",
        signs=("<|START_ACTION|>",),
    ),
    JsonCalls(  # Command R, until August 2024
        "Action:\n```json\n",
        "```",
        is_list=True,
        name_key="tool_name",
        arguments_key="parameters",
        also=("Action: ```json\n", "Action:```json\n"),
        signs=("Action:", "```json", '"tool_name"'),
    ),
    JsonCalls(
        "<|tools_prefix|>",
        "<|tools_suffix|>",
        is_list=True,
        is_keyed=True,
        signs=("<|tools_prefix|>",),
    ),
    JsonCalls("<|tool_call|>", "<|/tool_call|>", is_list=True, signs=("<|/tool_call|>",)),  # Phi 4
    JsonCalls("<|tool_call|>", is_list=True, also=("<tool_call>",), signs=("<|tool_call|>",)),
    JsonCalls("<|function_call|>", signs=("<|function_call|>",)),  # GigaChat 3.1
    JsonCalls(
        "function call<|role_sep|>\n",
        also=("<|message_sep|>\n\nfunction call<|role_sep|>\n",),
        signs=("function call", "<|role_sep|>"),
    ),
    JsonCalls(  # HyperCLOVA X
        " -> tool/function_call\n",
        is_list=True,
        also=("-> tool/function_call\n",),
        signs=("-> tool/function_call",),
    ),
    JsonCalls(
        "<|action_start|><|plugin|>", "<|action_end|>", signs=("<|action_start|><|plugin|>",)
    ),
    JsonCalls("[TOOL_CALLS]", is_list=True, signs=("[TOOL_CALLS]",)),  # Mistral, until 2024
    JsonCalls("<TOOLCALL>", "</TOOLCALL>", is_list=True, signs=("<TOOLCALL>",)),  # Nemotron
    JsonCalls(" functools", is_list=True, also=("functools",), signs=("functools[",)),
    JsonCalls(
        "<tool_call>",
        "</tool_call>",
        space="\n",
        also=("<function_call>", "<tools>"),  # Qwen 2.5 Coder takes the tag of the offers
        signs=("<tool_call>",),
    ),
    JsonCalls("<toolcall>", "</toolcall>", space=" ", signs=("<toolcall>",)),  # Nemotron Mini
    JsonCalls(  # Granite 20B
        "<function_call> ", also=("<function_call>",), between="", signs=("<function_call>",)
    ),
    JsonCalls("<tool_calls>", "</tool_calls>", is_list=True, signs=("<tool_calls>[",)),
    JsonCalls("<tool_calls>", "</tool_calls>", space="\n", signs=("<tool_calls>",)),  # MiniMax M1
)

# Where a template shows no marks of its own.
PLAIN: Final = JsonCalls(
    "", arguments_key="parameters", between="; ", also=("<|python_tag|>", "<tool_call>")
)
