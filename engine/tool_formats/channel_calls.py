"""gpt-oss's calls: a message in a channel of its own, addressed to the function, JSON inside.

    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>

Only written here: reading such replies is channel_parser.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.tool_formats.base import Call, Calls, JsonForm, ToolFormat
from engine.tool_formats.scanner import Scanner, Steps, Unexpected


@dataclass(frozen=True, slots=True)
class ChannelCalls(ToolFormat):
    signs: tuple[str, ...] = ("<|channel|>", "<|message|>", "commentary")
    openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    def read(self, scanner: Scanner, calls: Calls, opener: str) -> Steps[None]:
        raise Unexpected
        yield

    def write(self, calls: Sequence[Call]) -> str:
        return self.form.write(calls)

    @property
    def form(self) -> JsonForm:
        return JsonForm(
            "<|channel|>commentary to=functions.",
            " <|constrain|>json<|message|>",
            separator=None,  # <|call|> ends the reply
            prologue=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
            before_answer="<|channel|>final<|message|>",
        )
