"""Embeddings against llama.cpp's; chunks and other requests change nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Engine, EngineConfig, InvalidRequest, SamplingParams
from engine.requests.embedder import Embedder
from tests.model_files import SMOLLM2, needs

ROOT = Path(__file__).resolve().parents[3]
GOLDEN: dict[str, Any] = json.loads((ROOT / "tests/golden/embeddings.json").read_text())

pytestmark = [pytest.mark.model, needs(SMOLLM2)]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(EngineConfig(SMOLLM2, n_ctx=1024, disk_bytes=0)) as engine:
        yield engine


def embed(engine: Engine, ids: list[int], pooling: Any = "mean") -> np.ndarray[Any, Any]:
    old = engine._embedder
    embedder = Embedder(old._model, old._cache, old._worker, old._new_chat, pooling)
    return embedder.embed(ids, threading.Event())


def likeness(a: Any, b: Any) -> float:
    return float(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_equals_llama_cpp(engine: Engine, pooling: str) -> None:
    for golden in GOLDEN[pooling]:
        found = embed(engine, golden["ids"], pooling)
        assert likeness(found, golden["embedding"]) > 0.995
        assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(golden["embedding"]), rel=0.02)


def test_the_engines_way_is_the_mean(engine: Engine) -> None:
    ids = GOLDEN["mean"][0]["ids"]
    found = engine.embed(ids, threading.Event())
    assert len(found) == engine.model.n_embd
    assert np.allclose(found, embed(engine, ids))


def test_poolings_take_the_right_rows(engine: Engine) -> None:
    """A token sees only what is before it, so the first of many is alone."""
    ids = GOLDEN["mean"][1]["ids"]  # several chunks
    assert likeness(embed(engine, ids, "cls"), embed(engine, ids[:1], "last")) > 0.999
    middle = np.mean([embed(engine, ids[: n + 1], "last") for n in range(3)], axis=0)
    assert likeness(embed(engine, ids[:3]), middle) > 0.99


def test_pages_come_back_and_replies_stay_the_same(engine: Engine) -> None:
    prompt = engine.encode_prompt("The capital of France is")
    params = SamplingParams(temperature=0, max_tokens=20)
    alone = [event.text for event in engine.generate(prompt, params)]
    ids = GOLDEN["mean"][1]["ids"]
    before = embed(engine, ids)
    beside: list[Any] = []
    thread = threading.Thread(target=lambda: beside.append(embed(engine, ids)))
    thread.start()
    assert [event.text for event in engine.generate(prompt, params)] == alone
    thread.join()
    assert likeness(beside[0], before) > 0.9999
    used = engine._pool.used_bytes
    embed(engine, ids)
    engine._worker.call(lambda: None).result()
    assert engine._pool.used_bytes <= used


def test_cancelled(engine: Engine) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(InvalidRequest, match="cancelled"):
        engine.embed([1, 2, 3], cancelled)
