"""Every family of APIs on a real model, through its own library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import jsonschema
import ollama
import openai
import pytest

from tests.model_files import SMOLLM2, needs

pytestmark = [pytest.mark.model, needs(SMOLLM2)]

QUESTION = "What is the capital of France?"
HELLO: Any = [{"role": "user", "content": QUESTION}]
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model() -> Path:
    return SMOLLM2


@pytest.fixture(scope="module")
def anthropic_client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def ollama_client(url: str) -> Iterator[ollama.Client]:
    with ollama.Client(host=url) as client:
        yield client


def test_all_say_the_same(
    client: openai.OpenAI, anthropic_client: anthropic.Anthropic, ollama_client: Any
) -> None:
    chat = client.chat.completions.create(model="any", messages=HELLO, max_tokens=20)
    text = chat.choices[0].message.content
    assert text and "Paris" in text
    said = client.responses.create(model="any", input=QUESTION, max_output_tokens=20)
    assert said.output_text == text
    message = anthropic_client.messages.create(model="any", messages=HELLO, max_tokens=20)
    assert message.content[0].text == text  # type: ignore[union-attr]
    reply = ollama_client.chat("any", HELLO, options={"num_predict": 20})
    assert reply.message.content == text
    generated = ollama_client.generate("any", QUESTION, options={"num_predict": 20})
    assert generated.response == text
    assert message.usage.cache_read_input_tokens > 0 and chat.usage
    n_prompt = message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert reply.prompt_eval_count == n_prompt == chat.usage.prompt_tokens


def test_streams_join_to_the_whole(
    client: openai.OpenAI, anthropic_client: anthropic.Anthropic, ollama_client: Any
) -> None:
    whole = anthropic_client.messages.create(model="any", messages=HELLO, max_tokens=20)
    text = whole.content[0].text  # type: ignore[union-attr]
    with anthropic_client.messages.stream(model="any", messages=HELLO, max_tokens=20) as stream:
        assert "".join(stream.text_stream) == text
    with client.responses.stream(model="any", input=QUESTION, max_output_tokens=20) as more:
        assert more.get_final_response().output_text == text
    pieces = ollama_client.chat("any", HELLO, stream=True, options={"num_predict": 20})
    assert "".join(piece.message.content for piece in pieces) == text


def test_schemas_are_kept_to(
    client: openai.OpenAI, anthropic_client: anthropic.Anthropic, ollama_client: Any
) -> None:
    wanted: Any = {"type": "json_schema", "name": "x", "schema": SCHEMA}
    said = client.responses.create(model="any", input=QUESTION, text={"format": wanted})
    message = anthropic_client.messages.create(
        model="any",
        messages=HELLO,
        max_tokens=100,
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    reply = ollama_client.chat("any", HELLO, format=SCHEMA)
    for text in (said.output_text, message.content[0].text, reply.message.content):  # type: ignore[union-attr]
        jsonschema.validate(json.loads(text), SCHEMA)


def test_forced_calls(client: openai.OpenAI, anthropic_client: anthropic.Anthropic) -> None:
    message = anthropic_client.messages.create(
        model="any",
        messages=HELLO,
        max_tokens=100,
        tools=[{"name": "weather", "input_schema": SCHEMA}],
        tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    )
    [block] = message.content
    assert block.type == "tool_use" and message.stop_reason == "tool_use"
    jsonschema.validate(block.input, SCHEMA)
    said = client.responses.create(
        model="any",
        input=QUESTION,
        max_output_tokens=100,
        tools=[{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    [call] = said.output
    assert call.type == "function_call"
    jsonschema.validate(json.loads(call.arguments), SCHEMA)


def test_embeddings_tell_texts_apart(client: openai.OpenAI, ollama_client: Any) -> None:
    texts = ["The cat sleeps on the sofa.", "A cat naps on a couch.", "def f(x): return x + 1"]
    a, b, c = (e.embedding for e in client.embeddings.create(model="m", input=texts).data)

    def likeness(x: list[float], y: list[float]) -> float:
        return sum(p * q for p, q in zip(x, y, strict=True))

    assert likeness(a, a) == pytest.approx(1, abs=1e-5)
    assert likeness(a, b) > likeness(a, c)
    assert list(ollama_client.embed("m", texts).embeddings[0]) == pytest.approx(a, abs=1e-5)


def test_estimates_and_tokens(url: str) -> None:
    with httpx.Client(base_url=url, timeout=60) as http:
        body = {"messages": HELLO, "max_tokens": 10}
        http.post("/v1/chat/completions", json=body)  # so that speeds are known
        found = http.post("/v1/estimate", json=body).json()
        assert found["fits"] and 0 < found["cached_tokens"] < found["prompt_tokens"]
        assert 0 < found["seconds_to_first_token"] < found["seconds_to_last_token"] < 60
        memory = http.get("/v1/memory").json()
        assert memory["weights_mapped"] == SMOLLM2.stat().st_size and memory["kv"] > 0
        prompt = http.post("/apply-template", json=body).json()["prompt"]
        assert QUESTION in prompt and prompt.endswith("<|im_start|>assistant\n")
        ids = http.post("/tokenize", json={"content": prompt}).json()["tokens"]
        assert len(ids) == found["prompt_tokens"]
        assert http.post("/detokenize", json={"tokens": ids}).json()["content"] == prompt
        plain = {"content": "<|im_end|>", "parse_special": False, "with_pieces": True}
        pieces = http.post("/tokenize", json=plain).json()["tokens"]
        assert len(pieces) > 1 and "".join(p["piece"] for p in pieces) == "<|im_end|>"
