"""What tests ask of an engine with a tiny random model, and how they hear of it."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from engine import Engine, Event, Failed, Finished, SamplingParams, Token
from tests.tiny_gguf import FIRST_BYTE

N_CTX = 256
A = FIRST_BYTE + ord("a")
PROMPT = [FIRST_BYTE + ord(c) for c in "once upon a time"]


class Listener:
    """Collects a request's events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.started, self.ended = threading.Event(), threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.started.set()
        if not isinstance(event, Token):
            self.ended.set()

    def last(self, timeout_s: float = 10.0) -> Finished | Failed:
        assert self.ended.wait(timeout_s), "no last event came"
        last = self.events[-1]
        assert isinstance(last, Finished | Failed)
        return last

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Token | Finished))


def always(*ids: int, **options: object) -> SamplingParams:
    """Only these tokens can be chosen."""
    bias = dict.fromkeys(ids, 100.0)
    return SamplingParams(logit_bias=bias, temperature=0, **options)  # type: ignore[arg-type]


def run(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[str, Finished]:
    events = list(engine.generate(prompt, params))
    assert isinstance(events[-1], Finished)
    assert all(isinstance(e, Token) for e in events[:-1])
    return "".join(e.text for e in events), events[-1]


def slow_down(engine: Engine, monkeypatch: pytest.MonkeyPatch, step_s: float = 0.02) -> None:
    """Let each run of the plan take a while."""
    forward = engine._model.forward

    def slow(*args: object, **options: object) -> np.ndarray:
        time.sleep(step_s)
        return forward(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine._model, "forward", slow)
