"""One chat: its tokens, the pages that hold their keys and values, and how it grows and shrinks.

Chats may share pages; whoever writes to a shared one takes a copy first. Which chats there are is
chat_cache.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from engine.kernels.kv_page import PAGE
from engine.kv_cache import PagePool
from engine.model import Model
from engine.plan import Part

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
        self.pages: list[int] = []
        self._model, self._pool = model, pool
        self._table = np.zeros(n_pages(n_ctx), np.int64)  # page addresses, for the kernels
        self._table_address = int(self._table.ctypes.data)  # asking takes microseconds

    # --- reading ------------------------------------------------------------------------------

    def prefill(
        self, tokens: Sequence[int], want_logits: bool = True, precise_until: int | None = None
    ) -> Logits | None:
        """Read up to `max_rows` tokens. Returns the last one's logits f32[n_vocab] if they are
        wanted.

        That last token is read by itself, as decoding reads, which is worth more to the reply's
        beginning than the time of one step.

        precise_until: of the whole prompt (Model.precise_until), where this is a chunk of one.
        Raises Cancelled when the batch was cancelled: what was read before stays.
        """
        for chunk, precise in self._by_precision(
            tokens[:-1] if want_logits else tokens, precise_until
        ):
            self._read(chunk, [], precise)
        return self.next(tokens[-1]) if want_logits else None

    def next(self, token: int) -> Logits:
        """Read one token, as decoding does; returns the logits f32[n_vocab] of what follows it."""
        return self._read([token], [0], precise=True)[0, :]

    def score(self, tokens: Sequence[int]) -> Logits:
        """Read tokens as a prompt; returns the logits f32[n_tokens, n_vocab] after each."""
        parts = [
            self._read(chunk, range(len(chunk)), precise).copy()
            for chunk, precise in self._by_precision(tokens, None)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def hidden(self, tokens: Sequence[int], precise_until: int) -> npt.NDArray[np.float32]:
        """Read tokens, a chunk of a text; returns f32[n_tokens, n_embd], what `Model.hidden` has of
        each. precise_until: as of `prefill`.
        """
        found = []
        for chunk, precise in self._by_precision(tokens, precise_until):
            self._read(chunk, [], precise)
            found.append(self._model.hidden(len(chunk)))
        return np.concatenate(found)

    def _by_precision(
        self, tokens: Sequence[int], precise_until: int | None
    ) -> Iterator[tuple[Sequence[int], bool]]:
        """Tokens to be read next: those that are to be read precisely, then the others."""
        n_past = len(self.ids)
        if precise_until is None:
            precise_until = self._model.precise_until(n_past, len(tokens))
        n = max(precise_until - n_past, 0)
        for chunk, precise in ((tokens[:n], True), (tokens[n:], False)):
            if chunk:
                yield chunk, precise

    def _read(self, tokens: Sequence[int], rows_out: Sequence[int], precise: bool) -> Logits:
        logits = self._model.forward([self._part(tokens, rows_out)], precise=precise)
        self.ids += tokens
        return logits

    def _part(self, tokens: Sequence[int], rows_out: Sequence[int]) -> Part:
        """These tokens as rows of a batch, and room for them in the cache.

        Raises MemoryError when the pool is out of pages; then nothing has changed.
        """
        first = len(self.ids)
        end = first + len(tokens)
        assert end <= self.n_ctx, f"{end} tokens in a context of {self.n_ctx}"
        if self._must_copy():
            last = first // PAGE
            own = self._pool.copy(self.pages[last])
            self._pool.free(self.pages[last])
            self._set_page(last, own)
        while len(self.pages) < n_pages(end):
            page = self._pool.take()
            self.pages.append(page)
            self._set_page(len(self.pages) - 1, page)
        return Part(tokens, first, self._table_address, rows_out)

    # --- pages --------------------------------------------------------------------------------

    def n_pages_to_take(self, n: int) -> int:
        """Pages that reading n more tokens takes from the pool."""
        missing = n_pages(len(self.ids) + n) - len(self.pages)
        return max(missing, 0) + self._must_copy()

    def truncate_to(self, n: int) -> None:
        """Forget all tokens after the first n."""
        del self.ids[n:]
        while len(self.pages) > n_pages(n):
            self._pool.free(self.pages.pop())

    def n_alike(self, n: int) -> int:
        """How many of the next n tokens look back on the same pages.

        Attention adds up what a row finds in its pages part by part, and rows of one chat share the
        parts: only such rows, read in one run, come out as if they were read one by one.
        """
        first, window = len(self.ids), self._model.config.window

        def pages(pos: int) -> tuple[int, int]:
            return pos // PAGE, max(pos + 1 - window, 0) // PAGE if window else 0

        return next((i for i in range(1, n) if pages(first + i) != pages(first)), n)

    def restart(self) -> None:
        """Forget everything."""
        self.truncate_to(0)

    def fork(self, n: int) -> Chat:
        """Another chat with the first n tokens of this one, in the same pages."""
        chat = Chat(self._model, self._pool, self.n_ctx)
        chat.ids = self.ids[:n]
        chat.pages = self.pages[: n_pages(n)]
        chat._table[: len(chat.pages)] = self._table[: len(chat.pages)]
        for page in chat.pages:
            self._pool.share(page)
        return chat

    def adopt(self, ids: Sequence[int], pages: Sequence[int]) -> None:
        """Fill an empty chat with tokens and the pages that hold them, now this chat's own."""
        assert not self.ids and not self.pages, "the chat is not empty"
        self.ids = list(ids)
        for i, page in enumerate(pages):
            self.pages.append(page)
            self._set_page(i, page)

    def _must_copy(self) -> bool:
        """Whether the next token goes to a page that another chat uses too."""
        last = len(self.ids) // PAGE
        return last < len(self.pages) and self._pool.is_shared(self.pages[last])

    def _set_page(self, i: int, page: int) -> None:
        self.pages[i] = page
        self._table[i] = self._pool.address(page)


def next_of(chats: Sequence[Chat], tokens: Sequence[int]) -> Logits:
    """Read one token of each chat in one run; returns logits f32[n_chats, n_vocab] of what follows.

    Raises what Chat.prefill raises.
    """
    return next_of_runs(chats, [[token] for token in tokens], [True] * len(chats))


def next_of_runs(
    chats: Sequence[Chat], runs: Sequence[Sequence[int]], wanted: Sequence[bool]
) -> Logits:
    """Read some tokens of each chat in one run, as decoding reads; returns the logits f32[n,
    n_vocab] of what follows the last token of those chats where they are wanted.

    Raises what Chat.prefill raises.
    """
    parts = [
        chat._part(tokens, [len(tokens) - 1] if is_wanted else [])
        for chat, tokens, is_wanted in zip(chats, runs, wanted, strict=True)
    ]
    logits = chats[0]._model.forward(parts, precise=True)
    for chat, tokens in zip(chats, runs, strict=True):
        chat.ids += tokens
    return logits


def n_pages(n_tokens: int) -> int:
    """Pages that hold n tokens."""
    return (n_tokens + PAGE - 1) // PAGE
