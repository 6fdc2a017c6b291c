"""The paged pool of keys and values. Knows pages and how many use each, not chats or tokens.

Pages have a few sizes, one for each group of layers (layer_groups.py), and one budget. All lie in
one reserved mapping, each size in a region of its own: a page costs memory when it is first written
to, and gives it back when its last user frees it.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from engine.model.plan import Memory

NO_PAGE: Final = -1  # in a list of pages: none is there


class PagePool:
    """Pages of page_bytes[group], whole pages of the system, for n_bytes together.

    A page's number tells its group: it is the remainder by the number of groups.

    limit_bytes: that may be in use; less than n_bytes while the machine is short of memory.
    """

    def __init__(self, page_bytes: Sequence[int], n_bytes: int) -> None:
        assert not any(size % mmap.PAGESIZE for size in page_bytes), "not whole pages of the system"
        self.page_bytes = tuple(page_bytes)
        self.n_bytes = self.limit_bytes = n_bytes
        self.used_bytes = 0
        n_groups = len(self.page_bytes)
        numbers = [n_bytes // size for size in self.page_bytes]  # as if all were of one group
        regions = [n * size for n, size in zip(numbers, self.page_bytes, strict=True)]
        self._first = [0, *accumulate(regions)][:n_groups]  # where each region begins
        self._memory = Memory(sum(regions))
        self._n_users = [0] * (max(numbers) * n_groups)
        self._free = [  # the lowest number is taken first
            list(range((n - 1) * n_groups + group, -1, -n_groups))
            for group, n in enumerate(numbers)
        ]

    @property
    def free_bytes(self) -> int:
        """Bytes of pages that may be taken."""
        return max(self.limit_bytes - self.used_bytes, 0)

    @property
    def memory(self) -> Memory:
        return self._memory

    def take(self, group: int) -> int:
        """Number of a page that nobody uses. Raises MemoryError when there is none."""
        size = self.page_bytes[group]
        if size > self.free_bytes:
            raise MemoryError(f"the KV pages' {self.limit_bytes} bytes are in use")
        page = self._free[group].pop()
        self._n_users[page] = 1
        self.used_bytes += size
        return page

    def take_list(self, held: Sequence[bool]) -> list[int]:
        """A list of pages [page][group], with NO_PAGE where none is held. They must be free."""
        n_groups = len(self.page_bytes)
        return [
            self.take(slot % n_groups) if is_held else NO_PAGE for slot, is_held in enumerate(held)
        ]

    def list_bytes(self, held: Sequence[bool]) -> int:
        """What such a list takes."""
        n_groups = len(self.page_bytes)
        return sum(self.page_bytes[slot % n_groups] for slot, is_held in enumerate(held) if is_held)

    def share(self, page: int) -> None:
        """Count one more user. Nobody writes to a page with several."""
        self._n_users[page] += 1

    def share_list(self, pages: Sequence[int]) -> None:
        """The same for the pages of a list."""
        for page in pages:
            if page != NO_PAGE:
                self.share(page)

    def n_users(self, page: int) -> int:
        return self._n_users[page]

    def is_shared(self, page: int) -> bool:
        return self._n_users[page] > 1

    def free(self, page: int) -> None:
        """Count one user less; with the last one, the page's memory goes back to the system.
        NO_PAGE is freed already.
        """
        if page == NO_PAGE:
            return
        self._n_users[page] -= 1
        if not self._n_users[page]:
            self._free[page % len(self.page_bytes)].append(page)
            self.used_bytes -= self.size_of(page)
            self._memory.give_back(self._offset(page), self.size_of(page))

    def free_list(self, pages: Sequence[int]) -> None:
        """The same for the pages of a list."""
        for page in pages:
            self.free(page)

    def copy(self, page: int) -> int:
        """Take a page and fill it with another one's content. Raises MemoryError."""
        own = self.take(page % len(self.page_bytes))
        self.view(own)[:] = self.view(page)
        return own

    def address(self, page: int) -> int:
        return self._memory.address + self._offset(page)

    def size_of(self, page: int) -> int:
        """A page's bytes."""
        return self.page_bytes[page % len(self.page_bytes)]

    def bytes_of(self, pages: Sequence[int]) -> int:
        """What the pages of a list take, each divided among its users."""
        there = (page for page in pages if page != NO_PAGE)
        return round(sum(self.size_of(page) / max(self._n_users[page], 1) for page in there))

    def view(self, page: int) -> memoryview:
        """A page's bytes, to read and write."""
        first = self._offset(page)
        return self._memory.view[first : first + self.size_of(page)]

    def views(self, pages: Sequence[int]) -> list[memoryview | None]:
        """The bytes of a list's pages; None for NO_PAGE."""
        return [None if page == NO_PAGE else self.view(page) for page in pages]

    def _offset(self, page: int) -> int:
        """Where it lies in the mapping."""
        index, group = divmod(page, len(self.page_bytes))
        return self._first[group] + index * self.page_bytes[group]
