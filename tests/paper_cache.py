"""A cache of chats over a paper model and a store in memory, and requests that run on it.

What its chats hold can be read, and what is stored arrives when a test says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.cache.chat import Chat
from engine.cache.chat_cache import ChatCache
from engine.cache.chat_file import Views
from engine.cache.common_prefix import count_common
from engine.cache.kv_cache import NO_PAGE, PagePool
from engine.cache.resident_chats import RoomComing
from engine.cache.spare_pages import drop_spare
from engine.kernels.attention import ALL
from engine.kernels.kv_page import PAGE
from engine.model.layer_groups import Groups, n_slots, restart_at
from tests.paper_model import PAGE_BYTES, PaperModel, holds

N_CTX = 10 * PAGE
N_SHORT = PAGE


@dataclass(frozen=True)
class Found:
    ids: tuple[int, ...]
    n_common: int
    held: tuple[bool, ...]


class Write:
    """A chat on its way to a DictStore, where it arrives when the test says so."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish: Callable[[], None] | None = finish
        self.done = False

    def finish(self) -> None:
        if self._finish:
            self._finish()
            self._finish = None
        self.done = True

    def wait(self, timeout_s: float) -> bool:
        if timeout_s > 0:
            self.finish()
        return self.done

    def cancel(self) -> None:
        self._finish = None


class DictStore:
    """A store in memory, of any size. damaged: loading fails, as with a broken file. is_slow: what
    is written waits in `writes` for the test to finish it.
    """

    def __init__(self, groups: Groups) -> None:
        self.chats: dict[tuple[int, ...], list[bytes | None]] = {}
        self.damaged = False
        self.is_slow = False
        self.writes: list[Write] = []
        self.limit_bytes = 1 << 40
        self.groups = groups

    def longest_prefix(self, ids: Sequence[int]) -> Found | None:
        found = []
        for chat, pages in self.chats.items():
            held = [page is not None for page in pages]
            n = restart_at(self.groups, held, count_common(chat, tuple(ids)))
            found.append(Found(chat, n, tuple(held[: n_slots(self.groups, n)])))
        best = max(found, key=lambda f: f.n_common, default=None)
        return best if best and best.n_common else None

    def load(self, match: Found, pages: Views, first: int = 0) -> bool:
        for page, content in zip(pages, self.chats[match.ids][first:], strict=False):
            assert (page is None) == (content is None)
            if page is not None and content is not None:
                page[:] = bytes(len(page)) if self.damaged else content
        return not self.damaged

    def store(self, ids: Sequence[int], pages: Views) -> Write | None:
        assert len(pages) == n_slots(self.groups, len(ids))
        held = [page is not None for page in pages]
        assert restart_at(self.groups, held, len(ids)) == len(ids)
        match = self.longest_prefix(ids)
        if match and match.n_common == len(ids):
            return None

        def finish() -> None:
            content = [None if page is None else bytes(page) for page in pages]
            self.chats[tuple(ids)] = content

        ids = list(ids)
        self.writes.append(Write(finish))
        if not self.is_slow:
            self.writes[-1].finish()
        return self.writes[-1]


class Cache:
    """A cache over a paper model, and requests that run on it. pages: all groups' together."""

    def __init__(self, pages: int = 30, windows: tuple[int, ...] = (ALL,)) -> None:
        self.model = PaperModel(*windows)
        self.pool = PagePool(self.model.page_bytes, pages * PAGE_BYTES)
        self.store = DictStore(self.model.groups)
        new_chat = lambda: Chat(self.model, self.pool, N_CTX)  # type: ignore[arg-type]  # noqa: E731
        self.cache = ChatCache(new_chat, self.pool, N_SHORT, self.store)

    def read(self, chat: Chat, ids: Sequence[int]) -> None:
        """Read the rest of a prompt."""
        while len(chat.ids) < len(ids):
            chunk = list(ids[len(chat.ids) : len(chat.ids) + self.model.max_rows])
            with contextlib.suppress(RoomComing):
                self.cache.make_room([chat], len(chunk), len(ids))
                chat.prefill(chunk, want_logits=False)

    def load(self, chat: Chat, ids: Sequence[int]) -> int:
        """Read all that the store has of a prompt. Returns how many tokens are cached."""
        while True:
            with contextlib.suppress(RoomComing):
                if not self.cache.load(chat, ids):
                    return len(chat.ids)

    def evict_all(self) -> None:
        """First they are stored, then they leave."""
        while self.cache.evict(1 << 40) or self.pool.used_bytes:
            pass

    def n_free(self) -> int:
        """Pages."""
        return self.pool.free_bytes // PAGE_BYTES

    def drop_spare(self, n_marks: int) -> None:
        """All pages that are."""
        drop_spare(self.pool, self.cache, n_marks, 0)

    def request(self, ids: Sequence[int]) -> int:
        """A request from its beginning to its end. Returns how many tokens were cached."""
        chat = self.cache.open(ids)
        n_cached = self.load(chat, ids)
        self.read(chat, ids)
        assert holds(chat, ids)
        self.cache.close(chat)
        return n_cached


def text(n: int, of: int = 0) -> list[int]:
    """n tokens of one chat."""
    return [1000 * of + i % 999 for i in range(1, n + 1)]


def turns_of(cache: Cache, *turns: int) -> list[int]:
    """A chat of so many turns, each of so many tokens, read in a request each."""
    ids: list[int] = []
    for i, n in enumerate(turns):
        ids += text(n, i + 1)
        cache.request(ids)
    return ids


def n_held(chat: Chat, group: int) -> int:
    return sum(page != NO_PAGE for page in chat.pages[group::2])
