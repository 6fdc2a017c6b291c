"""Log-probabilities against their definition in 64 bits, and through the engine against the NumPy
reference."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from engine import (
    Engine,
    EngineConfig,
    Event,
    Failed,
    Finished,
    PromptScored,
    RequestOptions,
    SamplingParams,
    Token,
)
from engine.requests import runner
from engine.sampling.logprobs import LogProbs
from tests.reference import ReferenceModel
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_requests import PROMPT


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    return np.asarray(wide - np.logaddexp.reduce(wide))


def test_they_are_the_logarithms_of_the_softmax() -> None:
    logits = np.random.default_rng(1).normal(50, 20, 5000).astype(np.float32)
    expected = log_softmax(logits)
    ours = LogProbs.of(logits)
    np.testing.assert_allclose([ours[i] for i in range(5000)], expected, rtol=0, atol=1e-5)
    best = np.argsort(-expected, kind="stable")[:7]
    assert [token_id for token_id, _ in ours.top(7)] == best.tolist()
    np.testing.assert_allclose([value for _, value in ours.top(7)], expected[best], atol=1e-5)
    assert ours.top(0) == ()
    assert len(LogProbs.of(logits[:3]).top(9)) == 3


def test_by_hand() -> None:
    """Odds of 1 : 2 : 1, whatever is added to all logits; of equals the lowest id first."""
    for shift in (0, 1e4, -1e4):
        ours = LogProbs.of(np.array([0, np.log(2), 0], np.float32) + np.float32(shift))
        np.testing.assert_allclose(
            [ours[i] for i in range(3)], np.log([0.25, 0.5, 0.25]), atol=2e-3
        )
        assert [token_id for token_id, _ in ours.top(3)] == [1, 0, 2]


def test_impossible_tokens() -> None:
    ours = LogProbs.of(np.array([-np.inf, 1, np.nan, 1], np.float32))
    assert [ours[i] for i in range(4)] == [-np.inf, pytest.approx(np.log(0.5)), -np.inf,
                                           pytest.approx(np.log(0.5))]  # fmt: skip
    assert [token_id for token_id, _ in ours.top(2)] == [1, 3]
    assert LogProbs.of(np.full(3, -np.inf, np.float32))[0] == -np.inf


def test_they_are_of_the_raw_logits() -> None:
    """What the sampler does to the logits afterwards changes nothing."""
    logits = np.array([1, 2, 3], np.float32)
    ours = LogProbs.of(logits)
    logits[:] = -np.inf
    assert ours[2] == pytest.approx(-0.40760596)


# --- through the engine ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def float_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


def events_of(engine: Engine, params: SamplingParams, options: RequestOptions) -> list[Event]:
    events: list[Event] = []
    ended = threading.Event()

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, Finished | Failed):
            ended.set()

    engine.submit(PROMPT, params, on_event, options)
    assert ended.wait(20)
    assert isinstance(events[-1], Finished), events[-1]
    return events


def test_tokens_and_prompt_are_scored_as_the_reference_does(
    float_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0.9, max_tokens=6, n_probs=3, seed=1, ignore_eos=True,
                            logit_bias={PROMPT[0]: 5.0}, repeat_penalty=1.3)  # fmt: skip
    with Engine(EngineConfig(float_model, n_ctx=128)) as opened:
        n_vocab = opened.tokenizer.n_vocab
        monkeypatch.setattr(runner, "_SCORE_BYTES", 5 * 4 * n_vocab)  # five rows at once
        list(opened.generate(PROMPT, params))  # so that the prompt is in the cache
        events = events_of(opened, params, RequestOptions(prompt_logprobs=True))

    scored = [event for event in events if isinstance(event, PromptScored)]
    tokens = [event for event in events if isinstance(event, Token)]
    assert events == [*scored, *tokens, events[-1]]
    assert [event.first for event in scored] == [1, 6, 11]

    ids = PROMPT + [token.token_id for token in tokens]
    expected = [
        log_softmax(row[:n_vocab]) for row in ReferenceModel.from_gguf(float_model).logits(ids)
    ]
    ours = [value for event in scored for value in event.logprobs]
    ours += [token.logprob for token in tokens if token.logprob is not None]
    tops = [top for event in scored for top in event.tops] + [token.top for token in tokens]
    assert len(ours) == len(tops) == len(ids) - 1
    np.testing.assert_allclose(
        ours, [row[i] for row, i in zip(expected, ids[1:], strict=False)], atol=5e-3
    )
    for top, row in zip(tops, expected, strict=False):
        np.testing.assert_allclose([v for _, v in top], np.sort(row)[::-1][:3], atol=5e-3)
        np.testing.assert_allclose([row[i] for i, _ in top], [v for _, v in top], atol=5e-3)


def test_nothing_is_scored_unless_asked_for(float_model: Path) -> None:
    with Engine(EngineConfig(float_model, n_ctx=128)) as engine:
        params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        events = events_of(engine, params, RequestOptions())
        assert [type(event) for event in events] == [Token, Token, Token, Finished]
        assert all(e.logprob is None and e.top == () for e in events if isinstance(e, Token))
        one = events_of(engine, SamplingParams(max_tokens=1, n_probs=0), RequestOptions())[0]
        assert isinstance(one, Token)
        assert one.logprob is not None
        assert one.top == ()
