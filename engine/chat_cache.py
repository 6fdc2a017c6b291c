"""Every chat whose keys and values are in memory, and which of them a prompt can go on from.

A chat is busy while a request runs on it and idle afterwards. A prompt goes on from the longest
beginning that any chat shares with it: by taking over an idle chat that it continues, or else by
sharing pages with it. When pages run out, those outside all windows leave first. Then idle chats
leave, least recently used first, and go to the store. Short chats (titles, tags, completions in an
editor) leave before long ones, and a few pages are kept for them, so that they never push a long
one out. For the engine thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.chat import MOST_MARKS, Chat
from engine.chat_file import Views
from engine.common_prefix import count_common
from engine.disk_cache import Match
from engine.kernels.kv_page import PAGE, n_pages
from engine.kv_cache import NO_PAGE, PagePool
from engine.memory_report import ChatMemory
from engine.model import Model
from engine.spare_pages import drop_spare

_MOST_SHORT = 1024  # tokens of a chat that counts as short
_SHOWN = 8  # tokens on each side of the place where a prompt leaves its chat
_NEAR = PAGE  # tokens that are not worth keeping a second chat, or a file, for
# Marks (chat.py) whose windows stay as long as their chat does: where the last prompt went on from
# what was there, and where it ended. So it can be edited and answered again.
_LASTING_MARKS = 2


class ChatStore(Protocol):
    """Where chats go that leave memory (disk_cache.py). Nothing it does is ever fatal."""

    def longest_prefix(self, ids: Sequence[int]) -> Match | None: ...
    def load(self, match: Match, pages: Views) -> bool: ...
    def store(self, ids: Sequence[int], pages: Views) -> bool: ...


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

    # --- a request's chat ---------------------------------------------------------------------

    def longest_prefix(self, ids: Sequence[int]) -> tuple[Chat | None, int]:
        """The chat from which a prompt can go on furthest, and how many tokens of it are of use:
        one is always left to be read. Of equals, the most recently used.
        """
        best, n_best = None, 0
        for chat in self:
            n = min(count_common(chat.ids, ids), len(ids) - 1)
            if n > n_best and (n := chat.restart_at(n)) > n_best:
                best, n_best = chat, n
        return best, n_best

    def open(self, ids: Sequence[int], *, is_request: bool = True) -> Chat:
        """A busy chat that holds as much of a prompt's beginning as there is in memory or store.

        is_request: others may come that leave it where it left what was there, or at its end.
        """
        _, n_common = self._closest(ids)
        _, n = self.longest_prefix(ids)
        # What is loaded takes pages, though it may fail: what is left of memory is another thing.
        chat = self._load(ids, n) or self._go_on(*self.longest_prefix(ids))
        if is_request:
            chat.mark(n_common)
            chat.mark(len(ids) - 1)
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
        chat, n = self._closest(ids)
        if chat is None or n >= len(ids) - 1 or n == len(chat.ids) or 2 * n <= len(chat.ids):
            return None
        around = slice(max(n - _SHOWN, 0), n + _SHOWN)
        return Parting(n, chat.ids[around], list(ids[around]))

    def _closest(self, ids: Sequence[int]) -> tuple[Chat | None, int]:
        """The chat that shares the longest beginning with a prompt, and how many tokens of it, but
        for the last; whether it can go on from there or not.
        """
        found = [(chat, min(count_common(chat.ids, ids), len(ids) - 1)) for chat in self]
        return max(found, key=lambda one: one[1], default=(None, 0))

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
        store, but_last = self._store, ids[:-1]
        match = store.longest_prefix(but_last) if store else None
        if store is None or match is None or match.n_common < n_in_memory + _NEAR:
            return None
        if not self._free_pages(self._pool.list_bytes(match.held), is_short=False):
            return None
        return self._fill(
            but_last[: match.n_common], match.held, lambda pages: store.load(match, pages)
        )

    def _fill(
        self, ids: Sequence[int], held: Sequence[bool], fill: Callable[[Views], bool]
    ) -> Chat | None:
        """A new chat in pages that `fill` writes, and says whether it could; they must be free.

        held: of its list of pages, which of them there are.
        """
        pages = self._pool.take_list(held)
        is_filled = False
        try:
            is_filled = fill(self._pool.views(pages))
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

    def views(self, chat: Chat) -> Views:
        """The memory that holds a chat: what lies in its windows and in those of its marks."""
        n_groups = len(self._pool.page_bytes)
        pages = chat.pages[: n_pages(len(chat.ids)) * n_groups]
        for slot in chat.spare_slots(MOST_MARKS):
            pages[slot] = NO_PAGE
        return self._pool.views(pages)

    def add(self, ids: Sequence[int], held: Sequence[bool], fill: Callable[[Views], None]) -> None:
        """Take in an idle chat, as the most recently used, whose pages `fill` writes.

        held: of its list of pages, which of them there are. Raises NoRoom, and what `fill` raises.
        """
        if not self._free_pages(self._pool.list_bytes(held), is_short=len(ids) <= self._n_short):
            raise NoRoom

        def fill_all(pages: Views) -> bool:
            fill(pages)
            return True

        chat = self._fill(ids, held, fill_all)
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
        needed = sum(chat.n_bytes_to_take(n) for chat in chats)
        if needed and not self._free_pages(needed, n_total <= self._n_short, chats):
            raise NoRoom

    def evict(self, n_bytes: int) -> int:
        """Let pages outside windows, and then idle chats, leave until that much memory is free.
        Returns bytes freed.
        """
        before = self._pool.used_bytes
        for n_marks in (MOST_MARKS, _LASTING_MARKS):
            drop_spare(self._pool, [*self._idle, *self._busy], n_marks, before - n_bytes)
        while self._idle and before - self._pool.used_bytes < n_bytes:
            self._leave(self._next_to_leave())
        return before - self._pool.used_bytes

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

    def _free_pages(self, n_bytes: int, is_short: bool, readers: Sequence[Chat] = ()) -> bool:
        """Make so much memory free, and for a long chat what is kept for short ones as well, as far
        as pages and idle chats can leave. Returns whether n_bytes are free.

        readers: chats that will take them, who may be strangers here.
        """
        pool, chats = self._pool, [*self._idle, *self._busy, *readers]
        wanted = n_bytes if is_short else n_bytes + self._kept_bytes()
        for n_marks in (MOST_MARKS, _LASTING_MARKS):
            drop_spare(pool, chats, n_marks, pool.limit_bytes - wanted)
        while pool.free_bytes < wanted and self._idle:
            victim = self._next_to_leave()
            if pool.free_bytes >= n_bytes and self._is_short(victim):
                break  # it uses the pages that are kept for its like
            self._leave(victim)
        drop_spare(pool, chats, 0, pool.limit_bytes - n_bytes)
        return pool.free_bytes >= n_bytes

    def _kept_bytes(self) -> int:
        """Memory kept for short chats, what they use already not counted."""
        short = [chat.pages for chat in self if self._is_short(chat)]
        used = sum(self._pool.list_bytes([page != NO_PAGE for page in pages]) for pages in short)
        return max(short_bytes(self._pool.page_bytes, self._n_short) - used, 0)

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
        others = (
            other.restart_at(count_common(other.ids, chat.ids))
            for other in self
            if other is not chat
        )
        if len(chat.ids) - max(others, default=0) >= _NEAR:
            self._store.store(chat.ids, self.views(chat))


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
