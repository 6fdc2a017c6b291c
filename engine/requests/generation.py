"""One request as the outside sees it: a Generation handle and the events it reports.

The engine thread is the only writer; any thread may read `progress()` and call `cancel()`.
"""

from __future__ import annotations

import enum
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.errors import EngineError
from engine.requests.request_options import DEFAULT_OPTIONS, RequestOptions
from engine.sampling.sampling_params import SamplingParams


class FinishReason(enum.StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # an end-of-generation token or a stop string
    LENGTH = "length"  # max_tokens reached, or the context is full
    TIMEOUT = "timeout"  # its time was up while it was written
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a request's time went. Seconds; a phase that did not happen is 0."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Token:
    """One token was decoded. `text` is what may be shown now: '' while text is held back.

    logprob: natural logarithm of the token's probability in the model's own distribution, before
             bias, penalties, cuts and temperature; with `post_sampling_probs` in the one it was
             drawn from. May be -inf. None unless `n_probs` asks for it.
    top:     the `n_probs` most likely tokens, as (id, logprob), best first.
    """

    token_id: int
    text: str
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptScored:
    """Some of the prompt was read, and each token of it scored; `prompt_logprobs` asks for that.

    first:    the place in the prompt of the first token scored here. Its first one never is, as
              nothing precedes it.
    logprobs: as Token.logprob, of that token and those that follow it.
    tops:     as Token.top, for each of them.
    """

    first: int
    logprobs: tuple[float, ...]
    tops: tuple[tuple[tuple[int, float], ...], ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request that ended well (or was cancelled)."""

    finish_reason: FinishReason
    text: str  # text that was still held back; follows the last Token's
    n_prompt: int  # prompt tokens
    n_cached: int  # of them, taken from the KV cache
    n_decoded: int  # tokens generated, the end-of-generation token included
    timings: Timings
    difference: Difference | None = None  # where the cached chat and the prompt parted, if they did
    stop_string: str | None = None  # which ended it, if one did


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the prompt parts from the cached chat that it seems to continue.

    at: tokens that are equal; the texts are of a few tokens from just before there.
    """

    at: int
    cached: str
    prompt: str

    def __str__(self) -> str:
        return f"differs at token {self.at}: cached {self.cached!r}, now {self.prompt!r}"


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that could not be finished."""

    error: EngineError


Event = PromptScored | Token | Finished | Failed


class Phase(enum.StrEnum):
    """Where a request is on its way."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot of a request on its way, for people who wait."""

    phase: Phase
    n_ahead: int  # requests before this one (queued only)
    n_prompt: int
    n_prefilled: int  # prompt tokens in the cache by now, reused ones included
    n_decoded: int
    elapsed_s: float  # since this phase began
    n_cached: int = 0  # prompt tokens, taken from the KV cache
    timings: Timings = Timings()  # so far
    # Seconds left, by measured speeds; None while nothing was measured.
    queue_s: float | None = None  # until its prompt is being read
    prefill_s: float | None = None  # from then, or from now, to the first token

    @property
    def first_token_s(self) -> float | None:
        """Until the first token."""
        return _sum(self.queue_s, self.prefill_s)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a request would cost if it came now. Seconds by measured speeds; None = none yet."""

    n_prompt: int
    n_cached: int  # of them, in the cache
    n_ahead: int
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None  # for the tokens asked for

    @property
    def first_token_s(self) -> float | None:
        """Until the first token."""
        return _sum(self.queue_s, self.prefill_s)

    @property
    def last_token_s(self) -> float | None:
        """Until the last token."""
        return _sum(self.queue_s, self.prefill_s, self.decode_s)


def _sum(*parts: float | None) -> float | None:
    """None where one of them is not known."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


_ids = itertools.count(1)


@dataclass(eq=False, slots=True)
class Generation:
    """The handle of one submitted request.

    prompt_ids: token ids, BOS included if the model wants one.
    on_event:   called from the engine thread with each event, in order; must not block. If it
                raises, the request is cancelled.
    """

    prompt_ids: list[int]
    params: SamplingParams
    on_event: Callable[[Event], None]
    options: RequestOptions = DEFAULT_OPTIONS
    difference: Difference | None = None  # known once its prompt is being read
    id: int = field(default_factory=lambda: next(_ids))
    _cancel: threading.Event = field(default_factory=threading.Event)
    _on_cancel: Callable[[], None] = lambda: None
    _on_leave: Callable[[], None] | None = None
    _progress: Callable[[], Progress] | None = None

    def cancel(self) -> None:
        """Stop this request as soon as possible: in the queue, in prefill or between tokens.
        Idempotent.
        """
        self._cancel.set()
        self._on_cancel()

    def leave(self) -> None:
        """The client is gone. Cancels the request, unless the engine is set to let such requests go
        on for a while (EngineConfig.linger_s). Idempotent.
        """
        if self._on_leave is None:
            self.cancel()
        else:
            self._on_leave()

    def disown(self) -> None:
        """For the engine: another client has joined the request, this one has no say any more."""
        self._on_cancel = self._on_leave = lambda: None

    @property
    def cancelled(self) -> bool:
        return self._cancel.is_set()

    def progress(self) -> Progress:
        """Where the request is now. Cheap; any thread."""
        if self._progress is None:
            return Progress(Phase.QUEUED, 0, len(self.prompt_ids), 0, 0, 0.0)
        return self._progress()
