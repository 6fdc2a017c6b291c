"""In which form a chat template wants its messages: found out by trying it on small chats.

Templates agree on names but not on forms: one wants tool arguments as an object and one as JSON
text, one takes null for absent content and one prints "None". Does not know how they are rendered.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from engine.template_sandbox import GivenList

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TemplateStyle:
    """The forms of a template's variables. The defaults are what most templates take."""

    typed_content: bool = False  # content as a list of parts
    absent_content: str | None = ""  # where an assistant message has only tool calls
    json_arguments: bool = False  # tool-call arguments as JSON text, not as an object
    absent_tools: tuple[()] | None = None  # where there are none

    def message(self, message: Message) -> Message:
        """A normalised message in this style, changed only where they differ."""
        content = self.absent_content if message["content"] is None else message["content"]
        if self.typed_content and content is not None:
            content = GivenList([{"type": "text", "text": content}])
        result = {**message, "content": content}
        if self.json_arguments and "tool_calls" in message:
            result["tool_calls"] = GivenList(map(_with_json_arguments, message["tool_calls"]))
        return result


def find_style(try_render: Callable[[list[Message], TemplateStyle], str]) -> TemplateStyle:
    """The style in which the template prints all of a small chat.

    try_render: renders messages in a style; '' when the template fails on them.
    """
    styles = [TemplateStyle(), TemplateStyle(absent_tools=()), TemplateStyle(typed_content=True)]
    style = next((style for style in styles if NEEDLE in try_render([_USER], style)), styles[0])
    for json_arguments, absent_content in itertools.product((False, True), (None, "")):
        candidate = replace(style, json_arguments=json_arguments, absent_content=absent_content)
        text = try_render([_USER, _CALL, _RESULT], candidate).replace(_USER["content"], "")
        is_python = f"'{NEEDLE}'" in text or "None" in text  # an object or null, printed as such
        if NEEDLE in text and not is_python:
            return candidate
    return style


NEEDLE: Final = "NEEDLE"
_USER: Final[Message] = {"role": "user", "content": f"user {NEEDLE}"}
_CALL: Final[Message] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call00001",  # nine letters and digits: Mistral's templates want just that
            "type": "function",
            "function": {"name": "find", "arguments": {"what": NEEDLE}},
        }
    ],
}
_RESULT: Final[Message] = {
    "role": "tool",
    "tool_call_id": "call00001",
    "name": "find",
    "content": "found",
}


# A small chat with thinking and a call.
SPECIMEN: Final = [_USER, {**_CALL, "reasoning_content": f"thinking {NEEDLE}"}, _RESULT]
SPECIMEN_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Finds it.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
    },
}
SPECIMEN_VARIABLES: Final = {"enable_thinking": True, "thinking": True}


def _with_json_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
