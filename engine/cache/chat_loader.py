"""Reads chats from the store into memory, some megabytes at a time, so that others can be answered
in between. Until all of it is there, the pages are no chat's. For the engine thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.cache.chat_file import Views
from engine.cache.disk_cache import Match
from engine.cache.kv_cache import NO_PAGE, PagePool

_STEP_BYTES = 8 << 20  # a few hundredths of a second


class Loadable(Protocol):
    """Where chats come from (disk_cache.py). Nothing it does is ever fatal."""

    def load(self, match: Match, pages: Views, first: int = 0) -> bool: ...


class Loading:
    """One chat on its way. ids, pages: what it is going to be; the pages are taken for it."""

    def __init__(self, match: Match, ids: Sequence[int], pages: list[int]) -> None:
        self.ids, self.pages = list(ids), pages
        self._match = match
        self._next = 0  # place in the list of pages

    @property
    def is_done(self) -> bool:
        return self._next == len(self.pages)

    def step(self, store: Loadable, pool: PagePool) -> bool:
        """Read a bit more. Returns whether it worked; if not, it never will."""
        first, n_bytes = self._next, 0
        while not self.is_done and n_bytes < _STEP_BYTES:
            page = self.pages[self._next]
            n_bytes += 0 if page == NO_PAGE else pool.size_of(page)
            self._next += 1
        return store.load(self._match, pool.views(self.pages[first : self._next]), first)
