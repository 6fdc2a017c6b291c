"""Every chat whose keys and values are in memory, and which of them a prompt can go on from.

A chat is busy while a request runs on it and idle afterwards. A prompt goes on from the longest
beginning that any chat shares with it: by taking over an idle chat that it continues, or else by
sharing pages with it. When pages run out, idle chats leave, least recently used first, and go to
the store. Short chats (titles, tags, completions in an editor) leave before long ones, and a few
pages are kept for them, so that they never push a long one out. For the engine thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.chat import Chat, n_pages
from engine.common_prefix import count_common
from engine.disk_cache import Match
from engine.kernels.kv_page import PAGE
from engine.kv_cache import PagePool
from engine.memory_report import ChatMemory

_MOST_SHORT = 1024  # tokens of a chat that counts as short
_SHOWN = 8  # tokens on each side of the place where a prompt leaves its chat
_NEAR = PAGE  # tokens that are not worth keeping a second chat, or a file, for


class ChatStore(Protocol):
    """Where chats go that leave memory (disk_cache.py). Nothing it does is ever fatal."""

    def longest_prefix(self, ids: Sequence[int]) -> Match | None: ...
    def load(self, match: Match, pages: Sequence[memoryview]) -> bool: ...
    def store(self, ids: Sequence[int], pages: Sequence[memoryview]) -> bool: ...


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a chat in the cache and a prompt that seems to continue it first differ.

    at: tokens that are equal before it; the ids are those around it.
    """

    at: int
    cached_ids: list[int]
    prompt_ids: list[int]


class NoRoom(Exception):
    """Too few pages are free, and no idle chat is left that could leave."""


class ChatCache:
    """n_short: tokens up to which a chat is short."""

    def __init__(
        self,
        new_chat: Callable[[], Chat],
        pool: PagePool,
        n_short: int,
        store: ChatStore | None = None,
    ) -> None:
        self._new_chat, self._pool, self._n_short, self._store = new_chat, pool, n_short, store
        self._idle: dict[Chat, None] = {}  # least recently used first
        self._busy: dict[Chat, None] = {}

    def __iter__(self) -> Iterator[Chat]:
        """All chats, the busy ones and then the most recently used first."""
        return iter([*self._busy, *reversed(self._idle)])

    @property
    def n_short_pages(self) -> int:
        """Pages that long chats leave to short ones."""
        return short_pages(self._n_short)

    # --- a request's chat ---------------------------------------------------------------------

    def longest_prefix(self, ids: Sequence[int]) -> tuple[Chat | None, int]:
        """The chat that shares the longest beginning with a prompt, and how many tokens of it are
        of use: one is always left to be read. Of equals, the most recently used.
        """
        best, n_best = None, 0
        for chat in self:
            n = count_common(chat.ids, ids)
            if n > n_best:
                best, n_best = chat, n
        return best, min(n_best, len(ids) - 1)

    def open(self, ids: Sequence[int]) -> Chat:
        """A busy chat that holds as much of a prompt's beginning as there is in memory or store."""
        chat, n = self.longest_prefix(ids)
        chat = self._load(ids, n) or self._go_on(chat, n)
        self._busy[chat] = None
        return chat

    def close(self, chat: Chat) -> None:
        """The request is over; its chat is the most recently used one."""
        del self._busy[chat]
        if chat.ids:
            self._idle[chat] = None
        else:
            chat.restart()

    def parting(self, ids: Sequence[int]) -> Parting | None:
        """Where a prompt leaves the chat that it seems to continue; None: it continues one wholly,
        or is another chat's.

        A chat is meant when the equal part is more than half of it.
        """
        chat, n = self.longest_prefix(ids)
        if chat is None or n >= len(ids) - 1 or n == len(chat.ids) or 2 * n <= len(chat.ids):
            return None
        around = slice(max(n - _SHOWN, 0), n + _SHOWN)
        return Parting(n, chat.ids[around], list(ids[around]))

    def _go_on(self, chat: Chat | None, n: int) -> Chat:
        if chat is None or n == 0:
            return self._new_chat()
        if chat in self._idle and len(chat.ids) - n < _NEAR:
            del self._idle[chat]
            chat.truncate_to(n)
            return chat
        return chat.fork(n)

    def _load(self, ids: Sequence[int], n_in_memory: int) -> Chat | None:
        """A chat from the store, where it holds clearly more of the prompt than memory does."""
        match = self._store.longest_prefix(ids) if self._store else None
        if self._store is None or match is None:
            return None
        n = min(match.n_common, len(ids) - 1)
        if n < n_in_memory + _NEAR or not self._free_pages(n_pages(n), is_short=False):
            return None
        store = self._store
        return self._fill(ids[:n], lambda pages: store.load(match, pages))

    def _fill(
        self, ids: Sequence[int], fill: Callable[[Sequence[memoryview]], bool]
    ) -> Chat | None:
        """A new chat in pages that `fill` writes, and says whether it could; they must be free."""
        pages = [self._pool.take() for _ in range(n_pages(len(ids)))]
        is_filled = False
        try:
            is_filled = fill([self._pool.view(page) for page in pages])
        finally:
            if not is_filled:
                for page in pages:
                    self._pool.free(page)
        if not is_filled:
            return None
        chat = self._new_chat()
        chat.adopt(ids, pages)
        return chat

    # --- at a user's wish ---------------------------------------------------------------------

    def views(self, chat: Chat) -> list[memoryview]:
        """The memory that holds a chat."""
        return [self._pool.view(page) for page in chat.pages[: n_pages(len(chat.ids))]]

    def add(self, ids: Sequence[int], fill: Callable[[Sequence[memoryview]], None]) -> None:
        """Take in an idle chat, as the most recently used, whose pages `fill` writes.

        Raises NoRoom, and what `fill` raises.
        """
        if not self._free_pages(n_pages(len(ids)), is_short=len(ids) <= self._n_short):
            raise NoRoom

        def fill_all(pages: Sequence[memoryview]) -> bool:
            fill(pages)
            return True

        chat = self._fill(ids, fill_all)
        assert chat is not None, "what cannot be filled raises"
        self._idle[chat] = None

    def drop(self, chat: Chat) -> bool:
        """Forget a chat without storing it. Returns whether it was idle: a busy one stays."""
        if chat not in self._idle:
            return False
        del self._idle[chat]
        chat.restart()
        return True

    # --- room ---------------------------------------------------------------------------------

    def make_room(self, chats: Sequence[Chat], n: int, n_total: int) -> None:
        """See to it that each chat can read n more tokens. n_total: how long the longest of them is
        going to be.

        Raises NoRoom.
        """
        needed = sum(chat.n_pages_to_take(n) for chat in chats)
        if needed and not self._free_pages(needed, is_short=n_total <= self._n_short):
            raise NoRoom

    def evict(self, n_bytes: int) -> int:
        """Let idle chats leave until that much memory is free. Returns bytes freed."""
        before = self._pool.n_bytes
        while self._idle and before - self._pool.n_bytes < n_bytes:
            self._leave(self._next_to_leave())
        return before - self._pool.n_bytes

    def save(self) -> None:
        """Store every idle chat that is worth it; they stay in memory too."""
        for chat in self._idle:
            self._keep(chat, n_least=_NEAR)

    def clear(self) -> None:
        """Forget all chats."""
        for chat in self:
            chat.restart()
        self._idle.clear()
        self._busy.clear()

    def memory(self) -> tuple[ChatMemory, ...]:
        """What each chat takes. Any thread."""
        return tuple(
            ChatMemory(len(chat.ids), self._pool.bytes_of(list(chat.pages)), chat in self._busy)
            for chat in self
        )

    def _free_pages(self, n: int, is_short: bool) -> bool:
        """Make n pages free, and for a long chat those that are kept for short ones as well, as far
        as idle chats can leave. Returns whether n are free.
        """
        wanted = n if is_short else n + self._n_kept()
        while self._pool.n_free < wanted and self._idle:
            victim = self._next_to_leave()
            if self._pool.n_free >= n and self._is_short(victim):
                break  # it uses the pages that are kept for its like
            self._leave(victim)
        return self._pool.n_free >= n

    def _n_kept(self) -> int:
        """Pages kept for short chats, those that they use already not counted."""
        used = sum(len(chat.pages) for chat in self if self._is_short(chat))
        return max(self.n_short_pages - used, 0)

    def _is_short(self, chat: Chat) -> bool:
        return len(chat.ids) <= self._n_short

    def _next_to_leave(self) -> Chat:
        return next((chat for chat in self._idle if self._is_short(chat)), next(iter(self._idle)))

    def _leave(self, chat: Chat) -> None:
        self._keep(chat, n_least=self._n_short + 1)
        del self._idle[chat]
        chat.restart()

    def _keep(self, chat: Chat, n_least: int) -> None:
        """Store a chat of n_least tokens or more, unless another one in memory holds nearly all of
        it.
        """
        if self._store is None or len(chat.ids) < n_least:
            return
        others = (count_common(other.ids, chat.ids) for other in self if other is not chat)
        if len(chat.ids) - max(others, default=0) >= _NEAR:
            self._store.store(chat.ids, self.views(chat))


def short_tokens(n_ctx: int) -> int:
    """Tokens up to which a chat counts as short where chats may have n_ctx."""
    return min(n_ctx // 4, _MOST_SHORT)


def least_pages(n_ctx: int) -> int:
    """Pages that a cache needs: for one full chat, and for a short one beside it."""
    return n_pages(n_ctx) + short_pages(short_tokens(n_ctx))


def short_pages(n_short: int) -> int:
    """Pages kept for short chats of up to n_short tokens: one such chat's, and one to copy to."""
    return n_pages(n_short) + 1
