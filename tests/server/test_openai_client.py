"""The official client against our server: what it parses, and what it raises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from engine import EngineError
from tests.fake_engine import FakeEngine, Script
from tests.server.conftest import Running

MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="any", messages=MESSAGES, temperature=0, seed=1)
    assert reply.choices[0].message.content == "Paris."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None and reply.usage.completion_tokens == 4
    assert reply.usage.prompt_tokens_details is not None
    assert reply._request_id is not None and reply._request_id.startswith("req_")


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="any", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Paris."
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == [] and last.usage is not None and last.usage.completion_tokens == 4


def test_the_clients_own_stream_accumulator(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="any", messages=MESSAGES) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Paris."


def test_text(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="any", prompt=["A", "B"])
    assert [choice.text for choice in reply.choices] == ["Paris.", "Paris."]
    stream = client.completions.create(model="any", prompt="A", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "Paris."


def test_models(client: openai.OpenAI) -> None:
    [model] = client.models.list().data
    assert client.models.retrieve(model.id).owned_by == "rushlight"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors(client: openai.OpenAI, fake: FakeEngine) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="any", messages=MESSAGES, modalities=["audio"])
    assert (refused.value.param, refused.value.code) == ("modalities", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model="any", prompt=[65] * 600)
    assert too_long.value.code == "context_length_exceeded"
    fake.script = Script(fail_after=2, error=EngineError("broken"))
    stream = client.chat.completions.create(model="any", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="internal error"):
        list(stream)
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="any", messages=MESSAGES)


def test_closing_a_stream_stops_the_engine(client: openai.OpenAI, fake: FakeEngine) -> None:
    fake.script = Script(("word ",), endless=True, delay_s=0.005)
    stream = client.chat.completions.create(model="any", messages=MESSAGES, stream=True)
    for _ in range(3):
        next(stream)
    stream.close()
    fake.wait_until_idle()
    assert fake.submitted[-1].cancelled
