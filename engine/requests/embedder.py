"""Embeddings: one vector for a text, from what the model makes of its tokens.

Reads in chunks between the steps of other requests. Does not know text; vectors are not normalised.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from engine.cache.chat import Chat
from engine.cache.chat_cache import ChatCache
from engine.cache.resident_chats import NoRoom
from engine.errors import EngineClosed, EngineFailed, InvalidRequest, OutOfMemory
from engine.files.gguf_file import GGUFFile
from engine.model.model import Model
from engine.requests.worker import Worker

Pooling = Literal["mean", "cls", "last"]
Vector = npt.NDArray[np.float32]

# As `{architecture}.pooling_type` numbers them. 0 = none: of models that were not made for it, for
# which the mean says most.
_POOLINGS: Final[dict[int, Pooling]] = {0: "mean", 1: "mean", 2: "cls", 3: "last"}
_CHUNK_S, _LEAST = 0.5, 32  # others wait so long at most, but for so many tokens


class Cancelled(Exception):
    """Nobody wants it any more."""


def pooling_of(gguf: GGUFFile, architecture: str) -> Pooling | None:
    """How the tokens' vectors become one; None = in no way that we know."""
    return _POOLINGS.get(gguf.get_int(f"{architecture}.pooling_type", 0))


class Embedder:
    """For any thread, one at a time."""

    def __init__(
        self,
        model: Model,
        cache: ChatCache,
        worker: Worker,
        new_chat: Callable[[], Chat],
        pooling: Pooling | None,
    ) -> None:
        self._model, self._cache, self._worker = model, cache, worker
        self._new_chat, self._pooling = new_chat, pooling

    def embed(self, ids: Sequence[int], cancelled: threading.Event) -> Vector:
        """f32[n_embd]. Blocks. cancelled: looked at between chunks.

        Raises Cancelled, OutOfMemory, InvalidRequest, EngineClosed or EngineFailed.
        """
        if self._pooling is None:
            raise InvalidRequest("this model ranks texts and has no embeddings", "model")
        chat = self._new_chat()
        total = np.zeros(self._model.config.n_embd, np.float32)
        try:
            while n_left := len(ids) - len(chat.ids):
                if cancelled.is_set():
                    raise Cancelled
                rows = self._worker.call_with_room(lambda: self._read(chat, ids))
                if self._pooling == "cls":
                    if n_left == len(ids):
                        total = rows[0].copy()
                elif self._pooling == "last":
                    total = rows[-1].copy()
                else:
                    total += rows.sum(axis=0) / np.float32(len(ids))
            return total
        finally:
            with contextlib.suppress(EngineClosed, EngineFailed):  # all pages are gone then
                self._worker.call(chat.restart)

    def _read(self, chat: Chat, ids: Sequence[int]) -> Vector:
        """The next chunk, on the engine thread: f32[n_tokens, n_embd]."""
        speed = self._worker.speed
        most = min(max(speed.prefill_tokens_in(_CHUNK_S), _LEAST), self._model.max_rows)
        chunk = ids[len(chat.ids) :][:most]
        try:
            self._cache.make_room([chat], len(chunk), len(ids))
        except NoRoom:
            raise OutOfMemory(
                "this machine has too little memory left for the text; try again later, or with a"
                " shorter one"
            ) from None
        self._model.batch.allow()
        start = time.perf_counter()
        rows = chat.hidden(chunk, self._model.precise_until(0, len(ids)))
        speed.note_prefill(len(chunk), time.perf_counter() - start)
        return rows
