"""The paged pool of keys and values. Knows pages, not chats or tokens.

All pages lie in one reserved mapping: a page costs memory when it is first written to, and gives it
back when freed.
"""

from __future__ import annotations

import mmap

from engine.plan import Memory


class PagePool:
    """n_pages pages of page_bytes (what is in one: kernels/kv_page.py)."""

    def __init__(self, n_pages: int, page_bytes: int) -> None:
        self.n_pages = n_pages
        # Whole pages of the system: only those can be given back.
        self.page_bytes = (page_bytes + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
        self._memory = Memory(n_pages * self.page_bytes)
        self._free = list(range(n_pages - 1, -1, -1))  # the lowest number is taken first

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_bytes(self) -> int:
        """Bytes of the pages in use."""
        return (self.n_pages - self.n_free) * self.page_bytes

    def take(self) -> int:
        """Number of a page that nobody uses. Raises MemoryError when there is none."""
        if not self._free:
            raise MemoryError(f"all {self.n_pages} KV pages are in use")
        return self._free.pop()

    def free(self, page: int) -> None:
        """Give a page back, and its memory to the system."""
        self._free.append(page)
        self._memory.give_back(page * self.page_bytes, self.page_bytes)

    def address(self, page: int) -> int:
        return self._memory.address + page * self.page_bytes

    def view(self, page: int) -> memoryview:
        """A page's memory, to be read from or written to a file."""
        first = page * self.page_bytes
        return self._memory.bytes[first : first + self.page_bytes].data
