"""Tools for models whose chat template has no place for them: told and shown in plain words.

The model is asked for a call as one JSON object, which the reply parser knows without any marks.
Does not know the template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

Message = dict[str, Any]

_INSTRUCTION: Final = """\
You can call these functions:
{tools}

To call one, answer with nothing but a JSON object of this form:
{{"name": "the function's name", "parameters": {{"an argument's name": "its value"}}}}
The result will be told to you. Without need of a function, answer as usual."""


def tell_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Normalised messages that say what `tools` there are, and how to call one."""
    functions = [tool.get("function", tool) for tool in tools]
    text = _INSTRUCTION.format(tools="\n".join(map(_to_json, functions)))
    # In what the model is told first: not every template takes a system message of its own.
    first, *others = messages
    if first["role"] in ("system", "developer"):
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *others]
    if first["role"] == "user":
        return [{**first, "content": f"{text}\n\n{first['content']}"}, *others]
    return [{"role": "user", "content": text}, *messages]


def write_out_calls(messages: Sequence[Message]) -> list[Message]:
    """Normalised messages with earlier calls and their results as text."""
    written: list[Message] = []
    after_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            text = f"Result of the function: {message['content']}"
            if after_result:  # one message for all: roles may have to alternate
                text = f"{written.pop()['content']}\n{text}"
            written.append({"role": "user", "content": text})
        elif calls := message.get("tool_calls"):
            texts = [message["content"], *map(_call_text, calls)]
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            written.append({**rest, "content": "\n".join(filter(None, texts))})
        else:
            written.append(message)
        after_result = is_result
    return written


def _call_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    return _to_json({"name": function["name"], "parameters": function["arguments"]})


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
