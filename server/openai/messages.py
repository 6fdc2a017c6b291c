"""The messages of a chat request: their fields and types, passed on as the client sent them.

Names the keys that nobody reads. What content parts and tool calls mean, and what a template needs
of them, is the engine's to know (it names what is wrong with them too).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from server.request_object import Object, RequestObject, other_keys


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


# What is read of a tool call, and what clients replay of a streamed one (its index).
_CALL_KEYS = frozenset({"id", "type", "function", "index"})
_FUNCTION_KEYS = frozenset({"name", "arguments"})
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

    def unknown_keys_inside(self) -> Iterator[str]:
        """Keys of content parts and tool calls. Parts of other kinds are refused by the engine."""
        for part in self.content if isinstance(self.content, list) else ():
            if (kind := part.get("type")) in ("text", "refusal"):
                yield from (f"content[].{key}" for key in other_keys(part, ("type", kind)))
        for call in self.tool_calls or ():
            yield from (f"tool_calls[].{key}" for key in other_keys(call, _CALL_KEYS))
            if isinstance(function := call.get("function"), dict):
                others = other_keys(function, _FUNCTION_KEYS)
                yield from (f"tool_calls[].function.{key}" for key in others)
