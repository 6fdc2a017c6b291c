"""Stores chats before they leave memory: one at a time, on another thread, while they stay as they
are and may go on.

What is being written holds its pages, as one more chat that shares them would: they are neither
written to nor free before it is done, or given up. For the engine thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.cache.chat import Chat
from engine.cache.chat_file import Views, file_bytes
from engine.cache.kv_cache import PagePool
from engine.cache.storing import Storing

log = logging.getLogger("rushlight.engine")

_GIVE_UP_S = 30.0  # a disk that takes longer is as good as none


class Writable(Protocol):
    """Where chats go (disk_cache.py), of limit_bytes. Nothing it does is ever fatal."""

    @property
    def limit_bytes(self) -> int: ...

    def store(self, ids: Sequence[int], pages: Views) -> Storing | None: ...


@dataclass(slots=True)
class _Write:
    """chat: None when it has changed meanwhile, and would have to be stored again."""

    chat: Chat | None
    pages: list[int]
    storing: Storing
    since_s: float = field(default_factory=time.monotonic)


class ChatWriter:
    """store: None = chats are kept nowhere."""

    def __init__(self, store: Writable | None, pool: PagePool) -> None:
        self._store, self._pool = store, pool
        self._write: _Write | None = None
        self._settled: set[Chat] = set()  # stored as they are, or not to be stored at all

    @property
    def is_busy(self) -> bool:
        """Whether something is being written."""
        self._collect()
        return self._write is not None

    @property
    def pages(self) -> Sequence[int]:
        """Pages that are held, a list as a chat's."""
        return self._write.pages if self._write else ()

    @property
    def limit_bytes(self) -> int:
        """What the store may hold."""
        return self._store.limit_bytes if self._store else 0

    def n_bytes(self, chat: Chat) -> int:
        """What a chat takes there."""
        return file_bytes(len(chat.ids), self._pool.views(chat.kept_pages()))

    def store(self, chat: Chat) -> bool:
        """See to it that a chat is stored. Returns whether that is over, for good or bad; call it
        again if not.
        """
        self._collect()
        if chat not in self._settled and self._write is None:
            self._begin(chat)
            self._collect()  # nobody is to ask again for what is done by now
        return chat in self._settled

    def forget(self, chat: Chat) -> None:
        """The chat is about to change, or to leave."""
        self._settled.discard(chat)
        if self._write and self._write.chat is chat:
            self._write.chat = None

    def wait(self, timeout_s: float) -> bool:
        """Until what is being written is done. Returns whether it is."""
        return self._write is None or self._write.storing.wait(timeout_s)

    def cancel(self) -> None:
        """Give up what is being written. Its pages are free at once: a file that was given up does
        not appear, so it does not matter what is read from them now.
        """
        if self._write:
            self._write.storing.cancel()
            self._release(self._write)

    def _begin(self, chat: Chat) -> None:
        pages = chat.kept_pages()
        storing = self._store.store(chat.ids, self._pool.views(pages)) if self._store else None
        if storing is None:
            self._settled.add(chat)
            return
        self._pool.share_list(pages)
        self._write = _Write(chat, pages, storing)

    def _collect(self) -> None:
        """Take note of a write that is over, or as good as that."""
        write = self._write
        if write is None:
            return
        if not write.storing.done:
            if time.monotonic() - write.since_s < _GIVE_UP_S:
                return
            log.warning("a chat could not be stored within %.0f s", _GIVE_UP_S)
            write.storing.cancel()
        if write.chat:
            self._settled.add(write.chat)
        self._release(write)

    def _release(self, write: _Write) -> None:
        self._pool.free_list(write.pages)
        self._write = None
