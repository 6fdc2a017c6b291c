"""The messages of a chat request: their fields and types, passed on as the client sent them.

Names the keys that nobody reads. What content parts and tool calls mean, and what a template needs
of them, is the engine's to know (it names what is wrong with them too).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict


class RequestObject(BaseModel):
    """Base of what clients send: strict types, finite numbers; unknown keys are kept for naming."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    def unknown_keys(self) -> Iterator[str]:
        """Paths of the keys in here that no field takes. A null is an absent key."""
        yield from _others(self.model_extra or {}, ())
        yield from self.unknown_keys_inside()

    def unknown_keys_inside(self) -> Iterator[str]:
        """The same of the fields' own objects only."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, RequestObject):
                yield from (f"{name}.{key}" for key in value.unknown_keys())
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, RequestObject):
                        yield from (f"{name}[].{key}" for key in item.unknown_keys())


def _others(given: dict[str, Any], known: Collection[str]) -> Iterator[str]:
    return (key for key, value in given.items() if key not in known and value is not None)


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
                yield from (f"content[].{key}" for key in _others(part, ("type", kind)))
        for call in self.tool_calls or ():
            yield from (f"tool_calls[].{key}" for key in _others(call, _CALL_KEYS))
            if isinstance(function := call.get("function"), dict):
                others = _others(function, _FUNCTION_KEYS)
                yield from (f"tool_calls[].function.{key}" for key in others)
