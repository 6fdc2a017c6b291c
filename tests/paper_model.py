"""A model that writes each token's id into its place in the cache: what a chat holds can be read.

It has what Chat asks of a Model, and no weights. With it, tests of the cache see every mistake in
pages, and take microseconds.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.cache.chat import Chat
from engine.cache.kv_cache import NO_PAGE
from engine.kernels.attention import ALL
from engine.kernels.kv_page import PAGE
from engine.model.layer_groups import LayerGroup, chat_bytes
from engine.model.model import Cancelled
from engine.model.plan import Part

PAGE_BYTES = mmap.PAGESIZE  # of each group: an i32 for each token, and more


class PaperModel:
    """windows: of each group of layers. cancel_after: rows of the next run, which is cancelled."""

    max_rows = 2 * PAGE

    def __init__(self, *windows: int) -> None:
        windows = windows or (ALL,)
        self.groups = tuple(LayerGroup((i,), w, PAGE_BYTES) for i, w in enumerate(windows))
        self.page_bytes = tuple(group.page_bytes for group in self.groups)
        self.cancel_after: int | None = None

    def precise_until(self, n_past: int, n_new: int) -> int:
        return 0

    def chat_bytes(self, n_tokens: int) -> int:
        return chat_bytes(self.groups, n_tokens, self.max_rows)

    def forward(self, parts: Sequence[Part], *, precise: bool) -> Any:
        n_rows = 0
        for part in parts:
            for i, token in enumerate(part.tokens):
                if n_rows == self.cancel_after:
                    self.cancel_after = None
                    raise Cancelled
                for g, group in enumerate(self.groups):
                    self._at(part, part.first_pos + i, g).value = token
                    self._look_back(part, part.first_pos + i, g, group.window)
                n_rows += 1
        return np.zeros((len(parts), 1), np.float32)

    def _look_back(self, part: Part, place: int, g: int, window: int) -> None:
        """As attention does: every page of the window is read. What is in it, `written` tells."""
        for seen in range(max(place + 1 - window, 0), place + 1):
            assert self._at(part, seen, g).value > 0

    def _at(self, part: Part, place: int, g: int) -> ctypes.c_int32:
        slot = place // PAGE * len(self.groups) + g
        page = ctypes.c_int64.from_address(part.pages + 8 * slot).value
        assert page, f"the page of place {place} is not there"
        return ctypes.c_int32.from_address(page + 4 * (place % PAGE))


def holds(chat: Chat, ids: Sequence[int]) -> bool:
    """Whether the chat's pages hold these tokens: in all groups, as far as their windows reach and
    wherever else there is a page.
    """
    pool, groups = chat._pool, chat._groups
    if chat.ids != list(ids):
        return False
    for slot, page in enumerate(chat.pages):
        i, g = divmod(slot, len(groups))
        if page == NO_PAGE:
            if i >= groups[g].first_page(len(ids)):
                return False
            continue
        content = np.frombuffer(pool.view(page), np.int32)[:PAGE].tolist()
        expected = list(ids[i * PAGE : (i + 1) * PAGE])
        if content[: len(expected)] != expected:
            return False
    return True
