"""A model that calls tools by itself and fills in the middle, through the real `openai` library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from engine import Engine, EngineConfig
from tests.server.conftest import start

MODEL = Path(__file__).resolve().parents[1] / "models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL.exists(), reason=f"needs {MODEL.name}"),
]

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
def client() -> Iterator[openai.OpenAI]:
    running, stop = start(lambda on_load: Engine(EngineConfig(str(MODEL), n_ctx=1024), on_load))
    try:
        assert running.loaded.wait(120), "the engine does not load"
        url = f"{running.url}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield client
    finally:
        stop()


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
