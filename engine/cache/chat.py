"""One chat: its tokens, the pages that hold their keys and values, and how it grows and shrinks.

Chats may share pages; whoever writes to a shared one takes a copy first. Which chats there are is
chat_cache.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from engine.cache.kv_cache import NO_PAGE, PagePool
from engine.kernels.kv_page import PAGE, n_pages
from engine.model.layer_groups import n_slots, restart_at
from engine.model.model import Model
from engine.model.plan import Part

Logits = npt.NDArray[np.float32]

MOST_MARKS = 8  # of a chat; older ones are forgotten


class Chat:
    """The tokens that the model has read, in order, and their cache.

    ids:      token ids whose keys and values are in the cache.
    max_rows: tokens that one prefill or score takes at most.
    pages:    [page][group of layers], a flat list of "slots". Groups with a window need the last
              pages only; NO_PAGE stands for what is given up.
    marks:    places to which somebody may want to come back, the latest ones last.
    """

    def __init__(self, model: Model, pool: PagePool, n_ctx: int) -> None:
        self.ids: list[int] = []
        self.n_ctx = n_ctx
        self.max_rows = model.max_rows
        self.pages: list[int] = []
        self.marks: list[int] = []
        self._model, self._pool, self._groups = model, pool, model.groups
        self._table = np.zeros(n_slots(self._groups, n_ctx), np.int64)  # addresses, for the kernels
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
        for slot in self._slots_to_copy():
            own = self._pool.copy(self.pages[slot])
            self._pool.free(self.pages[slot])
            self._set_page(slot, own)
        for slot in self._slots_to_take(end):
            self.pages.append(NO_PAGE)
            self._set_page(slot, self._pool.take(slot % len(self._groups)))
        return Part(tokens, first, self._table_address, rows_out)

    # --- pages --------------------------------------------------------------------------------

    def n_bytes_to_take(self, n: int) -> int:
        """Bytes of the pages that reading n more tokens takes from the pool."""
        slots = (*self._slots_to_copy(), *self._slots_to_take(len(self.ids) + n))
        return sum(self._pool.page_bytes[slot % len(self._groups)] for slot in slots)

    def restart_at(self, n: int) -> int:
        """The last place up to n from which the chat can go on: whose windows are still there."""
        return restart_at(self._groups, [page != NO_PAGE for page in list(self.pages)], n)

    def truncate_to(self, n: int) -> None:
        """Forget all tokens after the first n, from where it can go on."""
        del self.ids[n:]
        while len(self.pages) > n_slots(self._groups, n):
            self._pool.free(self.pages.pop())
        self.marks = [mark for mark in self.marks if mark <= n]

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
        """Another chat with the first n tokens of this one, in the same pages. n: from where it can
        go on.
        """
        chat = Chat(self._model, self._pool, self.n_ctx)
        pages = self.pages[: n_slots(self._groups, n)]
        self._pool.share_list(pages)
        chat.adopt(self.ids[:n], pages)
        chat.marks = [mark for mark in self.marks if mark <= n]
        return chat

    def adopt(self, ids: Sequence[int], pages: Sequence[int]) -> None:
        """Fill an empty chat with tokens and the pages that hold them, now this chat's own."""
        assert not self.ids and not self.pages, "the chat is not empty"
        self.ids, self.pages = list(ids), list(pages)
        assert self.restart_at(len(ids)) == len(ids), "the next token needs pages that are missing"
        for slot, page in enumerate(pages):
            self._set_page(slot, page)

    def kept_pages(self) -> list[int]:
        """Its list of pages, but for what lies in no window of it or its marks: what is stored."""
        pages = self.pages[: n_slots(self._groups, len(self.ids))]
        for slot in self.spare_slots(MOST_MARKS):
            pages[slot] = NO_PAGE
        return pages

    def mark(self, place: int) -> None:
        """Note that somebody may want to go on from here again; the latest marks count most."""
        if place:
            others = [mark for mark in self.marks if mark != place]
            self.marks = [*others[1 - MOST_MARKS :], place]

    def spare_slots(self, n_marks: int) -> list[int]:
        """Slots of pages outside all windows: that of what is read next, and those of the latest
        n_marks marks.
        """
        n_groups = len(self._groups)
        places = self.marks[-n_marks:] if n_marks else []
        found = []
        for g, group in enumerate(self._groups):
            if group.has_window:
                spare = set(range(group.first_page(len(self.ids))))
                for place in places:
                    spare.difference_update(range(group.first_page(place), n_pages(place)))
                found += [slot for i in spare if self.pages[slot := i * n_groups + g] != NO_PAGE]
        return sorted(found)

    def drop(self, slot: int) -> None:
        """Give up a page that is spare."""
        self._pool.free(self.pages[slot])
        self._set_page(slot, NO_PAGE)

    def _slots_to_take(self, end: int) -> range:
        """Slots of the pages that are missing to hold `end` tokens."""
        return range(len(self.pages), n_slots(self._groups, end))

    def _slots_to_copy(self) -> list[int]:
        """Slots of the pages that the next token goes to and that another chat uses too."""
        first = n_slots(self._groups, len(self.ids) // PAGE * PAGE)
        until = min(first + len(self._groups), len(self.pages))
        return [slot for slot in range(first, until) if self._pool.is_shared(self.pages[slot])]

    def _set_page(self, slot: int, page: int) -> None:
        self.pages[slot] = page
        self._table[slot] = 0 if page == NO_PAGE else self._pool.address(page)


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
