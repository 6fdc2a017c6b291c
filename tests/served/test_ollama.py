"""Ollama's API on real models, through the real `ollama` library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import ollama
import pydantic
import pytest

pytestmark = pytest.mark.model

ASK: Any = {"role": "user", "content": "What is the weather in Paris?"}
SHORT = {"num_predict": 40}


class City(pydantic.BaseModel):
    """As users write it: nothing forbids other properties."""

    name: str = pydantic.Field(max_length=20)
    country: str = pydantic.Field(max_length=20)


def weather(city: str) -> str:
    """Gets the weather of a city

    Args:
        city: The name of the city
    """
    return f"It is sunny in {city}, 31 C."


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[ollama.Client]:
    with ollama.Client(host=url) as client:
        yield client


def chat(client: Any, *messages: Any, **more: Any) -> Any:
    return client.chat("any", list(messages or [ASK]), **{"options": SHORT, **more})


def test_a_tool_is_offered(client: ollama.Client, is_qwen: bool) -> None:
    """A Python function as a tool, whole and streamed. Ollama has no way to force a call."""
    whole = chat(client, tools=[weather])
    streamed = list(chat(client, tools=[weather], stream=True))
    calls = whole.message.tool_calls or []
    assert bool(calls) or not is_qwen
    for call in calls:
        assert (call.function.name, call.function.arguments) == ("weather", {"city": "Paris"})
    told = [call.function for line in streamed for call in line.message.tool_calls or []]
    assert told == [call.function for call in calls]
    assert "".join(line.message.content for line in streamed) == whole.message.content
    assert [line.done for line in streamed] == [False] * (len(streamed) - 1) + [True]
    assert streamed[-1].done_reason == whole.done_reason
    assert streamed[-1].eval_count == whole.eval_count


def test_a_result_goes_back(client: ollama.Client, is_qwen: bool) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    told = {"role": "tool", "tool_name": "weather", "content": weather("Paris")}
    then = {"role": "user", "content": "So, do I need an umbrella?"}
    answer = chat(client, ASK, said, told, then).message.content
    assert "umbrella" in answer or not is_qwen  # right or wrong
    assert answer
    # As the library sends back what it got.
    again = chat(client, ASK, ollama.Message(**said), ollama.Message(**told), then)
    assert again.message.content == answer


@pytest.mark.parametrize("stream", [False, True])
def test_formats(client: ollama.Client, stream: bool) -> None:
    about = {"role": "user", "content": "Paris is in France."}

    def say(**more: Any) -> str:
        reply = chat(client, about, stream=stream, options={"num_predict": 120}, **more)
        return "".join(line.message.content for line in reply) if stream else reply.message.content

    city = City.model_validate_json(say(format=City.model_json_schema()))
    assert city.name == "Paris"
    schema = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 2}
    jsonschema.validate(json.loads(say(format=schema)), schema)
    assert say(format="json").lstrip().startswith("{")


def test_options(client: ollama.Client) -> None:
    reply = chat(client, options={"num_predict": 3, "num_ctx": 4096, "num_thread": 2})
    assert (reply.eval_count, reply.done_reason) == (3, "length")
    said = chat(client).message.content
    first = said.split()[0]
    reply = chat(client, options={**SHORT, "stop": [first]})
    assert (reply.message.content, reply.done_reason) == ("", "stop")
    hot = {"temperature": 1.5, "seed": 7, "top_k": 100, "top_p": 1.0, "min_p": 0.0}
    replies = {chat(client, options={**SHORT, **hot}).message.content for _ in range(2)}
    assert len(replies) == 1 and said not in replies


def test_generating(client: ollama.Client) -> None:
    ask = "What is the capital of France?"
    chatted = chat(client, {"role": "system", "content": "Be brief."}, {**ASK, "content": ask})
    reply = client.generate("any", ask, system="Be brief.", options=SHORT)
    assert reply.response == chatted.message.content
    pieces = client.generate("any", ask, system="Be brief.", options=SHORT, stream=True)
    assert "".join(piece.response for piece in pieces) == reply.response
    raw = client.generate("any", "The capital of France is", raw=True, options={"num_predict": 3})
    assert "Paris" in raw.response
    assert raw.prompt_eval_count is not None and reply.prompt_eval_count is not None
    assert raw.prompt_eval_count < reply.prompt_eval_count


def test_filling_the_middle(client: ollama.Client, is_qwen: bool) -> None:
    asked: Any = {"prompt": "def add(a, b):\n    return ", "suffix": "\n\nprint(add(1, 2))\n"}
    shown = client.show(client.list().models[0].model or "")
    assert ("insert" in (shown.capabilities or [])) == is_qwen
    if is_qwen:
        assert "a + b" in client.generate("any", **asked, options=SHORT).response
    else:
        with pytest.raises(ollama.ResponseError, match="suffix"):
            client.generate("any", **asked)


def test_asked_to_think(client: ollama.Client) -> None:
    """These models do not; they answer all the same."""
    said = chat(client, options={"num_predict": 8}).message.content
    for think in (False, True, "low"):
        message = chat(client, think=think, options={"num_predict": 8}).message
        assert (message.content, message.thinking) == (said, None)


def test_loading_and_keeping(client: ollama.Client) -> None:
    for keep_alive in (-1, "10m", 0):
        loaded = client.chat("any", [], keep_alive=keep_alive)
        assert (loaded.done, loaded.done_reason, loaded.message.content) == (True, "load", "")
        assert client.generate("any", keep_alive=keep_alive).done_reason == "load"
        short = {"num_predict": 2}
        assert chat(client, keep_alive=keep_alive, options=short).message.content
    assert client.ps().models[0].model == client.list().models[0].model


def test_embeddings(client: ollama.Client) -> None:
    texts = ["The cat sleeps on the sofa.", "A cat naps on a couch.", "def f(x): return x + 1"]
    found = client.embed("any", texts)
    a, b, c = found.embeddings
    likeness = [sum(p * q for p, q in zip(a, other, strict=True)) for other in (a, b, c)]
    assert likeness[0] == pytest.approx(1, abs=1e-5) and likeness[1] > likeness[2]
    assert len(client.embed("any", texts[0], dimensions=64).embeddings[0]) == 64
    assert found.prompt_eval_count and found.total_duration


def test_logprobs_and_times(client: ollama.Client) -> None:
    reply = chat(client, logprobs=True, top_logprobs=2)
    assert "".join(item.token for item in reply.logprobs) == reply.message.content
    assert all(len(item.top_logprobs) == 2 for item in reply.logprobs)
    assert reply.total_duration >= reply.eval_duration > 0 and reply.eval_count > 0


def test_refusals(client: ollama.Client) -> None:
    for more, word in (
        ({"images": ["aaaa"]}, "images"),
        ({"content": "x " * 2000}, "1024"),
    ):
        with pytest.raises(ollama.ResponseError, match=word) as refused:
            client.chat("any", [{**ASK, **more}])
        assert refused.value.status_code == 400
