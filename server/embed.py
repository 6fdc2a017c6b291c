"""Texts to vectors, for every family that has a route for it: one text at a time, in turns.

A text blocks a thread while it is read, and there are few threads; the others wait on the loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request

from engine import ContextLengthExceeded, InvalidRequest, QueueFull
from server.errors import ApiError
from server.reply import while_connected
from server.services import Services


@dataclass(slots=True)
class Turns:
    """Of one application."""

    lock: asyncio.Lock
    n_waiting: int = 0

    @classmethod
    def of(cls, request: Request) -> Turns:
        """Those of the application that serves `request`."""
        state = request.app.state
        if not hasattr(state, "embedding_turns"):
            state.embedding_turns = cls(asyncio.Lock())
        turns: Turns = state.embedding_turns
        return turns


@dataclass(frozen=True, slots=True)
class Embedded:
    """vectors: one for each text, n_embd numbers; n_tokens: of all texts."""

    vectors: list[list[float]]
    n_tokens: int


async def embed(
    request: Request, texts: Sequence[str | list[int]], param: str, cut: bool = False
) -> Embedded:
    """Embed texts, or token ids. param: the field that has them; cut: leave out what is too much
    for the context, from the end.

    Raises: ContextLengthExceeded, InvalidRequest, QueueFull, ClientDisconnect, EngineError.
    """
    services = Services.of(request)
    turns, most = Turns.of(request), max(1, services.config.queue.max_waiting)
    if turns.n_waiting >= most:
        raise QueueFull(turns.n_waiting)
    turns.n_waiting += 1
    try:
        return await while_connected(request.receive, _in_turn(request, texts, cut))
    except (ContextLengthExceeded, InvalidRequest) as error:
        error.param = param  # the engine cannot know what the field is called here
        raise
    finally:
        turns.n_waiting -= 1


async def _in_turn(request: Request, texts: Sequence[str | list[int]], cut: bool) -> Embedded:
    engine = Services.of(request).loader.engine()
    turns = Turns.of(request)
    all_ids = [
        await asyncio.to_thread(engine.encode_text, text) if isinstance(text, str) else text
        for text in texts
    ]
    if cut:
        all_ids = [ids[: engine.model.n_ctx - 1] for ids in all_ids]
    for ids in all_ids:  # before any of them takes time
        if len(ids) >= engine.model.n_ctx:
            raise ContextLengthExceeded(len(ids), engine.model.n_ctx)
    cancelled = threading.Event()
    vectors = []
    try:
        for ids in all_ids:
            async with turns.lock:
                # Shielded: a thread that was left behind would still be reading in the next turn.
                work = asyncio.ensure_future(asyncio.to_thread(engine.embed, ids, cancelled))
                try:
                    vectors.append(await asyncio.shield(work))
                except asyncio.CancelledError:
                    cancelled.set()
                    await asyncio.wait({work})
                    work.exception()
                    raise
    finally:
        cancelled.set()
    return Embedded(vectors, sum(map(len, all_ids)))


def unit(vector: Sequence[float], n: int | None = None) -> list[float]:
    """Its first n numbers, at length 1; zeros stay zeros.

    Raises: ApiError when n is more than there are.
    """
    if n is not None and n > len(vector):
        raise ApiError(
            400, f"dimensions: {n} are more than the model's {len(vector)}", param="dimensions"
        )
    shown = vector[:n]
    length = math.sqrt(sum(x * x for x in shown))
    return [x / length for x in shown] if length else list(shown)
