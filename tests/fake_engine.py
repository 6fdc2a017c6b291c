"""FakeEngine: the engine's public face with scripted replies, for tests of what stands around it.

One thread answers first come, first served. What a real engine guarantees about texts (whole
characters, stop strings removed) the script has to provide.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine import (
    ChatMemory,
    ContextLengthExceeded,
    Difference,
    EngineClosed,
    EngineConfig,
    EngineError,
    EngineFailed,
    Estimate,
    Event,
    Failed,
    Finished,
    FinishReason,
    Generation,
    InvalidRequest,
    MemoryReport,
    ModelInfo,
    Phase,
    Progress,
    QueueFull,
    RequestOptions,
    SamplingParams,
    Timings,
    Token,
)
from engine.requests.request_options import DEFAULT_OPTIONS
from engine.templates.template_options import TemplateOptions
from tests.fake_text import N_VOCAB, FakeText, text_of


@dataclass(frozen=True, slots=True)
class Script:
    """What the engine does for one prompt."""

    pieces: tuple[str, ...] = ("Par", "is", ".")  # the text of each token, "" = held back
    tail: str = ""  # text that was held back to the end
    endless: bool = False  # repeat the pieces until the limit
    logprob: float = -1.0  # of each token, where a request asks for it
    prefill_s: float = 0.0
    delay_s: float = 0.0  # before each token
    fail_after: int | None = None  # tokens, then Failed(error)
    error: EngineError = field(default_factory=lambda: EngineError("scripted"))


@dataclass(eq=False)
class _Job:
    generation: Generation
    wake: threading.Event
    phase: Phase = Phase.QUEUED
    since: float = field(default_factory=time.monotonic)
    n_prefilled: int = 0
    n_decoded: int = 0
    n_cached: int = 0

    def enter(self, phase: Phase) -> None:
        self.phase, self.since = phase, time.monotonic()


def _token(text: str, script: Script, n_probs: int | None) -> Token:
    """Its id is the first byte of its text; the likeliest tokens are it and those after it."""
    token_id = text.encode()[0] if text else ord("x")
    if n_probs is None:
        return Token(token_id, text)
    top = tuple((token_id + i, script.logprob - i) for i in range(n_probs))
    return Token(token_id, text, script.logprob, top)


def _first_stop(script: Script, params: SamplingParams) -> str | None:
    """The stop string that stands first in the reply."""
    text = "".join(script.pieces)
    return min((stop for stop in params.stop if stop in text), key=text.find, default=None)


class FakeEngine(FakeText):
    """Duck-typed to `engine.Engine`. `script` may be changed between requests."""

    def __init__(
        self,
        script: Script | Callable[[str], Script] = Script(),
        *,
        n_ctx: int = 512,
        max_waiting: int = 32,
        context_policy: str = "error",
    ) -> None:
        super().__init__(n_ctx)
        self.script = script
        self.config = EngineConfig(
            "fake.gguf", n_ctx=n_ctx, max_waiting=max_waiting, context_policy=context_policy
        )
        self.model = ModelInfo(
            name="fake-1b",
            path=Path("fake.gguf"),
            architecture="llama",
            n_params=1_000_000,
            n_bytes=600_000,
            file_type="Q4_1",
            n_ctx=n_ctx,
            n_ctx_train=2048,
            n_vocab=N_VOCAB,
            n_embd=64,
            n_layer=2,
        )
        self.submitted: list[Generation] = []
        self.embedded: list[list[int]] = []
        self.next_turns: list[dict[str, Any]] = []  # the arguments of each prepare_next_turn
        self.ends: dict[int, tuple[Event, float]] = {}  # id -> last event, and when
        self._waiting: list[_Job] = []
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._current: _Job | None = None
        self._fatal: EngineError | None = None
        self._last_prompt: list[int] = []
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)
        self._thread.start()

    # -- what the server uses ---------------------------------------------------------------

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def failure(self) -> EngineFailed | None:
        return self._fatal if isinstance(self._fatal, EngineFailed) else None

    def prepare_next_turn(self, messages: list[dict[str, Any]], template: TemplateOptions) -> None:
        """Nothing but to note it: here all prompts take the same time."""
        self.next_turns.append({"messages": messages, **dataclasses.asdict(template)})

    def estimate(
        self, prompt_ids: Sequence[int], max_tokens: int | None = None, use_cache: bool = True
    ) -> Estimate:
        """A hundred tokens of a prompt and ten of a reply in each second."""
        self._check(prompt_ids)
        n = len(prompt_ids)
        n_cached = self._common_prefix(list(prompt_ids)) if use_cache else 0
        n_reply = min(max_tokens or self.model.n_ctx, self.model.n_ctx - n)
        return Estimate(n, n_cached, 0, 0.0, (n - n_cached) / 100, n_reply / 10)

    def memory(self) -> MemoryReport:
        return MemoryReport(1, 2, 3, 4, 5, 8, 6, 7, 8, (ChatMemory(7, 700, False),))

    def weights_cached(self) -> int:
        return self.model.n_bytes * 3 // 4

    @property
    def n_running(self) -> int:
        return int(self._current is not None)

    def embed(self, ids: Sequence[int], cancelled: threading.Event) -> list[float]:
        """How often each of the first 64 bytes' values modulo 64 stands there."""
        self._check(ids)
        self.embedded.append(list(ids))
        script = self.script("") if callable(self.script) else self.script
        if script.prefill_s and cancelled.wait(script.prefill_s):
            raise InvalidRequest("the request was cancelled")
        return [float(sum(i % 64 == n for i in ids)) for n in range(self.model.n_embd)]

    def _check(self, prompt_ids: Sequence[int]) -> None:
        if not prompt_ids or not all(0 <= token < N_VOCAB for token in prompt_ids):
            raise InvalidRequest("a token id is outside the vocabulary", "prompt")
        if len(prompt_ids) >= self.model.n_ctx:
            raise ContextLengthExceeded(len(prompt_ids), self.model.n_ctx)

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        on_event: Callable[[Event], None],
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Generation:
        if self._fatal:
            raise self._fatal
        self._check(prompt_ids)
        if any(token >= N_VOCAB for token in params.logit_bias):
            raise InvalidRequest("logit_bias: a token id is outside the vocabulary", "logit_bias")
        wake = threading.Event()
        generation = Generation(
            list(prompt_ids),
            params,
            on_event,
            options,
            _on_cancel=wake.set,
            _progress=lambda: self._progress(job),
        )
        job = _Job(generation, wake)
        with self._lock:
            is_idle = self._current is None and not self._waiting
            if not is_idle and len(self._waiting) >= self.config.max_waiting:
                raise QueueFull(len(self._waiting))
            self._waiting.append(job)
        self.submitted.append(generation)
        self._queue.put(job)
        return generation

    def close(self, timeout_s: float = 2.0, store_s: float = 10.0) -> None:
        self._die(EngineClosed("the engine was closed"))
        self._queue.put(None)
        self._thread.join(timeout_s)

    # -- what tests use ---------------------------------------------------------------------

    def crash(self) -> None:
        """As when the engine's thread dies of a bug."""
        self._die(EngineFailed("the engine thread stopped"))

    def wait_until_idle(self, timeout_s: float = 10.0) -> None:
        """Until nothing runs or waits. Fails after `timeout_s`."""
        limit = time.monotonic() + timeout_s
        while self._current or self._waiting:
            assert time.monotonic() < limit, "the engine is still busy"
            time.sleep(0.005)

    @property
    def is_busy(self) -> bool:
        """Whether a request is being worked on."""
        return self._current is not None

    def last_end(self) -> tuple[Event, float]:
        """The last event of the latest request, and when it came."""
        return self.ends[self.submitted[-1].id]

    # -- the thread -------------------------------------------------------------------------

    def _die(self, error: EngineError) -> None:
        self._fatal = self._fatal or error
        with self._lock:
            jobs = [*self._waiting, *([self._current] if self._current else [])]
        for job in jobs:
            job.wake.set()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            with self._lock:
                self._waiting.remove(job)
                self._current = job
            end = self._answer(job)
            job.enter(Phase.DONE)
            self.ends[job.generation.id] = (end, time.monotonic())
            self._current = None
            job.generation.on_event(end)

    def _answer(self, job: _Job) -> Event:
        generation = job.generation
        prompt = text_of(generation.prompt_ids)
        script = self.script(prompt) if callable(self.script) else self.script
        start = time.monotonic()
        job.n_cached = job.n_prefilled = self._common_prefix(generation.prompt_ids)
        generation.difference = self._difference(job.n_cached, generation.prompt_ids)
        self._last_prompt = generation.prompt_ids
        job.enter(Phase.PREFILL)
        n_left = len(generation.prompt_ids) - job.n_prefilled
        for _ in range(n_left):
            if script.prefill_s and job.wake.wait(script.prefill_s / n_left):
                return self._stopped(job, start)
            job.n_prefilled += 1
        job.enter(Phase.DECODE)
        reason, tail, stop_string = FinishReason.LENGTH, "", None
        for text in self._visible(script, generation.params):
            if job.n_decoded == generation.params.max_tokens:
                break
            if job.wake.is_set() or (script.delay_s and job.wake.wait(script.delay_s)):
                return self._stopped(job, start)
            if job.n_decoded == script.fail_after:
                return Failed(script.error)
            job.n_decoded += 1
            if text is None:  # the end-of-generation token
                reason, tail = FinishReason.STOP, script.tail
                stop_string = _first_stop(script, generation.params)
                break
            generation.on_event(_token(text, script, generation.params.n_probs))
        return self._finished(job, reason, tail, start, stop_string)

    def _visible(self, script: Script, params: SamplingParams) -> Iterator[str | None]:
        """Texts of the tokens up to a stop string, then None."""
        while script.endless:
            yield from script.pieces
        text = "".join(script.pieces)
        end = min((at for stop in params.stop if (at := text.find(stop)) >= 0), default=None)
        sent = 0
        for piece in script.pieces:
            if end is not None and sent + len(piece) > end:
                yield piece[: end - sent]
                break
            yield piece
            sent += len(piece)
        yield None

    def _stopped(self, job: _Job, start: float) -> Event:
        if self._fatal:
            return Failed(self._fatal)
        return self._finished(job, FinishReason.CANCELLED, "", start)

    def _finished(
        self,
        job: _Job,
        reason: FinishReason,
        tail: str,
        start: float,
        stop_string: str | None = None,
    ) -> Finished:
        n_prompt = len(job.generation.prompt_ids)
        timings = Timings(0.0, 0.002, max(time.monotonic() - start, 0.001))
        return Finished(
            reason,
            tail,
            n_prompt,
            job.n_cached,
            job.n_decoded,
            timings,
            job.generation.difference,
            stop_string,
        )

    def _common_prefix(self, prompt_ids: list[int]) -> int:
        n = 0
        for old, new in zip(self._last_prompt, prompt_ids[:-1], strict=False):
            if old != new:
                break
            n += 1
        return n

    def _difference(self, n: int, prompt_ids: list[int]) -> Difference | None:
        """As the real one: where more than half of the last prompt is equal, but not all."""
        last = self._last_prompt
        if 2 * n <= len(last) or n >= min(len(last), len(prompt_ids) - 1):
            return None
        around = slice(n - 8, n + 8)
        return Difference(n, text_of(last[around]), text_of(prompt_ids[around]))

    def _progress(self, job: _Job) -> Progress:
        waiting = self._waiting
        return Progress(
            job.phase,
            waiting.index(job) + (self._current is not None) if job in waiting else 0,
            len(job.generation.prompt_ids),
            job.n_prefilled,
            job.n_decoded,
            time.monotonic() - job.since,
            n_cached=job.n_cached,
            timings=Timings(0.0, 0.002, time.monotonic() - job.since),
        )
