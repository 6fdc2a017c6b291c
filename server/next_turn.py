"""A chat that may go on: what the engine needs to read its next turn's beginning ahead of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine import TemplateOptions
from server.reply_events import Choice

if TYPE_CHECKING:
    from engine import Engine


@dataclass(frozen=True, slots=True)
class OpenChat:
    """messages: as the template got them; template: what else it got."""

    messages: Sequence[Mapping[str, Any]]
    template: TemplateOptions

    def prepare_next_turn(self, engine: Engine, reply: Choice) -> None:
        """Takes milliseconds: not for the event loop. The engine reads it when it is idle."""
        messages = [*map(dict, self.messages), _as_message(reply)]
        if self.template.continue_last:
            begun, rest = messages[-2:]
            if not isinstance(begun.get("content"), str):
                return  # parts, or nothing: clients differ in how they put the two together
            messages[-2:] = [{**begun, **rest, "content": begun["content"] + reply.content}]
        next_one = replace(self.template, add_generation_prompt=True, continue_last=False)
        engine.prepare_next_turn(messages, next_one)


def _as_message(reply: Choice) -> dict[str, Any]:
    """As clients send it back: without its thinking. Those that do send it find it in the cache."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.tool_calls
        ]
    return message
