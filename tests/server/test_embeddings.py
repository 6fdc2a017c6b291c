"""Embeddings in OpenAI's and Ollama's shapes, through their own libraries."""

from __future__ import annotations

import base64
import math
import threading
from array import array
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import openai
import pytest

from tests.fake_engine import FakeEngine, Script
from tests.server.conftest import Running
from tests.server.wire import RawConnection, wait_until

PATH = "/v1/embeddings"


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def old_client(server: Running) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url) as client:
        yield client


def unit(fake: FakeEngine, ids: list[int], n: int | None = None) -> list[float]:
    vector = fake.embed(ids, threading.Event())[:n]
    return [x / math.hypot(*vector) for x in vector]


def test_vectors_have_length_one(client: openai.OpenAI, fake: FakeEngine) -> None:
    reply = client.embeddings.create(model="any", input="Hello", encoding_format="float")
    [item] = reply.data
    ids = fake.encode_text("Hello")
    assert item.embedding == pytest.approx(unit(fake, ids))
    assert math.hypot(*item.embedding) == pytest.approx(1)
    assert (item.index, item.object, reply.model) == (0, "embedding", "fake-1b")
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == len(ids)


def test_base64_says_the_same(client: openai.OpenAI, http: httpx.Client) -> None:
    plain = client.embeddings.create(model="any", input="Hello", encoding_format="float")
    default = client.embeddings.create(model="any", input="Hello")  # the client's own: base64
    assert default.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
    raw = http.post(PATH, json={"input": "Hello", "encoding_format": "base64"}).json()
    found = array("f", base64.b64decode(raw["data"][0]["embedding"])).tolist()
    assert found == pytest.approx(plain.data[0].embedding, abs=1e-6)


def test_inputs_of_every_form(client: openai.OpenAI, fake: FakeEngine) -> None:
    for given, all_ids in (
        (["A", "B"], [fake.encode_text("A"), fake.encode_text("B")]),
        ([65, 66], [[65, 66]]),
        ([[65], [66, 67]], [[65], [66, 67]]),
    ):
        reply = client.embeddings.create(model="any", input=given, encoding_format="float")  # type: ignore[arg-type]
        assert [item.index for item in reply.data] == list(range(len(all_ids)))
        for item, ids in zip(reply.data, all_ids, strict=True):
            assert item.embedding == pytest.approx(unit(fake, ids))
        assert reply.usage.prompt_tokens == sum(map(len, all_ids))


def test_dimensions(client: openai.OpenAI, fake: FakeEngine) -> None:
    reply = client.embeddings.create(model="any", input="Hello", dimensions=9)
    expected = unit(fake, fake.encode_text("Hello"), 9)
    assert reply.data[0].embedding == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [9999]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": "x" * 600}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 65}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "embd_normalize": -1}, "embd_normalize"),
    ],
)
def test_refusals(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    reply = http.post(PATH, json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_ollama(old_client: ollama.Client, fake: FakeEngine) -> None:
    reply = old_client.embed("any", ["A", "BB"])
    assert [list(v) for v in reply.embeddings] == [
        pytest.approx(unit(fake, fake.encode_text(text))) for text in ("A", "BB")
    ]
    assert reply.prompt_eval_count == 7 and reply.total_duration
    assert old_client.embed("any", []).embeddings == []
    old = old_client.embeddings("any", "A")
    assert list(old.embedding) == fake.embed(fake.encode_text("A"), threading.Event())
    fake.embedded.clear()
    old_client.embed("any", "x" * 600)  # cut, as Ollama does
    assert [len(ids) for ids in fake.embedded] == [511]
    with pytest.raises(ollama.ResponseError, match="512"):
        old_client.embed("any", "x" * 600, truncate=False)


def test_they_take_turns_and_leave_with_their_client(serve: Any) -> None:
    engine = FakeEngine(Script(prefill_s=60))
    running: Running = serve(engine)
    with RawConnection(running.port) as first:
        first.post(PATH, {"input": "A"})
        wait_until(lambda: engine.embedded)
        with RawConnection(running.port) as second:
            second.post(PATH, {"input": "B"})
    engine.script = Script()
    reply = httpx.post(running.url + PATH, json={"input": "C"}, timeout=10)
    assert reply.status_code == 200
    assert engine.encode_text("B") not in engine.embedded


def test_a_full_queue(serve: Any) -> None:
    engine = FakeEngine(Script(prefill_s=60))
    running: Running = serve(engine, queue={"max_waiting": 1})
    with RawConnection(running.port) as first:
        first.post(PATH, {"input": "A"})
        wait_until(lambda: engine.embedded)
        reply = httpx.post(running.url + PATH, json={"input": "B"}, timeout=10)
    assert reply.status_code == 429 and "Retry-After" in reply.headers
