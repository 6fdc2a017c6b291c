"""The cache of chats in any order of events: what chats hold is what was read, and every page is
accounted for after each of them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.cache.chat import MOST_MARKS, Chat, next_of
from engine.cache.kv_cache import NO_PAGE
from engine.cache.resident_chats import NoRoom, RoomComing, least_bytes
from engine.kernels.attention import ALL
from engine.kernels.kv_page import PAGE
from engine.model.layer_groups import n_slots
from engine.model.model import Cancelled
from tests.paper_cache import N_CTX, Cache, text
from tests.paper_model import PAGE_BYTES, PaperModel, holds

pytestmark = pytest.mark.usefixtures("small_steps")


class EverythingAtOnce(RuleBasedStateMachine):
    """Requests that come, are read in pieces, cancelled, paused, taken up again, and end, over too
    few pages for all of them.
    """

    windows: tuple[int, ...] = (ALL,)

    def __init__(self) -> None:
        super().__init__()
        self.c = Cache(self.most_pages(), self.windows)
        self.running: list[tuple[list[int], Chat]] = []
        self.paused: list[list[int]] = []
        self.known: list[list[int]] = [text(3 * PAGE, n) for n in range(3)]

    def most_pages(self) -> int:
        """Of the pool: hardly more than one full chat needs."""
        return least_bytes(PaperModel(*self.windows), N_CTX) // PAGE_BYTES  # type: ignore[arg-type]

    @rule(
        base=st.integers(0, 50),
        keep=st.integers(0, 4 * PAGE),
        more=st.lists(st.integers(1, 3), min_size=1, max_size=90),
    )
    def submit(self, base: int, keep: int, more: list[int]) -> None:
        """A prompt that shares a beginning with one that was there before."""
        ids = [*self.known[base % len(self.known)][:keep], *more]
        self.known = [*self.known[-10:], ids]
        self.open(ids)

    def open(self, ids: list[int]) -> None:
        chat = self.c.cache.open(ids)
        assert chat.ids == ids[: len(chat.ids)]
        assert len(chat.ids) < len(ids)
        self.running.append((ids, chat))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9), n=st.integers(1, 2 * PAGE), cancel=st.integers(0, 400))
    def step(self, which: int, n: int, cancel: int) -> None:
        """A chunk of a prompt; sometimes it is left in the middle."""
        ids, chat = self.running[which % len(self.running)]
        chunk = ids[len(chat.ids) : len(chat.ids) + n]
        if not chunk:
            return
        try:
            if self.c.cache.load(chat, ids) or not (chunk := ids[len(chat.ids) :][:n]):
                return
            self.c.cache.make_room([chat], len(chunk), len(ids))
        except RoomComing:
            assert not all(write.done for write in self.c.store.writes)
            return
        except NoRoom:
            is_whole = self.c.pool.limit_bytes == self.most_pages() * PAGE_BYTES
            assert len(self.running) > 1 or not is_whole, "a chat alone always has room"
            self.pause(len(self.running) - 1)
            return
        self.c.model.cancel_after = cancel if cancel < len(chunk) else None
        before = list(chat.ids)
        try:
            chat.prefill(chunk, want_logits=False)
        except Cancelled:
            assert chat.ids == before

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9), token=st.integers(1, 3))
    def decode(self, which: int, token: int) -> None:
        """The next token of every chat whose prompt is read."""
        ready = [(ids, chat) for ids, chat in self.running if len(ids) - len(chat.ids) == 1]
        chats = [chat for ids, chat in ready if len(ids) < N_CTX]
        if not chats:
            return
        try:
            self.c.cache.make_room(chats, 1, N_CTX)
        except RoomComing:
            return
        except NoRoom:
            self.pause(which)
            return
        next_of(chats, [ids[-1] for ids, chat in ready if chat in chats])
        for ids, chat in ready:
            if chat in chats:
                ids.append(token)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def pause(self, which: int) -> None:
        ids, chat = self.running.pop(which % len(self.running))
        self.c.cache.close(chat)
        self.paused.append(ids)

    @precondition(lambda self: self.paused)
    @rule(which=st.integers(0, 9))
    def resume(self, which: int) -> None:
        self.open(self.paused.pop(which % len(self.paused)))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def end(self, which: int) -> None:
        _, chat = self.running.pop(which % len(self.running))
        self.c.cache.close(chat)

    @rule(n_bytes=st.integers(1, 4000))
    def evict(self, n_bytes: int) -> None:
        self.c.cache.evict(n_bytes)

    @rule(n_marks=st.sampled_from([0, 2, MOST_MARKS]))
    def drop_spare(self, n_marks: int) -> None:
        """All pages outside windows, as where another chat needs them."""
        self.c.drop_spare(n_marks)

    @rule(less=st.integers(0, 6))
    def pressure(self, less: int) -> None:
        self.c.pool.limit_bytes = (self.most_pages() - less) * PAGE_BYTES

    @rule(timeout_s=st.sampled_from([0, 10]))
    def save(self, timeout_s: float) -> None:
        self.c.cache.save(timeout_s)

    @rule(is_slow=st.booleans())
    def disk_speed(self, is_slow: bool) -> None:
        self.c.store.is_slow = is_slow

    @rule()
    def written(self) -> None:
        """What was being written is on the disk."""
        for write in self.c.store.writes:
            write.finish()

    @rule()
    def give_up(self) -> None:
        self.c.cache.evict(1, at_once=True)

    @rule(damaged=st.booleans())
    def disk(self, damaged: bool) -> None:
        self.c.store.damaged = damaged

    @invariant()
    def every_chat_holds_its_tokens(self) -> None:
        for chat in self.c.cache:
            assert holds(chat, chat.ids)
            assert len(chat.pages) >= n_slots(self.c.model.groups, len(chat.ids))
            table = chat._table[: len(chat.pages)].tolist()
            address = self.c.pool.address
            assert table == [0 if page == NO_PAGE else address(page) for page in chat.pages]

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        pool = self.c.pool
        lists = [chat.pages for chat in self.c.cache]
        lists += [loading.pages for loading in self.c.cache._loading.values()]
        lists.append(list(self.c.cache._chats.writer.pages))
        users = Counter(page for pages in lists for page in pages if page != NO_PAGE)
        assert [users[page] for page in range(len(pool._n_users))] == pool._n_users
        free = [page for group in pool._free for page in group]
        assert sorted(free) == [page for page in range(len(pool._n_users)) if not users[page]]
        assert pool.used_bytes == len(users) * PAGE_BYTES

    @invariant()
    def what_is_stored_is_what_was_read(self) -> None:
        n_groups = len(self.c.model.groups)
        for ids, pages in self.c.store.chats.items():
            for slot, page in enumerate(pages):
                first = slot // n_groups * PAGE
                expected = ids[first : first + PAGE]
                assert page is None or tuple(np.frombuffer(page, np.int32)[: len(expected)]) == (
                    expected
                )

    @invariant()
    def running_chats_are_never_taken_away(self) -> None:
        assert [c for _, c in self.running if c not in self.c.cache._chats.busy] == []


class EverythingWithWindows(EverythingAtOnce):
    """The same where some layers have a window."""

    windows = (ALL, PAGE + PAGE // 2)


class EverythingInWindows(EverythingAtOnce):
    """The same where all layers have one."""

    windows = (PAGE // 2,)


_MANY = settings(max_examples=60, stateful_step_count=60, deadline=None)
EverythingAtOnce.TestCase.settings = _MANY
EverythingWithWindows.TestCase.settings = _MANY
EverythingInWindows.TestCase.settings = _MANY
TestEverythingAtOnce = EverythingAtOnce.TestCase
TestEverythingWithWindows = EverythingWithWindows.TestCase
TestEverythingInWindows = EverythingInWindows.TestCase
