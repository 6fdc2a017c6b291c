"""The items of OpenAI's Responses as the chat that templates know.

Thinking, text and calls of the assistant are items of their own there, and one message here. Plain
text as input is one item of the user. Knows neither the store nor replies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator

from engine import InvalidRequest
from server.request_object import Object, other_keys, string_at

# The kinds of items, and what is read of each.
_KEYS = {
    "message": ("role", "content", "id", "status", "phase"),
    "function_call": ("call_id", "name", "arguments", "id", "status"),
    "function_call_output": ("call_id", "output", "id", "status"),
    "reasoning": ("content", "summary", "id", "status", "encrypted_content"),
}
_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def _text_or_items(value: Any) -> Any:
    """Says the same as the type, in one message: pydantic would report on each kind by itself."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("must be a string or a list of items")
    return value


Input = Annotated[str | list[Object], BeforeValidator(_text_or_items)]


def as_items(given: Input) -> list[Object]:
    """`given` as a list of items, each with a type."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return [{"type": "message", **item} if "role" in item else item for item in given]


def unknown_keys(items: Sequence[Object]) -> Iterator[str]:
    """Keys of items that nobody reads."""
    for item in items:
        known = ("type", *_KEYS.get(str(item.get("type")), ()))
        yield from (f"input[].{key}" for key in other_keys(item, known))


def chat_messages(
    items: Sequence[Object], instructions: str | None, n_earlier: int = 0
) -> list[Object]:
    """The chat. n_earlier: items before those of this request, whose places are told.

    Raises: InvalidRequest for what is no text, and for items of other kinds.
    """
    chat: list[Object] = []
    if instructions:
        chat.append({"role": "system", "content": instructions})
    for index, item in enumerate(items, -n_earlier):
        path = f"input[{index}]"
        match item.get("type"):
            case "message":
                _say(chat, item, path)
            case "reasoning":
                turn = _turn(chat, ("reasoning_content", "content", "tool_calls"))
                turn["reasoning_content"] = _thinking(item, path)
            case "function_call":
                _turn(chat, ()).setdefault("tool_calls", []).append(_call(item, path))
            case "function_call_output":
                call_id = string_at(item, "call_id", path)
                output = _text(item.get("output"), f"{path}.output")
                chat.append({"role": "tool", "tool_call_id": call_id, "content": output})
            case kind:
                raise InvalidRequest(f"{path}.type {kind!r:.40} is not supported", f"{path}.type")
    for message in chat:  # thinking alone, where a limit cut the reply
        message.setdefault("content", "" if message.get("reasoning_content") else None)
    return chat


def _say(chat: list[Object], item: Object, path: str) -> None:
    role = item.get("role")
    if role not in _ROLES:
        raise InvalidRequest(f"{path}.role must be one of {', '.join(_ROLES)}", f"{path}.role")
    text = _text(item.get("content"), f"{path}.content")
    if role == "assistant":
        _turn(chat, ("content", "tool_calls"))["content"] = text
    else:
        chat.append({"role": role, "content": text})


def _turn(chat: list[Object], over_with: tuple[str, ...]) -> Object:
    """The assistant's message at the end of the chat; a new one after one that has any of these."""
    last = chat[-1] if chat else {}
    if last.get("role") != "assistant" or any(key in last for key in over_with):
        chat.append({"role": "assistant"})
    return chat[-1]


def _call(item: Object, path: str) -> Object:
    function = {key: string_at(item, key, path) for key in ("name", "arguments")}
    return {"id": string_at(item, "call_id", path), "type": "function", "function": function}


def _thinking(item: Object, path: str) -> str:
    """What was thought, or else its summary. What is only there encrypted cannot be read."""
    for key in ("content", "summary"):
        if parts := item.get(key):
            if not isinstance(parts, list):
                raise InvalidRequest(f"{path}.{key} must be a list", f"{path}.{key}")
            texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
            if not all(isinstance(text, str) for text in texts):
                raise InvalidRequest(f"{path}.{key}[].text must be a string", f"{path}.{key}")
            return "\n".join(map(str, texts))
    return ""


def _text(content: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidRequest(f"{path} must be a string or a list of parts", path)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in _TEXTS:
            where = f"{path}[{index}].type"
            raise InvalidRequest(f"{where} {kind!r:.40} is not supported: text only", where)
        texts.append(string_at(part, _TEXTS[kind], f"{path}[{index}]"))
    return "\n".join(texts)
