"""The cache of chats of which some layers look back on a window only: what they give up, and from
where prompts still go on.
"""

from __future__ import annotations

import pytest

from engine.cache.chat import MOST_MARKS
from engine.cache.kv_cache import NO_PAGE
from engine.kernels.attention import ALL
from engine.kernels.kv_page import PAGE, n_pages
from tests.paper_cache import N_CTX, Cache, n_held, text, turns_of
from tests.paper_model import holds

pytestmark = pytest.mark.usefixtures("small_steps")

WINDOW = PAGE + PAGE // 2  # of the second group of layers, in what follows


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
