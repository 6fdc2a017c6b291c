"""The cache of chats: what a prompt goes on from, who leaves, and every page always accounted for.

With a model that writes token ids into the pages, so that what a chat holds can be read: one whose
layers look back on everything, or have windows, or both.
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

from engine.cache import chat_loader, chat_writer
from engine.cache.chat import MOST_MARKS, Chat, next_of
from engine.cache.chat_cache import ChatCache
from engine.cache.chat_file import Views
from engine.cache.common_prefix import count_common
from engine.cache.kv_cache import NO_PAGE, PagePool
from engine.cache.resident_chats import NoRoom, RoomComing, least_bytes, short_bytes
from engine.cache.spare_pages import drop_spare
from engine.kernels.attention import ALL
from engine.kernels.kv_page import PAGE, n_pages
from engine.model.layer_groups import Groups, n_slots, restart_at
from engine.model.model import Cancelled
from tests.paper_model import PAGE_BYTES, PaperModel, holds

N_CTX = 10 * PAGE
N_SHORT = PAGE


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded comes two pages at a time."""
    monkeypatch.setattr(chat_loader, "_STEP_BYTES", 2 * PAGE_BYTES)


@dataclass(frozen=True)
class Found:
    ids: tuple[int, ...]
    n_common: int
    held: tuple[bool, ...]

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
    """A store in memory, of any size. damaged: loading fails, as with a broken file. is_slow: what
    is written waits in `writes` for the test to finish it.
    """

    def __init__(self, groups: Groups) -> None:
        self.chats: dict[tuple[int, ...], list[bytes | None]] = {}
        self.damaged = False
        self.is_slow = False
        self.writes: list[Write] = []
        self.limit_bytes = 1 << 40
        self.groups = groups

    def longest_prefix(self, ids: Sequence[int]) -> Found | None:
        found = []
        for chat, pages in self.chats.items():
            held = [page is not None for page in pages]
            n = restart_at(self.groups, held, count_common(chat, tuple(ids)))
            found.append(Found(chat, n, tuple(held[: n_slots(self.groups, n)])))
        best = max(found, key=lambda f: f.n_common, default=None)
        return best if best and best.n_common else None

    def load(self, match: Found, pages: Views, first: int = 0) -> bool:
        for page, content in zip(pages, self.chats[match.ids][first:], strict=False):
            assert (page is None) == (content is None)
            if page is not None and content is not None:
                page[:] = bytes(len(page)) if self.damaged else content
        return not self.damaged

    def store(self, ids: Sequence[int], pages: Views) -> Write | None:
        assert len(pages) == n_slots(self.groups, len(ids))
        held = [page is not None for page in pages]
        assert restart_at(self.groups, held, len(ids)) == len(ids)
        match = self.longest_prefix(ids)
        if match and match.n_common == len(ids):
            return None

        def finish() -> None:
            content = [None if page is None else bytes(page) for page in pages]
            self.chats[tuple(ids)] = content

        ids = list(ids)
        self.writes.append(Write(finish))
        if not self.is_slow:
            self.writes[-1].finish()
        return self.writes[-1]


class Cache:
    """A cache over a paper model, and requests that run on it. pages: all groups' together."""

    def __init__(self, pages: int = 30, windows: tuple[int, ...] = (ALL,)) -> None:
        self.model = PaperModel(*windows)
        self.pool = PagePool(self.model.page_bytes, pages * PAGE_BYTES)
        self.store = DictStore(self.model.groups)
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

    def evict_all(self) -> None:
        """First they are stored, then they leave."""
        while self.cache.evict(1 << 40) or self.pool.used_bytes:
            pass

    def n_free(self) -> int:
        """Pages."""
        return self.pool.free_bytes // PAGE_BYTES

    def drop_spare(self, n_marks: int) -> None:
        """All pages that are."""
        drop_spare(self.pool, self.cache, n_marks, 0)

    def request(self, ids: Sequence[int]) -> int:
        """A request from its beginning to its end. Returns how many tokens were cached."""
        chat = self.cache.open(ids)
        n_cached = self.load(chat, ids)
        self.read(chat, ids)
        assert holds(chat, ids)
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
    used = cache.pool.used_bytes // PAGE_BYTES
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
    cache = Cache(n_pages(N_CTX) + short_bytes((PAGE_BYTES,), N_SHORT) // PAGE_BYTES)
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
    n_free = cache.n_free()
    while cache.n_free() > 4:  # so many are left to the other chat
        cache.cache.make_room([reader], PAGE, 400)
        reader.prefill(prompt[len(reader.ids) :][:PAGE], want_logits=False)
    assert n_free - 4 == len(reader.pages) > 0
    for _ in range(3):
        with pytest.raises(RoomComing):
            cache.cache.make_room([reader], PAGE, 400)
    assert len(cache.store.writes) == 1
    assert cache.cache.longest_prefix(first)[1] == 399  # still there, and may be shared or gone on
    for i in range(1, PAGE + 1):
        cache.cache.make_room([writer], 1, 400)
        next_of([writer], [i])
    cache.store.writes[0].finish()
    cache.read(reader, prompt)
    assert [*cache.store.chats] == [tuple(first)]
    assert cache.cache.longest_prefix(first)[1] == 0
    assert holds(writer, [*reply, *range(1, PAGE + 1)])
    assert holds(reader, prompt)


def test_a_chat_that_goes_on_while_it_is_stored_is_stored_as_it_was() -> None:
    cache = Cache(20)
    cache.store.is_slow = True
    first = text(350, 1)
    cache.request(first)
    cache.request(text(400, 2))
    assert cache.cache.evict(1) == 0
    assert cache.request([*first, *text(40, 3)]) == 350  # in memory: nothing is loaded
    cache.store.writes[0].finish()
    last = cache.store.chats[tuple(first)][-1]
    assert last is not None
    assert np.frombuffer(last, np.int32)[350 % PAGE] == 0  # not the token that came later
    assert cache.cache.evict(1 << 40) == PAGE_BYTES  # its last page, as it was
    assert len(cache.store.writes) == 2  # the other one is the least recently used now


def test_where_memory_is_short_at_once_a_chat_leaves_without_being_stored() -> None:
    cache = Cache(20)
    cache.store.is_slow = True
    cache.request(text(400, 1))
    assert cache.cache.evict(1 << 40) == 0
    assert cache.cache.evict(1 << 40, at_once=True) > 0
    assert cache.pool.used_bytes == 0
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


def test_what_was_stored_in_time_is_not_given_up_where_nobody_asked_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(20)
    cache.store.is_slow = True
    cache.request(text(400, 1))
    assert cache.cache.evict(1) == 0
    cache.store.writes[0].finish()
    monkeypatch.setattr(chat_writer, "_GIVE_UP_S", 0.0)
    assert cache.cache.evict(1) > 0
    assert len(cache.store.chats) == 1
    assert not caplog.records


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
    assert cache.pool.used_bytes == 0


def test_too_many_busy_chats_have_no_room() -> None:
    cache = Cache(10)
    one, other = cache.cache.open(text(400)), cache.cache.open(text(400, 1))
    cache.read(one, text(400))
    with pytest.raises(NoRoom):
        cache.read(other, text(400, 1))
    cache.cache.close(one)
    cache.read(other, text(400, 1))
    assert holds(other, text(400, 1))


def test_chats_that_share_a_page_can_decode_together() -> None:
    cache = Cache()
    cache.request(text(290))
    chats = [cache.cache.open([*text(190), 5, n]) for n in range(3)]
    cache.cache.make_room(chats, 1, 200)
    next_of(chats, [1, 2, 3])
    for n, chat in enumerate(chats):
        assert holds(chat, [*text(190), n + 1])
    assert cache.request([*text(290), 1]) == 290


WINDOW = PAGE + PAGE // 2  # of the second group of layers, in what follows


def turns_of(cache: Cache, *turns: int) -> list[int]:
    """A chat of so many turns, each of so many tokens, read in a request each."""
    ids: list[int] = []
    for i, n in enumerate(turns):
        ids += text(n, i + 1)
        cache.request(ids)
    return ids


def n_held(chat: Chat, group: int) -> int:
    return sum(page != NO_PAGE for page in chat.pages[group::2])


def test_with_plenty_of_memory_a_chat_goes_on_from_everywhere() -> None:
    cache = Cache(60, (ALL, WINDOW))
    ids = turns_of(cache, 300, 200)
    for n in (499, 400, 300, 250, 100, 1):
        assert cache.request([*ids[:n], 7, 7]) == n


def test_pages_outside_windows_leave_before_any_chat() -> None:
    cache = Cache(26, (ALL, WINDOW))
    first = turns_of(cache, 600)  # 10 pages of each group
    assert n_held(*cache.cache, 1) == 10
    cache.request(text(300, 5))
    chats = list(cache.cache)
    assert [len(chat.ids) for chat in chats] == [300, 600]
    assert not cache.store.chats
    assert n_held(chats[1], 0) == 10
    assert 3 <= n_held(chats[1], 1) < 10
    assert cache.request([*first, 7]) == 600


def test_a_chat_takes_no_more_than_its_windows_where_memory_is_short() -> None:
    cache = Cache(10 + 6, (ALL, WINDOW))
    chat = cache.cache.open(text(N_CTX))
    cache.read(chat, text(N_CTX))
    assert n_held(chat, 0) == 10
    assert n_held(chat, 1) <= 5  # 96 tokens and the 128 read last
    assert holds(chat, text(N_CTX))


def test_the_last_turn_is_edited_or_answered_again_where_memory_is_short() -> None:
    cache = Cache(2 * n_pages(540) + 10, (ALL, WINDOW))
    ids = turns_of(cache, 240, 200, 60)
    reply = text(40, 9)
    chat = cache.cache.open([*ids, *reply])
    cache.read(chat, [*ids, *reply])
    cache.cache.close(chat)
    cache.cache.evict(1)  # nothing is outside of what is wanted by now but old marks' windows
    [chat] = cache.cache
    assert chat.marks[-2:] == [500, 539]
    cache.drop_spare(2)
    assert n_held(chat, 1) < n_pages(540)
    assert cache.request([*ids, *text(30, 8)]) == 500
    assert not cache.store.chats


def test_an_older_turn_is_edited_from_its_beginning_or_an_earlier_one() -> None:
    cache = Cache(60, (ALL, WINDOW))
    ids = turns_of(cache, 100, 250, 250)
    [chat] = cache.cache
    assert {100, 350} < set(chat.marks)
    cache.drop_spare(MOST_MARKS)
    held = [page != NO_PAGE for page in chat.pages[1::2]]
    assert held == [1, 1, 0, 1, 1, 1, 0, 1, 1, 1]
    assert cache.request([*ids[:360], 7, 7]) == 360
    assert cache.request([*ids[:500], 7, 7]) == 6 * PAGE
    assert cache.request([*ids[:300], 7, 7]) == 300
    assert cache.request([*ids[:280], 7, 7]) == 2 * PAGE
    assert cache.request([*ids[:20], 7, 7]) == 20  # a window of the beginning is the beginning


def test_a_beginning_that_chats_share_is_found_from_the_second_time_on() -> None:
    """What is common to several chats is known when a second one begins alike, and kept then."""
    cache = Cache(80, (ALL, WINDOW))
    system = text(333)
    cache.request([*system, *text(200, 1)])
    cache.drop_spare(MOST_MARKS)
    assert cache.request([*system, *text(200, 2)]) < 300
    cache.drop_spare(MOST_MARKS)
    for other in (3, 4, 5):
        assert cache.request([*system, *text(200, other)]) == 333
        cache.drop_spare(MOST_MARKS)


def test_a_shared_page_stays_while_one_of_its_chats_needs_it() -> None:
    cache = Cache(60, (ALL, WINDOW))
    cache.request([*text(300), *text(200, 1)])
    cache.request([*text(300), *text(20, 2)])  # its window reaches back into the shared part
    before = cache.pool.used_bytes
    cache.drop_spare(0)
    long, short = sorted(cache.cache, key=lambda chat: -len(chat.ids))
    assert cache.pool.used_bytes < before
    assert holds(long, long.ids)
    assert holds(short, short.ids)
    assert cache.request([*text(300), *text(20, 2), 7]) == 320


def test_nobody_waits_for_a_chat_that_was_stored_at_once() -> None:
    cache = Cache(12)
    cache.request(text(PAGE + 1))
    reader, _ = (cache.cache.open(text(8 * PAGE, n)) for n in (1, 2))
    cache.cache.make_room([reader], 7 * PAGE, 8 * PAGE)  # does not raise RoomComing
    assert len(cache.store.chats) == 1
    assert cache.n_free() == 12


def test_chats_with_windows_come_back_from_the_store_with_their_marks() -> None:
    cache = Cache(60, (ALL, WINDOW))
    ids = turns_of(cache, 300, 250)
    cache.evict_all()
    assert cache.pool.used_bytes == 0
    [stored] = cache.store.chats.values()
    assert None in stored
    assert cache.request([*ids, 7]) == 550
    cache.evict_all()
    assert cache.request([*ids[:300], 8, 8]) == 300
    cache.evict_all()
    assert cache.request([*ids[:200], 9, 9]) < 200


def test_the_last_question_is_edited_after_its_chat_came_from_the_store() -> None:
    cache = Cache(60, (ALL, WINDOW))
    ids = turns_of(cache, 300)
    while cache.pool.used_bytes:
        cache.cache.evict(1 << 40)
    assert cache.request([*ids, *text(200, 2)]) == 300
    cache.drop_spare(2)
    [chat] = cache.cache
    assert n_held(chat, 1) < n_pages(500)
    assert cache.request([*ids, *text(30, 3)]) == 300


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
