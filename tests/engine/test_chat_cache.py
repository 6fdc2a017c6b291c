"""The cache of chats: what a prompt goes on from, who leaves, and every page always accounted for.

With a model that writes token ids into the pages, so that what a chat holds can be read.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine import chat_writer
from engine.chat import Chat, n_pages, next_of
from engine.chat_cache import ChatCache, NoRoom, RoomComing, short_pages
from engine.common_prefix import count_common
from engine.kernels.kv_page import PAGE
from engine.kv_cache import PagePool
from engine.model import Cancelled
from tests.paper_model import PaperModel, written

N_CTX = 10 * PAGE
N_SHORT = PAGE


@dataclass(frozen=True)
class Found:
    ids: tuple[int, ...]
    n_common: int

    @property
    def n_stored(self) -> int:
        return len(self.ids)


class Write:
    """A chat on its way to a DictStore, where it arrives when the test says so."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish: Callable[[], None] | None = finish
        self.done = False

    def finish(self) -> None:
        if self._finish:
            self._finish()
            self._finish = None
        self.done = True

    def wait(self, timeout_s: float) -> bool:
        if timeout_s > 0:
            self.finish()
        return self.done

    def cancel(self) -> None:
        self._finish = None


class DictStore:
    """A store in memory. damaged: loading fails, as with a broken file. is_slow: what is written
    waits in `writes` for the test to finish it.
    """

    def __init__(self) -> None:
        self.chats: dict[tuple[int, ...], list[bytes]] = {}
        self.damaged = False
        self.is_slow = False
        self.writes: list[Write] = []

    def longest_prefix(self, ids: Sequence[int]) -> Found | None:
        found = [Found(chat, count_common(chat, tuple(ids))) for chat in self.chats]
        best = max(found, key=lambda f: f.n_common, default=None)
        return best if best and best.n_common else None

    def load(self, match: Found, pages: Sequence[memoryview], first: int = 0) -> bool:
        for page, content in zip(pages, self.chats[match.ids][first:], strict=False):
            page[:] = bytes(len(page)) if self.damaged else content
        return not self.damaged

    def store(self, ids: Sequence[int], pages: Sequence[memoryview]) -> Write | None:
        assert len(pages) == n_pages(len(ids))
        key = tuple(ids)
        if any(chat[: len(key)] == key for chat in self.chats):
            return None

        def finish() -> None:
            self.chats[key] = [bytes(page) for page in pages]

        self.writes.append(Write(finish))
        if not self.is_slow:
            self.writes[-1].finish()
        return self.writes[-1]


class Cache:
    """A cache over a paper model, and requests that run on it."""

    def __init__(self, pages: int = 30) -> None:
        self.model = PaperModel()
        self.pool = PagePool(pages, self.model.page_bytes)
        self.store = DictStore()
        new_chat = lambda: Chat(self.model, self.pool, N_CTX)  # type: ignore[arg-type]  # noqa: E731
        self.cache = ChatCache(new_chat, self.pool, N_SHORT, self.store)

    def read(self, chat: Chat, ids: Sequence[int]) -> None:
        """Read the rest of a prompt."""
        while len(chat.ids) < len(ids):
            chunk = list(ids[len(chat.ids) : len(chat.ids) + self.model.max_rows])
            with contextlib.suppress(RoomComing):
                self.cache.make_room([chat], len(chunk), len(ids))
                chat.prefill(chunk, want_logits=False)

    def load(self, chat: Chat, ids: Sequence[int]) -> int:
        """Read all that the store has of a prompt. Returns how many tokens are cached."""
        while True:
            with contextlib.suppress(RoomComing):
                if not self.cache.load(chat, ids):
                    return len(chat.ids)

    def request(self, ids: Sequence[int]) -> int:
        """A request from its beginning to its end. Returns how many tokens were cached."""
        chat = self.cache.open(ids)
        n_cached = self.load(chat, ids)
        self.read(chat, ids)
        assert written(chat) == list(ids)
        self.cache.close(chat)
        return n_cached


def text(n: int, of: int = 0) -> list[int]:
    """n tokens of one chat."""
    return [1000 * of + i % 999 for i in range(1, n + 1)]


def test_a_chat_is_found_again_after_others() -> None:
    cache = Cache()
    long = text(400, 1)
    assert cache.request(long) == 0
    for other in (2, 3, 4):
        cache.request(text(100, other))
    assert cache.request([*long, 7, 8]) == 400
    assert cache.request(text(100, 3)) == 99  # the last one is always read


def test_the_longest_beginning_is_chosen_and_shared() -> None:
    cache = Cache()
    first, second = [*text(200), *text(100, 1)], [*text(200), *text(150, 2)]
    cache.request(first)
    assert cache.request(second) == 200
    used = cache.pool.n_used
    assert used < n_pages(300) + n_pages(350)
    assert used == n_pages(300) + n_pages(350) - 200 // PAGE
    assert cache.request([*second, 1]) == 350
    assert cache.request([*first, 1]) == 300


def test_an_edit_keeps_what_both_chats_hold() -> None:
    cache = Cache()
    before = text(300)
    edited = [*before[:150], *text(100, 5)]
    cache.request(before)
    assert cache.request(edited) == 150
    [parting] = [cache.cache.parting([*before[:170], 9, 9, 9])]
    assert parting is not None
    assert parting.at == 170
    assert (parting.cached_ids, parting.prompt_ids) == (
        before[162:178],
        [*before[162:170], 9, 9, 9],
    )
    assert cache.cache.parting([*before, 9]) is None  # goes on
    assert cache.cache.parting(text(300, 7)) is None  # another chat


def test_short_chats_never_push_a_long_one_out() -> None:
    cache = Cache(n_pages(N_CTX) + short_pages(N_SHORT))
    long = text(N_CTX)
    cache.request(long)
    for title in range(1, 20):
        cache.request(text(N_SHORT - 1, title))
    assert cache.request(long) == N_CTX - 1
    assert not cache.store.chats


def test_the_least_recently_used_leaves_for_the_store_and_comes_back() -> None:
    cache = Cache(20)
    first, second, third = text(400, 1), text(400, 2), text(400, 3)
    cache.request(first)
    cache.request(second)
    cache.request(third)
    assert list(cache.store.chats) == [tuple(first)]
    assert cache.request(first) == 399
    cache.store.damaged = True
    assert cache.request(second) == 0  # it had to leave, and cannot be read


def test_a_chat_stays_until_it_is_stored_and_others_go_on() -> None:
    """Short of pages, with a disk that takes its time."""
    cache = Cache(20)
    cache.store.is_slow = True
    first, second, reply, prompt = text(400, 1), text(400, 2), text(10, 3), text(400, 4)
    cache.request(first)
    cache.request(second)
    writer, reader = cache.cache.open(reply), cache.cache.open(prompt)
    cache.read(writer, reply)
    n_free = cache.pool.n_free
    while cache.pool.n_free > 4:  # so many are left to the other chat
        cache.cache.make_room([reader], PAGE, 400)
        reader.prefill(prompt[len(reader.ids) :][:PAGE], want_logits=False)
    assert n_free - 4 == len(reader.pages) > 0
    for _ in range(3):
        with pytest.raises(RoomComing):
            cache.cache.make_room([reader], PAGE, 400)
    assert len(cache.store.writes) == 1
    assert cache.cache.longest_prefix(first)[1] == 399  # still there, and may be shared or gone on
    for i in range(PAGE):
        cache.cache.make_room([writer], 1, 400)
        next_of([writer], [i])
    cache.store.writes[0].finish()
    cache.read(reader, prompt)
    assert [*cache.store.chats] == [tuple(first)]
    assert cache.cache.longest_prefix(first)[1] == 0
    assert written(writer) == [*reply, *range(PAGE)]
    assert written(reader) == prompt


def test_a_chat_that_goes_on_while_it_is_stored_is_stored_as_it_was() -> None:
    cache = Cache(20)
    cache.store.is_slow = True
    first = text(350, 1)
    cache.request(first)
    cache.request(text(400, 2))
    assert cache.cache.evict(1) == 0
    assert cache.request([*first, *text(40, 3)]) == 350  # in memory: nothing is loaded
    cache.store.writes[0].finish()
    assert np.frombuffer(b"".join(cache.store.chats[tuple(first)]), np.int32)[350] == 0
    assert cache.cache.evict(1 << 40) == cache.pool.page_bytes  # its last page, as it was
    assert len(cache.store.writes) == 2  # the other one is the least recently used now


def test_where_memory_is_short_at_once_a_chat_leaves_without_being_stored() -> None:
    cache = Cache(20)
    cache.store.is_slow = True
    cache.request(text(400, 1))
    assert cache.cache.evict(1 << 40) == 0
    assert cache.cache.evict(1 << 40, at_once=True) > 0
    assert cache.pool.n_used == 0
    cache.store.writes[0].finish()
    assert not cache.store.chats


def test_a_disk_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(20)
    cache.store.is_slow = True
    cache.request(text(400, 1))
    assert cache.cache.evict(1) == 0
    monkeypatch.setattr(chat_writer, "_GIVE_UP_S", 0.0)
    assert cache.cache.evict(1) > 0
    cache.store.writes[0].finish()
    assert not cache.store.chats


def test_storing_at_the_end_is_bounded_and_begins_with_the_last_used() -> None:
    cache = Cache(40)
    for n in (1, 2, 3):
        cache.request(text(400, n))
    cache.store.is_slow = True
    cache.cache.save(0)
    assert not cache.store.chats
    cache.cache.save(1)
    assert [ids[0] for ids in cache.store.chats] == [3001, 2001, 1001]


def test_nearly_equal_chats_are_stored_once() -> None:
    cache = Cache()
    cache.request(text(400))
    cache.request([*text(390), 1, 2, 3])  # 10 tokens are not worth a second chat
    assert len(list(cache.cache)) == 1
    cache.request([*text(200), *text(200, 1)])
    cache.cache.save(10)
    assert len(cache.store.chats) == 2
    assert cache.cache.evict(1 << 40) > 0
    assert cache.pool.n_used == 0


def test_too_many_busy_chats_have_no_room() -> None:
    cache = Cache(10)
    one, other = cache.cache.open(text(400)), cache.cache.open(text(400, 1))
    cache.read(one, text(400))
    with pytest.raises(NoRoom):
        cache.read(other, text(400, 1))
    cache.cache.close(one)
    cache.read(other, text(400, 1))
    assert written(other) == text(400, 1)


def test_chats_that_share_a_page_can_decode_together() -> None:
    cache = Cache()
    cache.request(text(290))
    chats = [cache.cache.open([*text(190), 5, n]) for n in range(3)]
    cache.cache.make_room(chats, 1, 200)
    next_of(chats, [1, 2, 3])
    for n, chat in enumerate(chats):
        assert written(chat) == chat.ids == [*text(190), n + 1]
    assert cache.request([*text(290), 1]) == 290


class EverythingAtOnce(RuleBasedStateMachine):
    """Requests that come, are read in pieces, cancelled, paused, taken up again, and end, over too
    few pages for all of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.c = Cache(14)
        self.running: list[tuple[list[int], Chat]] = []
        self.paused: list[list[int]] = []
        self.known: list[list[int]] = [text(3 * PAGE, n) for n in range(3)]

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
            if self.c.cache.load(chat, ids):
                return
            self.c.cache.make_room([chat], len(chunk), len(ids))
        except RoomComing:
            assert not all(write.done for write in self.c.store.writes)
            return
        except NoRoom:
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

    @rule(limit=st.integers(8, 14))
    def pressure(self, limit: int) -> None:
        self.c.pool.limit = limit

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
            assert written(chat) == chat.ids
            assert len(chat.pages) >= n_pages(len(chat.ids))
            table = chat._table[: len(chat.pages)].tolist()
            assert table == [self.c.pool.address(page) for page in chat.pages]

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        pool = self.c.pool
        users = Counter(page for chat in self.c.cache for page in chat.pages)
        users.update(self.c.cache._writer.pages)
        assert [users[page] for page in range(pool.n_pages)] == pool._n_users
        assert sorted(pool._free) == [page for page in range(pool.n_pages) if not users[page]]
        assert pool.n_used == len(users)

    @invariant()
    def what_is_stored_is_what_was_read(self) -> None:
        for ids, pages in self.c.store.chats.items():
            assert [*np.frombuffer(b"".join(p[: 4 * PAGE] for p in pages), np.int32)][
                : len(ids)
            ] == [*ids]

    @invariant()
    def running_chats_are_never_taken_away(self) -> None:
        assert [c for _, c in self.running if c not in self.c.cache._busy] == []


EverythingAtOnce.TestCase.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None
)
TestEverythingAtOnce = EverythingAtOnce.TestCase
