"""The paged pool of keys and values. Knows pages and how many use each, not chats or tokens.

All pages lie in one reserved mapping: a page costs memory when it is first written to, and gives it
back when its last user frees it.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from engine.plan import Memory


class PagePool:
    """n_pages pages of page_bytes (what is in one: kernels/kv_page.py).

    limit: pages that may be in use; less than n_pages while the machine is short of memory.
    """

    def __init__(self, n_pages: int, page_bytes: int) -> None:
        self.n_pages = n_pages
        self.limit = n_pages
        # Whole pages of the system: only those can be given back.
        self.page_bytes = (page_bytes + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
        self._memory = Memory(n_pages * self.page_bytes)
        self._n_users = [0] * n_pages
        self._free = list(range(n_pages - 1, -1, -1))  # the lowest number is taken first

    @property
    def n_used(self) -> int:
        return self.n_pages - len(self._free)

    @property
    def n_free(self) -> int:
        """Pages that may be taken."""
        return max(self.limit - self.n_used, 0)

    @property
    def n_bytes(self) -> int:
        """Bytes of the pages in use."""
        return self.n_used * self.page_bytes

    @property
    def memory(self) -> Memory:
        return self._memory

    def take(self) -> int:
        """Number of a page that nobody uses. Raises MemoryError when there is none."""
        if not self.n_free:
            raise MemoryError(f"all {self.limit} KV pages are in use")
        page = self._free.pop()
        self._n_users[page] = 1
        return page

    def share(self, page: int) -> None:
        """Count one more user. Nobody writes to a page with several."""
        self._n_users[page] += 1

    def is_shared(self, page: int) -> bool:
        return self._n_users[page] > 1

    def free(self, page: int) -> None:
        """Count one user less; with the last one, the page's memory goes back to the system."""
        self._n_users[page] -= 1
        if not self._n_users[page]:
            self._free.append(page)
            self._memory.give_back(page * self.page_bytes, self.page_bytes)

    def copy(self, page: int) -> int:
        """Take a page and fill it with another one's content. Raises MemoryError."""
        own = self.take()
        self.view(own)[:] = self.view(page)
        return own

    def address(self, page: int) -> int:
        return self._memory.address + page * self.page_bytes

    def bytes_of(self, pages: Sequence[int]) -> int:
        """What these pages take, divided among their users."""
        return round(sum(self.page_bytes / max(self._n_users[page], 1) for page in pages))

    def view(self, page: int) -> memoryview:
        """A page's bytes, to read and write."""
        first = page * self.page_bytes
        return self._memory.view[first : first + self.page_bytes]
