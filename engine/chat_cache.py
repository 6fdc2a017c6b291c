"""Every chat whose keys and values are in memory, and which of them a prompt can go on from.

A chat is busy while a request runs on it and idle afterwards. A prompt goes on from the longest
beginning that any chat shares with it: by taking over an idle chat that it continues, or else by
sharing pages with it; where the store has clearly more of it, that is read a bit at a time. When
pages run out, those outside all windows leave first. Then idle chats leave, least recently used
first, once they are stored. Short chats (titles, tags, completions in an
editor) leave before long ones, and a few pages are kept for them, so that they never push a long
one out. For the engine thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.chat import MOST_MARKS, Chat
from engine.chat_file import Views
from engine.chat_loader import Loadable, Loading
from engine.chat_writer import ChatWriter, Writable
from engine.common_prefix import count_common
from engine.disk_cache import Match
from engine.kernels.kv_page import PAGE, n_pages
from engine.kv_cache import NO_PAGE, PagePool
from engine.memory_report import ChatMemory
from engine.model import Model
from engine.spare_pages import drop_spare

log = logging.getLogger("rushlight.engine")

_MOST_SHORT = 1024  # tokens of a chat that counts as short
_SHOWN = 8  # tokens on each side of the place where a prompt leaves its chat
_NEAR = PAGE  # tokens that are not worth keeping a second chat, or a file, for
_SPARE = 4  # pages that each other running chat may go on by while one is stored
# Marks (chat.py) whose windows stay as long as their chat does: where the last prompt went on from
# what was there, and where it ended. So it can be edited and answered again.
_LASTING_MARKS = 2


class ChatStore(Writable, Loadable, Protocol):
    """Where chats go that leave memory (disk_cache.py)."""

    def longest_prefix(self, ids: Sequence[int]) -> Match | None: ...


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
        self._loading: dict[Chat, Loading] = {}  # what busy chats are going to be
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
        """A busy chat that holds as much of a prompt's beginning as there is in memory.

        is_request: others may come that leave it where it left what was there, or at its end.
        """
        _, n_common = self._closest(ids)
        chat = self._go_on(*self.longest_prefix(ids))
        if is_request:
            chat.mark(n_common)
            chat.mark(len(ids) - 1)
        self._busy[chat] = None
        return chat

    def close(self, chat: Chat) -> None:
        """The request is over; its chat is the most recently used one."""
        del self._busy[chat]
        self._stop_loading(chat)
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
            self._writer.forget(chat)
            del self._idle[chat]
            chat.truncate_to(n)
            return chat
        return chat.fork(n)

    # --- from the store -----------------------------------------------------------------------

    def load(self, chat: Chat, ids: Sequence[int]) -> bool:
        """Go on with a busy chat from the store, where that holds clearly more of a prompt: read a
        bit of it. Returns whether there is more to read. The chat has it once all is there.

        Raises RoomComing.
        """
        loading = self._loading.get(chat) or self._begin_loading(chat, ids)
        if self._store is None or loading is None:
            return False
        self._loading[chat] = loading
        if not loading.step(self._store, self._pool):
            self._stop_loading(chat)
            return False
        if loading.is_done:
            del self._loading[chat]
            marks = chat.marks
            chat.restart()
            chat.adopt(loading.ids, loading.pages)
            chat.marks = marks
        return not loading.is_done

    def _begin_loading(self, chat: Chat, ids: Sequence[int]) -> Loading | None:
        """None: there is too little to gain, or no room for it."""
        but_last = ids[:-1]
        match = self._store.longest_prefix(but_last) if self._store else None
        if match is None or match.n_common < len(chat.ids) + _NEAR:
            return None
        try:
            pages = self._take(match.held, is_short=False, n_others=len(self._busy) - 1)
        except NoRoom:
            return None
        return Loading(match, but_last[: match.n_common], pages)

    def _stop_loading(self, chat: Chat) -> None:
        loading = self._loading.pop(chat, None)
        if loading:
            self._pool.free_list(loading.pages)

    # --- at a user's wish ---------------------------------------------------------------------

    def lend(self, chat: Chat) -> tuple[list[int], list[int]]:
        """(ids, pages) of a chat as it is now: the pages stay so until they are given back."""
        pages = chat.kept_pages()
        self._pool.share_list(pages)
        return list(chat.ids), pages

    def take(self, n_tokens: int, held: Sequence[bool]) -> list[int]:
        """Pages for so many tokens, to be filled and then added, or given back.

        held: of the list of pages, which of them there are. Raises NoRoom or RoomComing.
        """
        return self._take(held, n_tokens <= self._n_short, len(self._busy))

    def give_back(self, pages: Sequence[int]) -> None:
        """What was lent or taken."""
        self._pool.free_list(pages)

    def views(self, pages: Sequence[int]) -> Views:
        """The memory of pages."""
        return self._pool.views(pages)

    def add(self, ids: Sequence[int], pages: Sequence[int]) -> None:
        """Take in an idle chat, as the most recently used, in pages that were taken for it."""
        chat = self._new_chat()
        chat.adopt(ids, pages)
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
        needed = sum(chat.n_bytes_to_take(n) for chat in chats)
        if needed:
            others = self._busy.keys() - set(chats) if n > 1 else ()  # readers let writers go first
            self._free_pages(needed, n_total <= self._n_short, len(others), chats)

    def evict(self, n_bytes: int, at_once: bool = False) -> int:
        """Let pages outside windows, and then idle chats, leave until that much memory is free, as
        far as they are stored: those that are not begin to be. at_once: whether they are stored or
        not. Returns bytes freed.
        """
        before = self._pool.used_bytes
        if at_once:
            self._writer.cancel()
        for n_marks in (MOST_MARKS, _LASTING_MARKS):
            drop_spare(self._pool, [*self._idle, *self._busy], n_marks, before - n_bytes)
        while self._idle and before - self._pool.used_bytes < n_bytes:
            if not self._leave(self._next_to_leave(), at_once):
                break
        return before - self._pool.used_bytes

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
            self._stop_loading(chat)
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

    def _take(self, held: Sequence[bool], is_short: bool, n_others: int) -> list[int]:
        self._free_pages(self._pool.list_bytes(held), is_short, n_others)
        return self._pool.take_list(held)

    def _free_pages(
        self, n_bytes: int, is_short: bool, n_others: int, readers: Sequence[Chat] = ()
    ) -> None:
        """Make so much memory free, and for a long chat what is kept for short ones as well, as far
        as pages and idle chats can leave.

        n_others: running chats that are to go on while one is stored. readers: chats that will take
        the pages, who may be strangers here. Raises NoRoom or RoomComing.
        """
        pool, chats = self._pool, [*self._idle, *self._busy, *readers]
        spare = n_others * _SPARE * sum(pool.page_bytes)
        wanted = n_bytes if is_short else n_bytes + max(self._kept_bytes(), spare)
        for n_marks in (MOST_MARKS, _LASTING_MARKS):
            drop_spare(pool, chats, n_marks, pool.limit_bytes - wanted)
        while pool.free_bytes < wanted and self._idle:
            victim = self._next_to_leave()
            if pool.free_bytes >= n_bytes and self._is_short(victim):
                break  # it uses the pages that are kept for its like
            if not self._leave(victim):
                if pool.free_bytes < n_bytes + spare:
                    raise RoomComing
                break
        is_busy = self._writer.is_busy  # if not, it holds no pages any more
        if not is_busy:
            drop_spare(pool, chats, 0, pool.limit_bytes - n_bytes)
        if pool.free_bytes < n_bytes:
            raise RoomComing if is_busy else NoRoom

    def _kept_bytes(self) -> int:
        """Memory kept for short chats, what they use already not counted."""
        short = [chat.pages for chat in self if self._is_short(chat)]
        used = sum(self._pool.list_bytes([page != NO_PAGE for page in pages]) for pages in short)
        return max(short_bytes(self._pool.page_bytes, self._n_short) - used, 0)

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
        others = (
            other.restart_at(count_common(other.ids, chat.ids))
            for other in self
            if other is not chat
        )
        return len(chat.ids) - max(others, default=0) >= _NEAR


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
