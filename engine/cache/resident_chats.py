"""Which chats are in memory, and which of them leave it when pages run out.

A chat is busy while a request runs on it and idle afterwards. Pages outside all windows leave
first. Then idle chats leave, least recently used first, once they are stored. Short chats (titles,
tags, completions in an editor) leave before long ones, and a few pages are kept for them, so that
they never push a long one out. For the engine thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

from engine.cache.chat import MOST_MARKS, Chat
from engine.cache.chat_writer import ChatWriter, Writable
from engine.cache.common_prefix import count_common
from engine.cache.kv_cache import NO_PAGE, PagePool
from engine.cache.spare_pages import drop_spare
from engine.kernels.kv_page import PAGE, n_pages
from engine.memory.memory_report import ChatMemory
from engine.model.model import Model

log = logging.getLogger("rushlight.engine")

NEAR = PAGE  # tokens that are not worth keeping a second chat, or a file, for
_MOST_SHORT = 1024  # tokens of a chat that counts as short
_SPARE = 4  # pages that each other running chat may go on by while one is stored
# Marks (chat.py) whose windows stay as long as their chat does: where the last prompt went on from
# what was there, and where it ended. So it can be edited and answered again.
_LASTING_MARKS = 2


class NoRoom(Exception):
    """Too few pages are free, and no idle chat is left that could leave."""


class RoomComing(Exception):
    """Too few pages are free as long as a chat that is to leave is being stored. Ask again."""


class ResidentChats:
    """n_short: tokens up to which a chat is short. store: where chats go that leave; None: nowhere.

    idle: least recently used first. Whoever changes an idle chat tells `writer` before.
    """

    def __init__(self, pool: PagePool, n_short: int, store: Writable | None) -> None:
        self.idle: dict[Chat, None] = {}
        self.busy: dict[Chat, None] = {}
        self.writer = ChatWriter(store, pool)
        self._pool, self._n_short = pool, n_short
        self._is_stored = store is not None

    def __iter__(self) -> Iterator[Chat]:
        """All chats, the busy ones and then the most recently used first."""
        return iter([*self.busy, *reversed(self.idle)])

    def is_short(self, n_tokens: int) -> bool:
        """Whether a chat of so many tokens is."""
        return n_tokens <= self._n_short

    def memory(self) -> tuple[ChatMemory, ...]:
        """What each chat takes. Any thread."""
        return tuple(
            ChatMemory(len(chat.ids), self._pool.bytes_of(list(chat.pages)), chat in self.busy)
            for chat in self
        )

    def make_free(
        self, n_bytes: int, is_short: bool, n_others: int, readers: Sequence[Chat] = ()
    ) -> None:
        """Make so much memory free, and for a long chat what is kept for short ones as well, as far
        as pages and idle chats can leave.

        n_others: running chats that are to go on while one is stored. readers: chats that will take
        the pages, who may be strangers here. Raises NoRoom or RoomComing.
        """
        pool, chats = self._pool, [*self.idle, *self.busy, *readers]
        spare = n_others * _SPARE * sum(pool.page_bytes)
        wanted = n_bytes if is_short else n_bytes + max(self._kept_bytes(), spare)
        for n_marks in (MOST_MARKS, _LASTING_MARKS):
            drop_spare(pool, chats, n_marks, pool.limit_bytes - wanted)
        while pool.free_bytes < wanted and self.idle:
            victim = self._next_to_leave()
            if pool.free_bytes >= n_bytes and self.is_short(len(victim.ids)):
                break  # it uses the pages that are kept for its like
            if not self._leave(victim):
                if pool.free_bytes < n_bytes + spare:
                    raise RoomComing
                break
        is_busy = self.writer.is_busy  # if not, it holds no pages any more
        if not is_busy:
            drop_spare(pool, chats, 0, pool.limit_bytes - n_bytes)
        if pool.free_bytes < n_bytes:
            raise RoomComing if is_busy else NoRoom

    def evict(self, n_bytes: int, at_once: bool = False) -> int:
        """Let pages outside windows, and then idle chats, leave until that much memory is free, as
        far as they are stored: those that are not begin to be. at_once: whether they are stored or
        not. Returns bytes freed.
        """
        before = self._pool.used_bytes
        if at_once:
            self.writer.cancel()
        for n_marks in (MOST_MARKS, _LASTING_MARKS):
            drop_spare(self._pool, [*self.idle, *self.busy], n_marks, before - n_bytes)
        while self.idle and before - self._pool.used_bytes < n_bytes:
            if not self._leave(self._next_to_leave(), at_once):
                break
        return before - self._pool.used_bytes

    def save(self, timeout_s: float) -> None:
        """Store every idle chat that is worth it, the most recently used first, as far as there is
        time, and room for all of them. They stay in memory too. Blocks.
        """
        end_s = time.monotonic() + timeout_s
        left = self.writer.limit_bytes  # beyond it a chat would push out those used after it
        for chat in reversed(self.idle):
            n_bytes = self.writer.n_bytes(chat)
            if n_bytes > left or not self._is_worth(chat, n_least=NEAR):
                continue
            left -= n_bytes
            while not self.writer.store(chat):
                if not self.writer.wait(end_s - time.monotonic()):
                    self.writer.cancel()
                    log.warning("not all chats could be stored within %.1f s", timeout_s)
                    return

    def remove(self, chat: Chat) -> None:
        """Forget an idle chat."""
        self.writer.forget(chat)
        del self.idle[chat]
        chat.restart()

    def _kept_bytes(self) -> int:
        """Memory kept for short chats, what they use already not counted."""
        short = [chat.pages for chat in self if self.is_short(len(chat.ids))]
        used = sum(self._pool.list_bytes([page != NO_PAGE for page in pages]) for pages in short)
        return max(short_bytes(self._pool.page_bytes, self._n_short) - used, 0)

    def _next_to_leave(self) -> Chat:
        return next(
            (chat for chat in self.idle if self.is_short(len(chat.ids))), next(iter(self.idle))
        )

    def _leave(self, chat: Chat, at_once: bool = False) -> bool:
        """Let an idle chat leave. Returns False as long as it has to be stored first."""
        is_worth = not at_once and self._is_worth(chat, n_least=self._n_short + 1)
        if is_worth and not self.writer.store(chat):
            return False
        self.remove(chat)
        return True

    def _is_worth(self, chat: Chat, n_least: int) -> bool:
        """Whether to store a chat: if it has n_least tokens or more, unless another one in memory
        holds nearly all of it.
        """
        if not self._is_stored or len(chat.ids) < n_least:
            return False
        others = (
            other.restart_at(count_common(other.ids, chat.ids))
            for other in self
            if other is not chat
        )
        return len(chat.ids) - max(others, default=0) >= NEAR


def short_tokens(n_ctx: int) -> int:
    """Tokens up to which a chat counts as short where chats may have n_ctx."""
    return min(n_ctx // 4, _MOST_SHORT)


def least_bytes(model: Model, n_ctx: int) -> int:
    """Memory that a cache needs: for one full chat, and for a short one beside it."""
    return model.chat_bytes(n_ctx) + short_bytes(model.page_bytes, short_tokens(n_ctx))


def short_bytes(page_bytes: Sequence[int], n_short: int) -> int:
    """Memory kept for short chats of up to n_short tokens: one such chat's, and a page to copy
    to.
    """
    return (n_pages(n_short) + 1) * sum(page_bytes)
