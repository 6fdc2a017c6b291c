"""Anthropic's messages, whose content is blocks, as the chat that templates know: OpenAI's.

Calls and thinking are blocks of the assistant's turn there, results and documents blocks of the
user's. Neighbours of one role are one turn, as Anthropic says. Earlier thinking goes back to the
template, which decides what of it stays; what is redacted cannot be read and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from engine import InvalidRequest
from server.request_object import Object, RequestObject, other_keys, string_at


def _text_or_blocks(content: Any) -> Any:
    """Says the same as the type, in one message: pydantic would report on each kind by itself."""
    is_list = isinstance(content, list) and all(isinstance(block, dict) for block in content)
    if not isinstance(content, str) and not is_list:
        raise ValueError("must be a string or a list of content blocks")
    return content


Content = Annotated[str | list[Object], BeforeValidator(_text_or_blocks)]

# The kinds of blocks, and what is read of each. `cache_control` and `citations` change no reply.
_KEYS = {
    "text": ("text",),
    "document": ("source", "title", "context"),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name", "input", "caller"),
    "tool_result": ("tool_use_id", "content", "is_error"),
}
_OF_ROLE = {
    "system": frozenset({"text"}),
    "user": frozenset({"text", "document", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
}
_WITHOUT_EFFECT = ("type", "cache_control", "citations")


class AnthropicMessage(RequestObject):
    role: Literal["user", "assistant", "system"]
    content: Content

    def unknown_keys_inside(self) -> Iterator[str]:
        for block in self.content if isinstance(self.content, list) else ():
            known = (*_WITHOUT_EFFECT, *_KEYS.get(str(block.get("type")), ()))
            yield from (f"content[].{key}" for key in other_keys(block, known))


def chat_messages(messages: Sequence[AnthropicMessage], system: Content | None) -> list[Object]:
    """The chat. Raises: InvalidRequest for what is no text and for blocks out of their place."""
    chat: list[Object] = []
    if system is not None and (text := _joined(system, "system")):
        chat.append({"role": "system", "content": text})
    turn: list[Object] = []  # blocks of neighbours with one role
    for index, message in enumerate(messages):
        turn += _blocks(message, f"messages[{index}]")
        if index + 1 == len(messages) or messages[index + 1].role != message.role:
            chat += _TURN[message.role](turn)
            turn = []
    return chat


def _blocks(message: AnthropicMessage, where: str) -> Iterator[Object]:
    """Those of a message, each of a kind that may stand there and with what it needs."""
    if isinstance(message.content, str):
        yield {"type": "text", "text": message.content}
        return
    if not message.content:
        raise InvalidRequest(f"{where}.content must not be empty", f"{where}.content")
    for index, block in enumerate(message.content):
        path = f"{where}.content[{index}]"
        kind = block.get("type")
        if not isinstance(kind, str) or kind not in _OF_ROLE[message.role]:
            raise InvalidRequest(
                f"{path}.type {kind!r:.40} is not supported in a message of the {message.role}",
                f"{path}.type",
            )
        yield {**block, **_checked(kind, block, path)}


def _checked(kind: str, block: Object, path: str) -> Object:
    """The parts of a block that are read, of the right types. Raises: InvalidRequest."""
    match kind:
        case "thinking":
            return {"thinking": string_at(block, "thinking", path)}
        case "text" | "document":
            return {"type": "text", "text": _text(block, path)}
        case "tool_use":
            arguments = block.get("input")
            if not isinstance(arguments, dict):
                raise InvalidRequest(f"{path}.input must be an object", f"{path}.input")
            return {"id": string_at(block, "id", path), "name": string_at(block, "name", path)}
        case "tool_result":
            content = block.get("content")
            text = "" if content is None else _joined(content, f"{path}.content")
            return {"tool_use_id": string_at(block, "tool_use_id", path), "content": text}
        case _:
            return {}


def _joined(content: Any, where: str) -> str:
    """Text, or the texts of text blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must be a string or a list of text blocks", where)
    texts = []
    for index, block in enumerate(content):
        path = f"{where}[{index}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind not in ("text", "document"):
            raise InvalidRequest(f"{path}.type {kind!r:.40} is not text", f"{path}.type")
        texts.append(_text(block, path))
    return "\n".join(texts)


def _text(block: Object, path: str) -> str:
    """What a text says, or a document, below its title."""
    if block["type"] == "text":
        return string_at(block, "text", path)
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if not isinstance(source, dict) or kind not in ("text", "content"):
        where = f"{path}.source.type"
        raise InvalidRequest(f"{where} {kind!r:.40} is not supported: text only", where)
    head = [string_at(block, key, path) for key in ("title", "context") if block.get(key)]
    key = "data" if kind == "text" else "content"
    return "\n".join([*head, _joined(source.get(key), f"{path}.source.{key}")])


def _assistant(blocks: Iterable[Object]) -> Iterator[Object]:
    """One turn: its thinking, its text, its calls."""
    thinking: list[str] = []
    texts: list[str] = []
    calls: list[Object] = []
    for block in blocks:
        match block["type"]:
            case "thinking":
                thinking.append(block["thinking"])
            case "text":
                texts.append(block["text"])
            case "tool_use":
                function = {"name": block["name"], "arguments": block["input"]}
                calls.append({"id": block["id"], "type": "function", "function": function})
    said: Object = {"role": "assistant", "content": "\n".join(texts)}
    if thinking:
        said["reasoning_content"] = "\n".join(thinking)
    if calls:
        said["tool_calls"] = calls
    yield said


def _user(blocks: Iterable[Object]) -> Iterator[Object]:
    """Results first, each a message of its own, then what the user says."""
    texts: list[str] = []
    for block in blocks:
        if block["type"] == "text":
            texts.append(block["text"])
            continue
        failed = "Error: " if block.get("is_error") else ""
        yield {
            "role": "tool",
            "tool_call_id": block["tool_use_id"],
            "content": failed + block["content"],
        }
    if texts:
        yield {"role": "user", "content": "\n".join(texts)}


def _system(blocks: Iterable[Object]) -> Iterator[Object]:
    yield {"role": "system", "content": "\n".join(block["text"] for block in blocks)}


_TURN = {"assistant": _assistant, "user": _user, "system": _system}
