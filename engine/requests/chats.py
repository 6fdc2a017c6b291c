"""Chats as a user handles them: listed, forgotten, saved under a name and read back.

What is done to their pages is done between two steps of requests; the files are saved_chats.py's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from engine.cache.chat import Chat
from engine.cache.chat_cache import ChatCache
from engine.cache.resident_chats import NoRoom
from engine.cache.saved_chats import SavedChats
from engine.errors import (
    ContextLengthExceeded,
    EngineClosed,
    EngineFailed,
    InvalidRequest,
    OutOfMemory,
)
from engine.info import SavedChat
from engine.memory.memory_report import ChatMemory
from engine.requests.worker import Worker


class Chats:
    """For any thread. All but the lists raise EngineClosed or EngineFailed when the engine is over.

    saved: None = there is no folder for them.
    """

    def __init__(
        self, cache: ChatCache, worker: Worker, saved: SavedChats | None, n_ctx: int
    ) -> None:
        self._cache, self._worker, self._folder, self._n_ctx = cache, worker, saved, n_ctx

    def in_memory(self) -> tuple[ChatMemory, ...]:
        """Those that are answered now, then the most recently used first."""
        return tuple(chat for chat in self._cache.memory() if chat.n_tokens)

    def drop(self, n: int) -> int:
        """Forget the n-th of `in_memory`. Returns its tokens. Raises InvalidRequest."""

        def drop() -> int:
            chat = self._chat(n)
            n_tokens = len(chat.ids)
            if not self._cache.drop(chat):
                raise InvalidRequest(
                    f"chat {n} is being answered; try again when it is done", "id_slot"
                )
            return n_tokens

        return self._worker.call(drop).result()

    def saved(self) -> list[SavedChat]:
        """All that were saved, by name. Raises InvalidRequest when there is no folder for them."""
        return self._saved().all()

    def save(self, n: int, name: str) -> SavedChat:
        """Save the n-th of `in_memory` under a name, in place of an older one of that name.

        Raises InvalidRequest, OSError.
        """
        saved = self._saved()
        ids, pages = self._worker.call(lambda: self._cache.lend(self._chat(n))).result()
        try:
            return saved.save(name, ids, self._cache.views(pages))
        finally:
            self._give_back(pages)

    def restore(self, name: str) -> SavedChat:
        """Read a saved chat into memory, as the most recently used.

        Raises InvalidRequest, OSError, ContextLengthExceeded, OutOfMemory.
        """
        saved = self._saved()
        chat, header = saved.open(name)
        ids, held = header.ids.tolist(), (header.sizes > 0).tolist()
        if len(ids) > self._n_ctx:
            raise ContextLengthExceeded(len(ids), self._n_ctx)
        try:
            pages = self._worker.call_with_room(lambda: self._cache.take(len(ids), held))
        except NoRoom:
            raise OutOfMemory(
                f"there is no room for '{name}' beside running chats; try again when they are done"
            ) from None
        try:
            saved.read(name, header, self._cache.views(pages))
        except BaseException:
            self._give_back(pages)
            raise
        self._worker.call(lambda: self._cache.add(ids, pages)).result()
        return chat

    def erase(self, name: str) -> SavedChat:
        """Delete a saved chat. Raises InvalidRequest, OSError."""
        return self._saved().erase(name)

    def _saved(self) -> SavedChats:
        if self._folder is None:
            raise InvalidRequest("chats cannot be saved: cache.saved_folder is not set")
        return self._folder

    def _chat(self, n: int) -> Chat:
        chats = [chat for chat in self._cache if chat.ids]
        if not 0 <= n < len(chats):
            raise InvalidRequest(f"there is no chat {n}; {len(chats)} are in memory", "id_slot")
        return chats[n]

    def _give_back(self, pages: Sequence[int]) -> None:
        """Pages that this thread had for a while."""
        with contextlib.suppress(EngineClosed, EngineFailed):  # all pages are gone then
            self._worker.call(lambda: self._cache.give_back(pages))
