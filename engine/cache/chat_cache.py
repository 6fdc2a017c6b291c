"""Which chat a prompt can go on from, and how it gets there. Who stays in memory is decided by
resident_chats.py.

A prompt goes on from the longest beginning that any chat shares with it: by taking over an idle
chat that it continues, or else by sharing pages with it. Where the store has clearly more of it,
that is read a bit at a time. For the engine thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.cache.chat import Chat
from engine.cache.chat_file import Views
from engine.cache.chat_loader import Loadable, Loading
from engine.cache.chat_writer import Writable
from engine.cache.common_prefix import count_common
from engine.cache.disk_cache import Match
from engine.cache.kv_cache import PagePool
from engine.cache.resident_chats import NEAR, NoRoom, ResidentChats
from engine.memory.memory_report import ChatMemory

_SHOWN = 8  # tokens on each side of the place where a prompt leaves its chat


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


class ChatCache:
    """n_short: tokens up to which a chat is short."""

    def __init__(
        self,
        new_chat: Callable[[], Chat],
        pool: PagePool,
        n_short: int,
        store: ChatStore | None = None,
    ) -> None:
        self._new_chat, self._pool, self._store = new_chat, pool, store
        self._chats = ResidentChats(pool, n_short, store)
        self._loading: dict[Chat, Loading] = {}  # what busy chats are going to be

    def __iter__(self) -> Iterator[Chat]:
        """All chats, the busy ones and then the most recently used first."""
        return iter(self._chats)

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
        self._chats.busy[chat] = None
        return chat

    def close(self, chat: Chat) -> None:
        """The request is over; its chat is the most recently used one."""
        del self._chats.busy[chat]
        self._stop_loading(chat)
        if chat.ids:
            self._chats.idle[chat] = None
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
        if chat in self._chats.idle and len(chat.ids) - n < NEAR:
            self._chats.writer.forget(chat)
            del self._chats.idle[chat]
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
            chat.mark(len(loading.ids))  # here the prompt leaves what was there
        return not loading.is_done

    def _begin_loading(self, chat: Chat, ids: Sequence[int]) -> Loading | None:
        """None: there is too little to gain, or no room for it."""
        but_last = ids[:-1]
        match = self._store.longest_prefix(but_last) if self._store else None
        if match is None or match.n_common < len(chat.ids) + NEAR:
            return None
        try:
            pages = self._take(match.held, is_short=False, n_others=len(self._chats.busy) - 1)
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
        return self._take(held, self._chats.is_short(n_tokens), len(self._chats.busy))

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
        self._chats.idle[chat] = None

    def drop(self, chat: Chat) -> bool:
        """Forget a chat without storing it. Returns whether it was idle: a busy one stays."""
        if chat not in self._chats.idle:
            return False
        self._chats.remove(chat)
        return True

    # --- room ---------------------------------------------------------------------------------

    def make_room(self, chats: Sequence[Chat], n: int, n_total: int) -> None:
        """See to it that each chat can read n more tokens. n_total: how long the longest of them is
        going to be.

        Raises NoRoom or RoomComing.
        """
        needed = sum(chat.n_bytes_to_take(n) for chat in chats)
        if needed:
            # Who reads leaves pages to those who write.
            others = self._chats.busy.keys() - set(chats) if n > 1 else ()
            self._chats.make_free(needed, self._chats.is_short(n_total), len(others), chats)

    def evict(self, n_bytes: int, at_once: bool = False) -> int:
        """Let that much leave memory: see ResidentChats.evict."""
        return self._chats.evict(n_bytes, at_once)

    def save(self, timeout_s: float) -> None:
        """Store idle chats: see ResidentChats.save."""
        self._chats.save(timeout_s)

    def clear(self) -> None:
        """Forget all chats."""
        self._chats.writer.cancel()
        for chat in self:
            self._stop_loading(chat)
            self._chats.writer.forget(chat)
            chat.restart()
        self._chats.idle.clear()
        self._chats.busy.clear()

    def memory(self) -> tuple[ChatMemory, ...]:
        """What each chat takes. Any thread."""
        return self._chats.memory()

    def _take(self, held: Sequence[bool], is_short: bool, n_others: int) -> list[int]:
        self._chats.make_free(self._pool.list_bytes(held), is_short, n_others)
        return self._pool.take_list(held)
