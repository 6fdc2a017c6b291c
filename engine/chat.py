"""One chat: its tokens, the pages that hold their keys and values, and how it grows and shrinks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.kernels.kv_page import PAGE
from engine.kv_cache import PagePool
from engine.model import Model

Logits = npt.NDArray[np.float32]


class Chat:
    """The tokens that the model has read, in order, and their cache.

    ids:      token ids whose keys and values are in the cache.
    max_rows: tokens that one prefill or score takes at most.
    """

    def __init__(self, model: Model, pool: PagePool, n_ctx: int) -> None:
        self.ids: list[int] = []
        self.n_ctx = n_ctx
        self.max_rows = model.max_rows
        self._model, self._pool = model, pool
        self._pages: list[int] = []
        self._table = np.zeros(n_pages(n_ctx), np.int64)  # page addresses, for the kernels

    def prefill(self, tokens: Sequence[int], want_logits: bool = True) -> Logits | None:
        """Read up to `max_rows` tokens. Returns the last one's logits f32[n_vocab] if they are
        wanted.

        That last token is read by itself, as decoding reads: few rows are computed with 16-bit
        inputs, which is worth more to the reply's beginning than the time of one step.

        Raises Cancelled when the batch was cancelled: what was read before stays.
        """
        if not want_logits:
            self._read(tokens, [])
            return None
        if len(tokens) > 1:
            self._read(tokens[:-1], [])
        return self.next(tokens[-1])

    def next(self, token: int) -> Logits:
        """Read one token; returns the logits f32[n_vocab] of what follows it."""
        return self._read([token], [0])[0, :]

    def score(self, tokens: Sequence[int]) -> Logits:
        """Read tokens; returns the logits f32[n_tokens, n_vocab] after each."""
        return self._read(tokens, range(len(tokens)))

    def keep_prefix(self, prompt_ids: Sequence[int]) -> int:
        """Cut the chat back to the longest beginning that it shares with a prompt. Returns how many
        tokens stay.

        At least the prompt's last token is left to be read: its logits are needed.
        """
        n = 0
        for ours, theirs in zip(self.ids, prompt_ids[:-1], strict=False):
            if ours != theirs:
                break
            n += 1
        self.truncate_to(n)
        return n

    def truncate_to(self, n: int) -> None:
        """Forget all tokens after the first n."""
        del self.ids[n:]
        while len(self._pages) > n_pages(n):
            self._pool.free(self._pages.pop())

    def restart(self) -> None:
        """Forget everything."""
        self.truncate_to(0)

    def _read(self, tokens: Sequence[int], rows_out: Sequence[int]) -> Logits:
        end = len(self.ids) + len(tokens)
        assert end <= self.n_ctx, f"{end} tokens in a context of {self.n_ctx}"
        while len(self._pages) < n_pages(end):
            page = self._pool.take()
            self._table[len(self._pages)] = self._pool.address(page)
            self._pages.append(page)
        logits = self._model.forward(tokens, len(self.ids), self._table.ctypes.data, rows_out)
        self.ids += tokens
        return logits


def n_pages(n_tokens: int) -> int:
    """Pages that hold n tokens."""
    return (n_tokens + PAGE - 1) // PAGE
