"""Reply: one request's generations and their events, carried from the engine's thread to the loop.

One generation per prompt, all submitted at once, so that whatever is wrong with any of them shows
before the first byte. Knows nothing of HTTP but that a client may leave.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from engine import (
    EngineClosed,
    Event,
    Failed,
    Finished,
    FinishReason,
    Generation,
    Phase,
    Progress,
    PromptScored,
    SamplingParams,
    Token,
)
from server.metrics import Metrics

if TYPE_CHECKING:
    from engine import Engine

T = TypeVar("T")


class Reply:
    """Events of one request, tagged with the index of the prompt that they belong to."""

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        metrics: Metrics,
    ) -> None:
        """Submit every prompt, given as token ids. Raises: what `Engine.submit` raises."""
        self.n_choices = len(prompts)
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()  # bounded by max_tokens
        self._generations: list[Generation] = []
        try:
            for index, ids in enumerate(prompts):
                self._generations.append(self._submit(engine, ids, params, index))
        except Exception:
            self.cancel()
            raise

    def _submit(
        self, engine: Engine, ids: Sequence[int], params: SamplingParams, index: int
    ) -> Generation:
        def on_event(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._receive, index, event)

        generation = engine.submit(ids, params, on_event)
        self._metrics.generation_started(generation)
        return generation

    def _receive(self, index: int, event: Event) -> None:
        """Every event passes here, whether or not anyone still reads."""
        if isinstance(event, Finished | Failed):
            self._metrics.generation_ended(self._generations[index], event)
        self._events.put_nowait((index, event))

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

    async def events(self, every_s: float) -> AsyncIterator[tuple[int, Token | Finished] | None]:
        """All events, until each generation has finished; None after each `every_s` without one.

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
            if isinstance(event, PromptScored):  # nobody asks for them yet
                continue
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Finished):
                if event.finish_reason is FinishReason.CANCELLED:
                    raise EngineClosed("the server is shutting down")
                n_open -= 1
            yield index, event

    async def collect(self) -> list[tuple[str, Finished]]:
        """The whole text and the end of each choice, in order. Raises: EngineError."""
        pieces: list[list[str]] = [[] for _ in range(self.n_choices)]
        ends: dict[int, Finished] = {}
        async for item in self.events(every_s=60):
            if item is None:
                continue
            index, event = item
            pieces[index].append(event.text)
            if isinstance(event, Finished):
                ends[index] = event
        return [("".join(pieces[index]), ends[index]) for index in range(self.n_choices)]


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
