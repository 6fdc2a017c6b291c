"""A real model against llama.cpp's choices and against the same weights computed in f32."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine import Engine, EngineConfig, SamplingParams, Token
from tests.reference import ReferenceModel

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
GOLDEN: dict[str, Any] = json.loads(
    (ROOT / "tests/golden/smollm2-135m-instruct-q4_1.json").read_text()
)
# Where the best two choices are closer than this, two right implementations may part.
SAFE_MARGIN = 0.3

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not MODEL.exists(), reason="the demo model is not in models/"),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(EngineConfig(MODEL, n_ctx=1024, n_threads=2)) as engine:
        yield engine


@pytest.fixture(scope="module")
def reference() -> npt.NDArray[np.float64]:
    """log-probabilities f64[n_tokens - 1, n_vocab] of the golden text, by the f32 reference."""
    return log_softmax(ReferenceModel.from_gguf(MODEL).logits(GOLDEN["text_ids"]))[:-1]


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def score(engine: Engine, ids: list[int], chunk: int) -> npt.NDArray[np.float64]:
    chat = engine._chat
    chat.restart()
    parts = [chat.score(ids[i : i + chunk]).copy() for i in range(0, len(ids), chunk)]
    return log_softmax(np.concatenate(parts))[:-1]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: repr(case["prompt"][-40:]))
def test_prompt_and_greedy_ids_are_llama_cpps(engine: Engine, case: dict[str, Any]) -> None:
    ids = engine.tokenizer.encode_template(case["prompt"])
    if case["kind"] != "chat":
        ids = engine.encode_prompt(case["prompt"])
    assert ids == case["prompt_ids"]
    n = next(
        (i for i, margin in enumerate(case["greedy_margin"]) if margin < SAFE_MARGIN),
        len(case["greedy_ids"]),
    )
    params = SamplingParams(temperature=0, max_tokens=max(n, 1))
    found = [e.token_id for e in engine.generate(ids, params) if isinstance(e, Token)]
    expected = [i for i in case["greedy_ids"][:n] if i not in engine.tokenizer.eog_ids]
    assert found[: len(expected)] == expected


# Chunks of 1 are computed as in decoding (16-bit inputs), longer ones as in prefill (8-bit).
@pytest.mark.parametrize("chunk", [256, 1])
def test_likelihoods_are_those_of_f32(
    engine: Engine, reference: npt.NDArray[np.float64], chunk: int
) -> None:
    ids = GOLDEN["text_ids"]
    ours = score(engine, ids, chunk)
    nll = -ours[np.arange(len(ours)), ids[1:]]
    perplexity = np.exp(nll.mean())
    assert perplexity == pytest.approx(GOLDEN["reference_f32"]["text_perplexity"], rel=0.005)
    kl = (np.exp(reference) * (reference - ours)).sum(axis=-1)
    assert kl.mean() <= GOLDEN["llama_cpp_vs_reference"]["mean_kl"]
    if chunk == 1:
        assert kl.mean() < 1e-5  # decoding is all but exact


def test_it_knows_the_capital_of_france(engine: Engine) -> None:
    prompt = engine.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    reply = "".join(e.text for e in engine.generate(prompt, SamplingParams(temperature=0)))
    assert "Paris" in reply
