"""Reply: one request's generations, carried from the engine's thread to the loop and taken apart.

All generations are submitted at once, so that whatever is wrong with any of them shows before the
first byte. Knows nothing of HTTP but that a client may leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from engine import (
    ContentDelta,
    Delta,
    Difference,
    EngineClosed,
    Event,
    Failed,
    Finished,
    FinishReason,
    Generation,
    Phase,
    Progress,
    PromptScored,
    ReasoningDelta,
    Token,
    ToolCallStart,
)
from server.metrics import Metrics
from server.prepare import Prepared, PreparedPrompt
from server.reply_events import Choice, Ended, EndReason, Piece

if TYPE_CHECKING:
    from engine import Engine

T = TypeVar("T")

_LOOK_S = 0.05  # that a stream waits for the engine to look into its cache, where it is idle


class Reply:
    """Events of one request. All choices of the first prompt come first, then the second's."""

    def __init__(self, engine: Engine, prepared: Prepared, metrics: Metrics) -> None:
        """Submit everything. Raises: what `Engine.submit` raises."""
        self._engine = engine
        self._metrics = metrics
        self._prepared = prepared
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()  # bounded by max_tokens
        self._generations: list[Generation] = []
        self._takers: list[_Taker] = []
        self._made: list[Choice] = []  # so far
        try:
            for prompt in prepared.prompts:
                for number in range(prepared.n_made):
                    self._submit(prompt, number)
        except Exception:
            self.cancel()
            raise

    def _submit(self, prompt: PreparedPrompt, number: int) -> None:
        index = len(self._generations)

        def on_event(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._receive, index, event)

        params = self._prepared.params
        if params.seed is not None:  # each choice its own, and the same ones next time
            params = dataclasses.replace(params, seed=(params.seed + number) & (2**63 - 1))
        generation = self._engine.submit(prompt.ids, params, on_event, prompt.options)
        self._generations.append(generation)
        self._made.append(Choice())
        one_call = not self._prepared.parallel_calls
        look = generation.progress
        self._takers.append(_Taker(index, prompt, look, is_repeat=number > 0, one_call=one_call))
        self._metrics.generation_started(generation)

    def _receive(self, index: int, event: Event) -> None:
        """Every event passes here, whether or not anyone still reads."""
        if isinstance(event, Finished | Failed):
            self._metrics.generation_ended(self._generations[index], event)
        self._events.put_nowait((index, event))

    @property
    def n_choices(self) -> int:
        """How many are made."""
        return len(self._generations)

    def cancel(self) -> None:
        """Stop all that still runs. Idempotent, and never waits."""
        for generation in self._generations:
            generation.leave()

    def progress(self) -> tuple[int, Progress]:
        """Index and progress of the first generation that has not ended, or of the last."""
        all_progress = [generation.progress() for generation in self._generations]
        for index, progress in enumerate(all_progress):
            if progress.phase is not Phase.DONE:
                return index, progress
        return len(all_progress) - 1, all_progress[-1]

    async def difference(self) -> Difference | None:
        """Where the prompt parts from the cached chat that it seems to continue, if that can be
        told before the reply begins: not while others are ahead.
        """
        limit = self._loop.time() + _LOOK_S
        while self._generations and self._loop.time() < limit:
            now = self._generations[0].progress()
            if now.phase is not Phase.QUEUED or now.n_ahead:
                return self._generations[0].difference
            await asyncio.sleep(_LOOK_S / 50)
        return None

    async def events(self, every_s: float) -> AsyncIterator[Piece | Ended | None]:
        """All events, until each choice is complete. None when there is nothing to tell: after
        `every_s` of silence, or when a token's text is held back.

        Raises: EngineError if a generation fails, or is cancelled by anyone but us.
        """
        n_open = self.n_choices
        while n_open:
            try:
                async with asyncio.timeout(every_s):
                    index, event = await self._events.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Finished):
                cancelled = event.finish_reason is FinishReason.CANCELLED
                if cancelled and not self._takers[index].is_over:
                    raise EngineClosed("the server is shutting down")
                n_open -= 1
            taken = list(self._takers[index].take(event))
            for some in taken:
                if isinstance(some, Piece):
                    self._made[index].add(some)
                else:
                    self._made[index].end = some
                yield some
            if self._takers[index].is_over:
                self._generations[index].cancel()
            if not taken:
                yield None
        self._prepare_next_turn()

    def _prepare_next_turn(self) -> None:
        """Where it is clear what a next turn would go on from: from one reply that there is."""
        if self.n_choices != 1:
            return
        chat, reply = self._prepared.prompts[0].chat, self._made[0]
        if chat and reply.ended.finished.n_decoded:
            self._loop.run_in_executor(None, chat.prepare_next_turn, self._engine, reply)

    async def collect(self) -> tuple[list[Choice], list[Ended]]:
        """The choices to show, in order, and the ends of all that were made. Raises: EngineError"""
        async for _ in self.events(every_s=60):
            pass
        return list(self._best()), [choice.ended for choice in self._made]

    def _best(self) -> Iterator[Choice]:
        """Of each prompt's choices the likeliest, in the order of their likelihood."""
        made, n, n_made = self._made, self._prepared.n, self._prepared.n_made
        if n == n_made:
            yield from made
            return
        for first in range(0, len(made), n_made):
            yield from sorted(made[first : first + n_made], key=_mean_logprob, reverse=True)[:n]


def _scored_tokens(ids: Sequence[int], event: PromptScored) -> Iterator[Token]:
    scored = ids[event.first : event.first + len(event.logprobs)]
    for token_id, logprob, top in zip(scored, event.logprobs, event.tops, strict=True):
        yield Token(token_id, "", logprob, top)


def _mean_logprob(choice: Choice) -> float:
    """Per token, so that a short choice is not the better for being short."""
    logprobs = [token.logprob for token in choice.tokens if token.logprob is not None]
    return sum(logprobs) / len(logprobs) if logprobs else -math.inf


class _Taker:
    """Makes the events of one choice."""

    def __init__(
        self,
        index: int,
        prompt: PreparedPrompt,
        progress: Callable[[], Progress],
        *,
        is_repeat: bool,
        one_call: bool,
    ) -> None:
        """one_call: a second tool call, and all that follows, is left out."""
        self._index = index
        self._prompt = prompt
        self._progress = progress
        self._echo = prompt.echo
        self._scored: list[Token] = []  # of the prompt
        self._parser = prompt.parser()
        self._is_repeat = is_repeat
        self._tokens: list[Token] = []  # which have made nothing yet
        self._n_reasoning = 0
        self._one_call = one_call
        self._has_calls = False
        self.is_over = False  # nothing more is wanted of the engine

    def take(self, event: PromptScored | Token | Finished) -> Iterator[Piece | Ended]:
        """The events that an engine's event makes."""
        if isinstance(event, PromptScored):
            self._scored += _scored_tokens(self._prompt.ids, event)
            return
        if self._echo:
            yield self._new_piece([ContentDelta(self._echo.text)], self._echo_tokens())
            self._echo = None
        if isinstance(event, Token):
            self._tokens.append(event)
            yield from self._piece(event.text)
            return
        stopped = event.finish_reason is FinishReason.STOP
        yield from self._piece(event.text, is_last=True, stopped=stopped)
        yield Ended(
            self._index,
            self._reason(event),
            event,
            self._n_reasoning,
            self._is_repeat,
            self._prompt.n_dropped,
            self._prompt.n_cut,
            self._prompt.shown,
        )

    def _echo_tokens(self) -> tuple[Token, ...]:
        """Those of the prompt with their scores, where it was scored; nothing scores its first."""
        assert self._echo, "asked for where there is one"
        if not self._scored:
            return ()
        tokens = [Token(self._prompt.ids[0], ""), *self._scored]
        return tuple(tokens[self._echo.n_hidden :])

    def _piece(self, text: str, is_last: bool = False, stopped: bool = False) -> Iterator[Piece]:
        """stopped: tokens that made no text are those of the stop string, and not told."""
        deltas = self._parser.push(text) if text else []
        if is_last:
            deltas += self._parser.finish()
        deltas = list(self._wanted(deltas))
        if not deltas and not (is_last and self._tokens and not stopped):
            return
        tokens, self._tokens = tuple(self._tokens), []
        if any(isinstance(delta, ReasoningDelta) for delta in deltas):
            self._n_reasoning += len(tokens)
        yield self._new_piece(deltas, tokens)

    def _new_piece(self, deltas: list[Delta], tokens: tuple[Token, ...]) -> Piece:
        n_prompt = len(self._prompt.ids)
        return Piece(self._index, tuple(deltas), tokens, n_prompt, self._progress)

    def _wanted(self, deltas: list[Delta]) -> Iterator[Delta]:
        for delta in deltas:
            if isinstance(delta, ToolCallStart):
                self.is_over |= self._has_calls and self._one_call
                self._has_calls = True
            if not self.is_over:
                yield delta

    def _reason(self, end: Finished) -> EndReason:
        if end.finish_reason is not FinishReason.STOP and not self.is_over:
            return "length"
        return "tool_calls" if self._has_calls else "stop"


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises: ClientDisconnect.

    A client that closes only its sending half counts as gone: uvicorn closes the other half then.
    """
    job = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_until_disconnect(receive))
    try:
        await asyncio.wait({job, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            raise ClientDisconnect
        return job.result()
    finally:
        job.cancel()
        watch.cancel()
        await asyncio.gather(job, watch, return_exceptions=True)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
