"""The cache of chats: what a prompt goes on from, and who leaves, in small scenes. Windows are for
test_chat_cache_windows.py, everything at once for test_chat_cache_states.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from engine.cache import chat_writer
from engine.cache.chat import next_of
from engine.cache.resident_chats import NoRoom, RoomComing, short_bytes
from engine.kernels.kv_page import PAGE, n_pages
from tests.paper_cache import N_CTX, N_SHORT, Cache, text
from tests.paper_model import PAGE_BYTES, holds

pytestmark = pytest.mark.usefixtures("small_steps")


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


def test_nobody_waits_for_a_chat_that_was_stored_at_once() -> None:
    cache = Cache(12)
    cache.request(text(PAGE + 1))
    reader, _ = (cache.cache.open(text(8 * PAGE, n)) for n in (1, 2))
    cache.cache.make_room([reader], 7 * PAGE, 8 * PAGE)  # does not raise RoomComing
    assert len(cache.store.chats) == 1
    assert cache.n_free() == 12
