"""A model that writes each token's id into its place in the cache: what a chat holds can be read.

It has what Chat asks of a Model, and no weights. With it, tests of the cache see every mistake in
pages, and take microseconds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.chat import Chat
from engine.kernels.kv_page import PAGE
from engine.model import Cancelled
from engine.plan import Part


class PaperModel:
    """page_bytes: an i32 for each token. cancel_after: rows of the next run, which is cancelled."""

    max_rows = 2 * PAGE
    page_bytes = 4 * PAGE

    def __init__(self) -> None:
        self.cancel_after: int | None = None

    def precise_until(self, n_past: int, n_new: int) -> int:
        return 0

    def forward(self, parts: Sequence[Part], *, precise: bool) -> Any:
        n_rows = 0
        for part in parts:
            for i, token in enumerate(part.tokens):
                if n_rows == self.cancel_after:
                    self.cancel_after = None
                    raise Cancelled
                place = part.first_pos + i
                page = ctypes.c_int64.from_address(part.pages + 8 * (place // PAGE)).value
                ctypes.c_int32.from_address(page + 4 * (place % PAGE)).value = token
                n_rows += 1
        return np.zeros((len(parts), 1), np.float32)


def written(chat: Chat) -> list[int]:
    """The tokens that the chat's pages hold."""
    pool = chat._pool
    pages = [np.frombuffer(pool.view(page), np.int32)[:PAGE] for page in chat.pages]
    return [int(token) for page in pages for token in page][: len(chat.ids)]
