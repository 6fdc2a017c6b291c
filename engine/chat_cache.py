"""Every chat whose keys and values are in memory, and which of them a prompt can go on from.

A chat is busy while a request runs on it and idle afterwards. A prompt goes on from the longest
beginning that any chat shares with it: by taking over an idle chat that it continues, or else by
sharing pages with it; what the store has of it beyond that is read a few pages at a time. When
pages run out, idle chats leave, least recently used first, once they are stored. Short chats
(titles, tags, completions in an editor) leave before long ones, and a few pages are kept for them,
so that they never push a long one out. For the engine thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.chat import Chat, n_pages
from engine.chat_writer import ChatWriter, Writable
from engine.common_prefix import count_common
from engine.disk_cache import Match
from engine.kernels.kv_page import PAGE
from engine.kv_cache import PagePool
from engine.memory_report import ChatMemory

log = logging.getLogger("rushlight.engine")

_MOST_SHORT = 1024  # tokens of a chat that counts as short
_SHOWN = 8  # tokens on each side of the place where a prompt leaves its chat
_NEAR = PAGE  # tokens that are not worth keeping a second chat, or a file, for
_SPARE = 4  # pages that each other running chat may go on by while one is stored
_LOAD_BYTES = 8 << 20  # read from the store at once: a few hundredths of a second


class ChatStore(Writable, Protocol):
    """Where chats go that leave memory (disk_cache.py). Nothing it does is ever fatal."""

    def longest_prefix(self, ids: Sequence[int]) -> Match | None: ...
    def load(self, match: Match, pages: Sequence[memoryview], first: int = 0) -> bool: ...


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


class RoomComing(Exception):
    """Too few pages are free as long as a chat that is to leave is being stored. Ask again."""


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
        self._writer = ChatWriter(store, pool)
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
        """A busy chat that holds as much of a prompt's beginning as there is in memory."""
        chat = self._go_on(*self.longest_prefix(ids))
        self._busy[chat] = None
        return chat

    def load(self, chat: Chat, ids: Sequence[int]) -> int:
        """Go on with a busy chat from the store, where that holds clearly more of a prompt, by a
        few pages. Returns how many tokens they brought; 0: the rest of the prompt must be read.

        Raises NoRoom or RoomComing.
        """
        match = self._store.longest_prefix(ids) if self._store else None
        n = min(match.n_common, len(ids) - 1) if match else 0
        if self._store is None or match is None or n < len(chat.ids) + _NEAR:
            return 0
        first = len(chat.ids) // PAGE
        n = min(n, (first + max(_LOAD_BYTES // self._pool.page_bytes, 1)) * PAGE)
        pages = self._take(n_pages(n) - first, is_short=False, n_others=len(self._busy) - 1)
        if not self._store.load(match, self.views(pages), first):
            self.give_back(pages)
            return 0
        n_before = len(chat.ids)
        chat.extend(ids[first * PAGE : n], pages)
        return n - n_before

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
            self._writer.forget(chat)
            del self._idle[chat]
            chat.truncate_to(n)
            return chat
        return chat.fork(n)

    # --- at a user's wish ---------------------------------------------------------------------

    def lend(self, chat: Chat) -> tuple[list[int], list[int]]:
        """(ids, pages) of a chat as it is now: the pages stay so until they are given back."""
        pages = chat.pages[: n_pages(len(chat.ids))]
        for page in pages:
            self._pool.share(page)
        return list(chat.ids), pages

    def take(self, n_tokens: int) -> list[int]:
        """Pages for so many tokens, to be filled and then added, or given back.

        Raises NoRoom or RoomComing.
        """
        return self._take(n_pages(n_tokens), n_tokens <= self._n_short, len(self._busy))

    def give_back(self, pages: Sequence[int]) -> None:
        """What was lent or taken."""
        for page in pages:
            self._pool.free(page)

    def views(self, pages: Sequence[int]) -> list[memoryview]:
        """The memory of pages."""
        return [self._pool.view(page) for page in pages]

    def add(self, ids: Sequence[int], pages: Sequence[int]) -> None:
        """Take in an idle chat, as the most recently used, in pages that were taken for it."""
        chat = self._new_chat()
        chat.extend(ids, pages)
        self._idle[chat] = None

    def drop(self, chat: Chat) -> bool:
        """Forget a chat without storing it. Returns whether it was idle: a busy one stays."""
        if chat not in self._idle:
            return False
        self._remove(chat)
        return True

    # --- room ---------------------------------------------------------------------------------

    def make_room(self, chats: Sequence[Chat], n: int, n_total: int) -> None:
        """See to it that each chat can read n more tokens. n_total: how long the longest of them is
        going to be.

        Raises NoRoom or RoomComing.
        """
        needed = sum(chat.n_pages_to_take(n) for chat in chats)
        if needed:
            others = self._busy.keys() - set(chats) if n > 1 else ()  # readers let writers go first
            self._free_pages(needed, n_total <= self._n_short, len(others))

    def evict(self, n_bytes: int, at_once: bool = False) -> int:
        """Let idle chats leave until that much memory is free, as far as they are stored: those
        that are not begin to be. at_once: whether they are stored or not. Returns bytes freed.
        """
        before = self._pool.n_bytes
        if at_once:
            self._writer.cancel()
        while self._idle and before - self._pool.n_bytes < n_bytes:
            if not self._leave(self._next_to_leave(), at_once):
                break
        return before - self._pool.n_bytes

    def save(self, timeout_s: float) -> None:
        """Store every idle chat that is worth it, the most recently used first, as far as there is
        time. They stay in memory too. Blocks.
        """
        end_s = time.monotonic() + timeout_s
        for chat in reversed(self._idle):
            while self._is_worth(chat, n_least=_NEAR) and not self._writer.store(chat):
                if not self._writer.wait(end_s - time.monotonic()):
                    self._writer.cancel()
                    log.warning("not all chats could be stored within %.1f s", timeout_s)
                    return

    def clear(self) -> None:
        """Forget all chats."""
        self._writer.cancel()
        for chat in self:
            self._writer.forget(chat)
            chat.restart()
        self._idle.clear()
        self._busy.clear()

    def memory(self) -> tuple[ChatMemory, ...]:
        """What each chat takes. Any thread."""
        return tuple(
            ChatMemory(len(chat.ids), self._pool.bytes_of(list(chat.pages)), chat in self._busy)
            for chat in self
        )

    def _take(self, n: int, is_short: bool, n_others: int) -> list[int]:
        self._free_pages(n, is_short, n_others)
        return [self._pool.take() for _ in range(n)]

    def _free_pages(self, n: int, is_short: bool, n_others: int) -> None:
        """Make n pages free, and for a long chat those that are kept for short ones as well, as far
        as idle chats can leave.

        n_others: running chats that are to go on while one is stored.
        Raises NoRoom or RoomComing.
        """
        n_spare = _SPARE * n_others
        wanted = n if is_short else n + max(self._n_kept(), n_spare)
        while self._pool.n_free < wanted and self._idle:
            victim = self._next_to_leave()
            if self._pool.n_free >= n and self._is_short(victim):
                break  # it uses the pages that are kept for its like
            if not self._leave(victim):
                if self._pool.n_free < n + n_spare:
                    raise RoomComing
                break
        is_busy = self._writer.is_busy  # if not, it holds no pages any more
        if self._pool.n_free < n:
            raise RoomComing if is_busy else NoRoom

    def _n_kept(self) -> int:
        """Pages kept for short chats, those that they use already not counted."""
        used = sum(len(chat.pages) for chat in self if self._is_short(chat))
        return max(self.n_short_pages - used, 0)

    def _is_short(self, chat: Chat) -> bool:
        return len(chat.ids) <= self._n_short

    def _next_to_leave(self) -> Chat:
        return next((chat for chat in self._idle if self._is_short(chat)), next(iter(self._idle)))

    def _leave(self, chat: Chat, at_once: bool = False) -> bool:
        """Let an idle chat leave. Returns False as long as it has to be stored first."""
        is_worth = not at_once and self._is_worth(chat, n_least=self._n_short + 1)
        if is_worth and not self._writer.store(chat):
            return False
        self._remove(chat)
        return True

    def _remove(self, chat: Chat) -> None:
        self._writer.forget(chat)
        del self._idle[chat]
        chat.restart()

    def _is_worth(self, chat: Chat, n_least: int) -> bool:
        """Whether to store a chat: if it has n_least tokens or more, unless another one in memory
        holds nearly all of it.
        """
        if self._store is None or len(chat.ids) < n_least:
            return False
        others = (count_common(other.ids, chat.ids) for other in self if other is not chat)
        return len(chat.ids) - max(others, default=0) >= _NEAR


def short_tokens(n_ctx: int) -> int:
    """Tokens up to which a chat counts as short where chats may have n_ctx."""
    return min(n_ctx // 4, _MOST_SHORT)


def least_pages(n_ctx: int) -> int:
    """Pages that a cache needs: for one full chat, and for a short one beside it."""
    return n_pages(n_ctx) + short_pages(short_tokens(n_ctx))


def short_pages(n_short: int) -> int:
    """Pages kept for short chats of up to n_short tokens: one such chat's, and one to copy to."""
    return n_pages(n_short) + 1
