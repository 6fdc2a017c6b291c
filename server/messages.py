"""The messages of a chat request: their fields and types, passed on as the client sent them.

What content parts and tool calls mean, and what a template needs of them, is the engine's to know
(it names what is wrong with them too).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict


class RequestObject(BaseModel):
    """Base of what clients send: strict types, finite numbers; unknown keys are kept for naming."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


def _text_or_parts(content: Any) -> Any:
    """Says the same as the type, in one message: pydantic would report on each kind by itself."""
    if not isinstance(content, str | list | None):
        raise ValueError("must be a string, a list of parts or null")
    if isinstance(content, list) and not all(isinstance(part, dict) for part in content):
        raise ValueError("a content part must be an object with a type")
    return content


def _not_supported(value: Any) -> Any:
    if value is not None:
        raise ValueError("is not supported")
    return value


Object = dict[str, Any]
Content = Annotated[str | list[Object] | None, BeforeValidator(_text_or_parts)]
NotSupported = Annotated[None, BeforeValidator(_not_supported)]


class Message(RequestObject):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_calls: list[Object] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    audio: NotSupported = None  # an earlier spoken reply, which we cannot have given
    function_call: NotSupported = None  # the deprecated form of tool_calls

    def for_template(self) -> Object:
        """What was given, unknown keys apart."""
        return self.model_dump(exclude_none=True, include=set(type(self).model_fields))
