"""Messages as they come over the wire, made into what chat templates expect.

Clients send content as null, as text or as a list of parts, and tool arguments as a JSON string;
templates know text and objects. Does not know any template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine.errors import InvalidRequest

# Between the texts of several parts of one message. OpenAI does not say what belongs there; a new
# line keeps words apart, and is what llama.cpp and vLLM put.
PART_JOINER: Final = "\n"

# With one of these an assistant message may have no content.
_INSTEAD_OF_CONTENT: Final = ("tool_calls", "reasoning_content", "reasoning", "refusal")


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """New messages. `content` is text, or None where there is none; tool-call arguments are objects
    unless they cannot be read as one; fields that are null are absent; calls have ids, and their
    results have these and the functions' names; the rest is as it was.

    Raises InvalidRequest naming the field.
    """
    if not messages:
        raise InvalidRequest("messages is empty; a chat needs at least one", "messages")
    normal = [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    _link_results(normal)
    return normal


def _link_results(messages: list[dict[str, Any]]) -> None:
    """Give ids to calls without one, and to each result the id and the name of its call: the one it
    names, or else the first that has no result yet.
    """
    waiting: dict[str, str] = {}  # call id -> function name
    n_calls = 0
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["id"] = call.get("id") or f"call{n_calls:05d}"  # a form that no template refuses
            n_calls += 1
            waiting[call["id"]] = call["function"]["name"]
        if message["role"] == "tool":
            call_id = message.get("tool_call_id") or next(iter(waiting), "")
            name = waiting.pop(call_id, "")
            message["tool_call_id"] = call_id
            if name:
                message.setdefault("name", name)


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object", where)
    result = {key: value for key, value in message.items() if value is not None}
    role = result.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{where}.role must name who speaks", f"{where}.role")
    if "tool_calls" in result:
        result["tool_calls"] = _tool_calls(result["tool_calls"], f"{where}.tool_calls")
        if not result["tool_calls"]:
            del result["tool_calls"]
    if "content" in result:
        result["content"] = _text(result["content"], f"{where}.content")
    elif role == "assistant" and any(result.get(key) for key in _INSTEAD_OF_CONTENT):
        result["content"] = result.get("refusal")
    else:
        raise InvalidRequest(
            f"{where}.content is missing; only an assistant message with tool_calls may have none",
            f"{where}.content",
        )
    return result


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidRequest(f"{where} must be a string or a list of parts", where)
    return PART_JOINER.join(_part_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part_text(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise InvalidRequest(f"{where} must be an object with a type", where)
    if kind not in ("text", "refusal"):
        raise InvalidRequest(
            f"{where}.type '{kind}' is not supported: this model reads text only", f"{where}.type"
        )
    text = part.get(kind)
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.{kind} must be a string", f"{where}.{kind}")
    return text


def _tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where} must be a list", where)
    return [_tool_call(call, f"{where}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise InvalidRequest(f"{where} must be an object with a function", where)
    if not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where}.function.name must be a string", f"{where}.function.name")
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _arguments(arguments: object, where: str) -> dict[str, Any] | str:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, Mapping):
        return dict(arguments)
    if not isinstance(arguments, str):
        raise InvalidRequest(f"{where} must be a string holding a JSON object", where)
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments  # a weak model's broken call must not end the chat: replay it as it was
    return value if isinstance(value, dict) else arguments
