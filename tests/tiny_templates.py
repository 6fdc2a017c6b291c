"""Small chats, and what small templates make of them."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import ChatTemplateError
from engine.templates.chat_template import ChatTemplate
from engine.templates.template_options import TemplateOptions
from engine.text.special_tokens import unshield

HI = [{"role": "user", "content": "Hi"}]
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "lookup", "arguments": '{"city": "Paris"}'},
        }
    ],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks up a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def render(source: str, messages: list[dict[str, Any]] = HI, **kwargs: Any) -> str:
    return unshield(ChatTemplate(source).render(messages, TemplateOptions(**kwargs)))


def refusal(source: str, messages: list[dict[str, Any]] = HI, **kwargs: Any) -> str:
    with pytest.raises(ChatTemplateError) as caught:
        render(source, messages, **kwargs)
    return str(caught.value)
