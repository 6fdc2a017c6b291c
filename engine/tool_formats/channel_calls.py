"""gpt-oss's calls: a message in a channel of its own, addressed to the function, JSON inside.

    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>

Only written here: reading such replies is channel_parser.py's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from engine.scanner import Scanner, Steps, Unexpected
from engine.tool_formats.base import Call, Calls


@dataclass(frozen=True, slots=True)
class ChannelCalls:
    signs: tuple[str, ...] = ("<|channel|>", "<|message|>", "commentary")
    openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    def read(self, scanner: Scanner, calls: Calls, opener: str) -> Steps[None]:
        raise Unexpected
        yield

    def write(self, calls: Sequence[Call]) -> str:
        texts = []
        for call in calls:
            before, after = self.around(call.name)
            texts.append(before + json.dumps(call.arguments, ensure_ascii=False) + after)
        return "<|call|><|start|>assistant".join(texts)

    def around(self, name: str) -> tuple[str, str]:
        return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", ""
