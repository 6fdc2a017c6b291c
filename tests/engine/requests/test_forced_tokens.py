"""Where a grammar leaves no choice, tokens are taken without logits and read together: replies are
the same as if each had been chosen, in fewer runs. On a tiny random model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import (
    Engine,
    EngineConfig,
    Finished,
    FinishReason,
    Grammar,
    RequestOptions,
    SamplingParams,
    Token,
)
from engine.cache.chat import Chat, next_of_runs
from engine.kernels.op import FEW
from engine.model.model import Model
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_requests import N_CTX, PROMPT, Listener

COLOUR = {
    "type": "object",
    "properties": {
        "dominant": {"enum": ["rhododendron red", "rhododendron blue"]},
        "intensity": {"type": "integer", "minimum": 100, "maximum": 999},
    },
    "required": ["dominant", "intensity"],
    "additionalProperties": False,
}


@pytest.fixture(params=["every page", "a window"])
def chat_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """One that looks back on everything, and one most of whose layers look back on a window."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    if request.param == "a window":
        path = write_tiny_gguf(
            path,
            architecture="gemma3",
            head_norms="head",
            post_norms=True,
            n_layer=7,
            window=40,
        )
    config = EngineConfig(path, disk_bytes=0, n_ctx=N_CTX, prefill_chunk=64, policy="priority")
    with Engine(config) as engine:
        yield engine


@pytest.fixture
def runs(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """How many rows each run of the plan has, chat by chat."""
    seen: list[list[int]] = []
    forward = engine._model.forward

    def note(parts: Any, **options: bool) -> Any:
        seen.append([len(part.tokens) for part in parts])
        return forward(parts, **options)

    monkeypatch.setattr(engine._model, "forward", note)
    return seen


def ask(engine: Engine, grammar: Grammar, n: int = 0, **params: Any) -> Listener:
    listener = Listener()
    settings = SamplingParams(**{"temperature": 1.0, "max_tokens": 120, "seed": 7, **params})
    prompt = PROMPT * (1 + n)
    engine.submit(prompt, settings, listener, options=RequestOptions(grammar=grammar))
    return listener


def ids_of(listener: Listener) -> list[int]:
    assert isinstance(listener.last(), Finished), listener.last()
    return [event.token_id for event in listener.events if isinstance(event, Token)]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0},
        {"mirostat": 2},
        {"xtc_probability": 0.5, "xtc_threshold": 0.0001},
        {"repeat_penalty": 1.5, "dry_multiplier": 1.0, "top_k": 3},
    ],
)
def test_the_reply_is_the_one_that_would_have_been_chosen(
    engine: Engine, runs: list[list[int]], params: dict[str, Any]
) -> None:
    """Log-probabilities need the logits of every token, so that nothing is forced."""
    grammar = Grammar.compile("json_schema", COLOUR, engine.tokenizer)
    chosen = ids_of(ask(engine, grammar, n_probs=0, **params))
    n_chosen = len(runs)
    assert max(map(max, runs[-len(chosen) :])) == 1
    forced = ids_of(ask(engine, grammar, **params))
    assert forced == chosen
    assert len(runs) - n_chosen < len(chosen) - 20


def test_a_beginning_without_choice_is_read_with_the_prompts_last_token(
    engine: Engine, runs: list[list[int]]
) -> None:
    grammar = Grammar.compile("regex", "<call> name=[ab]", engine.tokenizer)
    listener = ask(engine, grammar)
    n = len(ids_of(listener))
    assert listener.text in ("<call> name=a", "<call> name=b")
    assert 9 < n <= FEW
    assert runs == [[len(PROMPT) - 1], [n]]  # none for the last token: nothing follows it


def test_text_without_any_choice_needs_no_model(engine: Engine, runs: list[list[int]]) -> None:
    listener = ask(engine, Grammar.compile("regex", "always the same", engine.tokenizer))
    last = listener.last()
    assert isinstance(last, Finished)
    assert (listener.text, last.finish_reason) == ("always the same", FinishReason.STOP)
    assert last.n_decoded == len(ids_of(listener)) > 9
    assert [sum(run) for run in runs] == [len(PROMPT) - 1]


def test_limits_and_stop_strings_hold_in_the_middle_of_it(engine: Engine) -> None:
    grammar = Grammar.compile("regex", "once and for all[.!]", engine.tokenizer)
    tokens = engine.tokenizer.encode("once and for all", add_special=False)
    beginning = engine.tokenizer.decode(tokens[:6])
    cut = ask(engine, grammar, max_tokens=6)
    last = cut.last()
    assert isinstance(last, Finished)
    assert (cut.text, last.finish_reason, last.n_decoded) == (beginning, FinishReason.LENGTH, 6)
    stopped = ask(engine, grammar, stop=("and",))
    last = stopped.last()
    assert isinstance(last, Finished)
    assert (stopped.text, last.finish_reason) == ("once ", FinishReason.STOP)
    assert last.stop_string == "and"
    assert tokens[6] not in tokens[:6]
    ended = ask(engine, grammar, stop_token_ids=frozenset({tokens[6]}))
    last = ended.last()
    assert isinstance(last, Finished)
    assert (ended.text, last.finish_reason) == (beginning, FinishReason.STOP)


def test_replies_that_are_written_together_are_those_written_alone(engine: Engine) -> None:
    grammars = [
        Grammar.compile("json_schema", COLOUR, engine.tokenizer),
        Grammar.compile("regex", "(forced stretch of text [0-9]){3}", engine.tokenizer),
    ]
    alone = [ids_of(ask(engine, grammar, n)) for n, grammar in enumerate(grammars)]
    together = [ask(engine, grammar, n) for n, grammar in enumerate(grammars)]
    assert [ids_of(listener) for listener in together] == alone


def test_who_is_preempted_or_cancelled_in_the_middle_of_it(
    chat_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goes on as if nothing had been: all behind the prompt is read as decoding reads."""
    engine = chat_engine
    pattern = "a stretch( and another one of more tokens than are read in one run [0-9]){2}"
    grammar = Grammar.compile("regex", pattern, engine.tokenizer)
    alone = ids_of(ask(engine, grammar, 2, max_tokens=200))
    engine._worker.call(engine._cache.clear).result()
    prompt, cuts, urgent = PROMPT * 3, [2, 3, 5], []
    forward, read = engine._model.forward, list[tuple[int, int, bool]]()

    def note(parts: Any, *, precise: bool) -> Any:
        if len(parts[0].tokens) + parts[0].first_pos > len(PROMPT):
            read.append((parts[0].first_pos, len(parts[0].tokens), precise))
        if cuts and len(read) == cuts[0]:
            cuts.pop(0)
            urgent.append(Listener())
            options = RequestOptions(priority=1)
            engine.submit(PROMPT[::-1], SamplingParams(max_tokens=1), urgent[-1], options)
        return forward(parts, precise=precise)

    monkeypatch.setattr(engine._model, "forward", note)
    again = ask(engine, grammar, 2, max_tokens=200)
    assert ids_of(again) == alone
    assert len(urgent) == 3
    assert all(isinstance(listener.last(), Finished) for listener in urgent)
    behind = [(n, precise) for first, n, precise in read if first >= len(prompt) - 1]
    assert sum(n for n, _ in behind) == len(alone)
    assert all(n <= FEW and precise for n, precise in behind)
    assert max(n for n, _ in behind) > 1

    def cancel(parts: Any, *, precise: bool) -> Any:
        if len(parts[0].tokens) > 1 and parts[0].first_pos >= len(prompt):
            engine._worker._scheduler.running[0].generation.cancel()
        return forward(parts, precise=precise)

    monkeypatch.setattr(engine._model, "forward", cancel)
    last = ask(engine, grammar, 2, max_tokens=200).last()
    assert isinstance(last, Finished) and last.finish_reason is FinishReason.CANCELLED
    monkeypatch.setattr(engine._model, "forward", forward)
    assert ids_of(ask(engine, grammar, 2, max_tokens=200)) == alone


@pytest.mark.parametrize("n_before", [3, 35, 59, 63, 100])
def test_rows_of_one_chat_come_out_as_one_by_one(chat_engine: Engine, n_before: int) -> None:
    """To the last bit, at a page's end too, and where a window's beginning comes to one."""
    engine = chat_engine
    model: Model = engine._model
    text = [PROMPT[i * i % len(PROMPT)] for i in range(n_before + 8)]

    def read(by: Callable[[Chat], int]) -> tuple[np.ndarray, np.ndarray]:
        chat = Chat(model, engine._pool, 256)
        for at in range(0, n_before, 64):
            chat.prefill(text[at : min(at + 64, n_before)], want_logits=False)
        while len(chat.ids) < len(text):
            n = len(chat.ids)
            logits = next_of_runs([chat], [text[n : n + by(chat)]], [True])
        after = logits[0].copy()
        next_one = chat.next(PROMPT[0]).copy()  # looks back on all of them
        chat.restart()
        return after, next_one

    one_by_one = read(lambda chat: 1)
    together = read(lambda chat: chat.n_alike(len(text) - len(chat.ids)))
    assert np.array_equal(one_by_one, together)
