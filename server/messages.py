"""The messages of a chat request: OpenAI's shapes in, the plain dicts a chat template reads out.

Knows roles, content parts and tool calls; knows neither templates nor the rest of the request.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

# Several text parts are separate paragraphs, as in llama.cpp.
PART_SEPARATOR = "\n"


class RequestObject(BaseModel):
    """Base of what clients send: strict types, finite numbers; unknown keys are kept for naming."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class ToolCallFunction(RequestObject):
    name: str
    arguments: str  # JSON text on the wire


class ToolCall(RequestObject):
    id: str | None = None
    type: Literal["function"] = "function"
    function: ToolCallFunction

    def for_template(self) -> dict[str, Any]:
        """Templates expect the arguments as an object; text that is not JSON stays text."""
        function = {"name": self.function.name, "arguments": _arguments(self.function.arguments)}
        return {"id": self.id, "type": self.type, "function": function}


def _arguments(text: str) -> Any:
    if not text.strip():
        return {}
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class TextPart(RequestObject):
    type: Literal["text"]
    text: str


def _only_text(content: Any) -> Any:
    """Refuses what is neither a string nor text parts, by its type, before pydantic looks."""
    if isinstance(content, list):
        if not content:
            raise ValueError("a list of content parts must not be empty")
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if not isinstance(kind, str):
                raise ValueError("a content part must be an object with a type")
            if kind != "text":
                raise ValueError(f"content parts of type '{kind:.40}' are not supported, only text")
            if not isinstance(part.get("text"), str):
                raise ValueError("a text part must have a string under 'text'")
    elif not isinstance(content, str | None):
        raise ValueError("must be a string, a list of text parts or null")
    return content


def _not_supported(value: Any) -> Any:
    if value is not None:
        raise ValueError("is not supported")
    return value


Content = Annotated[str | list[TextPart] | None, BeforeValidator(_only_text)]
NotSupported = Annotated[None, BeforeValidator(_not_supported)]


class Message(RequestObject):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = Field(None, exclude=True)  # OpenAI's; no template reads it
    audio: NotSupported = None  # an earlier spoken reply, which we cannot have given
    function_call: NotSupported = None  # the deprecated form of tool_calls

    @model_validator(mode="after")
    def _has_content(self) -> Message:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing; only an assistant's tool calls may stand alone")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as Hugging Face templates read it: keys that were not given are not there."""
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self._text(),
        }
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        for key in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, key)) is not None:
                message[key] = value
        return message

    def _text(self) -> str:
        if isinstance(self.content, list):
            return PART_SEPARATOR.join(part.text for part in self.content)
        return self.content or ""
