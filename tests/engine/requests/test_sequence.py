"""What a request knows of itself, without a model that runs it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from engine import Engine, Generation, SamplingParams
from engine.cache.chat import Chat
from engine.requests.sequence import Sequence
from tests.tiny_requests import N_CTX, PROMPT


def chat_of(n: int) -> Chat:
    return cast(Chat, SimpleNamespace(ids=PROMPT[:n]))


def test_what_is_cached_counts_once_however_often_it_is_paused(engine: Engine) -> None:
    """Paused before anything was read, its chat may go to the store and come back from there."""
    sequence = Sequence(Generation(PROMPT, SamplingParams(), print), engine.tokenizer, N_CTX)
    sequence.run_on(chat_of(8))
    assert sequence.n_cached == 8
    sequence.pause()
    sequence.run_on(chat_of(0))
    sequence.note_loaded(8)
    assert sequence.n_cached == sequence.n_prefilled == 8
    sequence.pause()
    sequence.run_on(chat_of(8))
    sequence.precise_until = len(PROMPT)  # read from here on
    sequence.pause()
    sequence.run_on(chat_of(12))
    assert (sequence.n_cached, sequence.n_prefilled) == (8, 12)
