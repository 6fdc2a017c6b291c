"""Qwen alone: it calls tools by itself and fills in the middle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from tests.model_files import QWEN, needs

pytestmark = [pytest.mark.model, pytest.mark.slow, needs(QWEN)]

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
ASK: Any = {"role": "user", "content": "What is the weather in Paris?"}


def tools(**more: Any) -> Any:
    function = {"name": "weather", "description": "Gets the weather of a city", **more}
    return [{"type": "function", "function": {**function, "parameters": PARAMETERS}}]


@pytest.fixture(scope="module")
def model() -> Path:
    return QWEN


@pytest.mark.parametrize("strict", [False, True])
def test_a_conversation_with_a_tool(client: openai.OpenAI, strict: bool) -> None:
    asked: dict[str, Any] = {"model": "any", "temperature": 0, "max_tokens": 100}
    asked |= {"tools": tools(strict=strict)}
    with client.chat.completions.stream(messages=[ASK], **asked) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls, message.content
    call = message.tool_calls[0]
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    jsonschema.validate(arguments, PARAMETERS)
    assert arguments["city"] == "Paris"
    told = {"role": "tool", "tool_call_id": call.id, "content": "Rain, 12 degrees."}
    said: Any = message.model_dump(exclude_none=True)
    said = {"role": "assistant", "tool_calls": [{**c, "function": {k: c["function"][k] for k in
            ("name", "arguments")}} for c in said["tool_calls"][:1]]}  # fmt: skip
    asked.pop("tools")  # it would rather call again
    then = {"role": "user", "content": "So, do I need an umbrella?"}
    answer = client.chat.completions.create(messages=[ASK, said, told, then], **asked)
    assert "umbrella" in (answer.choices[0].message.content or "")  # right or wrong


def test_the_middle_is_filled_in(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model="any",
        prompt="def add(a, b):\n    return ",
        suffix="\n\nprint(add(1, 2))\n",
        temperature=0,
        max_tokens=12,
    )
    assert "a + b" in reply.choices[0].text
