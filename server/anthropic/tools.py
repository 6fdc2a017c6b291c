"""Anthropic's tools and tool choice as OpenAI's, which templates know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from engine import InvalidRequest
from server.ask import ToolChoice
from server.openai.tools import (
    ArgumentsSchema,
    FunctionName,
    NamedTool,
    Tool,
    WireToolChoice,
    choose_tools,
)
from server.request_object import Object, RequestObject

_WITHOUT_EFFECT = frozenset(
    {"cache_control", "eager_input_streaming", "input_examples", "allowed_callers", "defer_loading"}
)


class AnthropicTool(RequestObject):
    """One of the client's own: the provider's (web search and such) are not here."""

    type: Literal["custom"] | None = None
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    input_schema: ArgumentsSchema
    strict: bool | None = None

    def unknown_keys(self) -> Iterator[str]:
        return (key for key in super().unknown_keys() if key not in _WITHOUT_EFFECT)

    def as_openai(self) -> Tool:
        """The same in the words of templates."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.input_schema,
            "strict": self.strict,
        }
        return Tool.model_validate({"type": "function", "function": function})


class AnthropicToolChoice(RequestObject):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def as_openai(self) -> WireToolChoice:
        """The same in OpenAI's words. Raises: InvalidRequest."""
        if (self.type == "tool") != (self.name is not None):
            raise InvalidRequest(
                'tool_choice.name belongs to the type "tool", which needs one', "tool_choice.name"
            )
        if self.name is not None:
            return NamedTool(type="function", function=FunctionName(name=self.name))
        return "required" if self.type == "any" else "none" if self.type == "none" else "auto"


def choose(
    tools: list[AnthropicTool], choice: AnthropicToolChoice | None
) -> tuple[list[Object], ToolChoice]:
    """The tools to show to the model, and the choice it has. Raises: InvalidRequest."""
    wire = [tool.as_openai() for tool in tools]
    if choice is None:
        return choose_tools(wire, None, parallel=True)
    return choose_tools(wire, choice.as_openai(), not choice.disable_parallel_tool_use)
