"""Both engines' verb on our side: what is in the cache when, and what a measurement leaves."""

from __future__ import annotations

import numpy as np

from engine import Engine
from engine.bench.contestant import Ours, tokens_at_most


def test_a_measurement_leaves_what_it_has_read(engine: Engine) -> None:
    ours = Ours(engine)
    times = ours.measure(depth=70, n_prompt=5, n_decode=3)
    assert times.prefill_s > 0
    assert times.decode_s > 0
    assert len(ours._chat.ids) == 78


def test_depths_go_on_from_each_other_and_end_in_the_same_state(engine: Engine) -> None:
    """After a deeper or a shallower one, the cache is what reading it afresh makes of it."""
    fresh, used = Ours(engine), Ours(engine)
    used.measure(100, 0, 4)
    used.measure(20, 6, 4)
    for depth in (70, 130):
        used.measure(depth, 0, 2)
    fresh.measure(130, 0, 2)
    assert used._chat.ids == fresh._chat.ids
    np.testing.assert_allclose(used._chat.next(5), fresh._chat.next(5), rtol=1e-3, atol=1e-3)


def test_nothing_to_read_takes_no_time(engine: Engine) -> None:
    assert Ours(engine).measure(0, 0, 1).prefill_s < 0.01


def test_chats_decode_together(engine: Engine) -> None:
    ours = Ours(engine)
    assert ours.decode_together(2, 3) > 0
    assert [len(chat.ids) for chat in ours._others] == [67, 67]
    assert ours.decode_together(1, 4) > 0  # of those that are there
    assert [len(chat.ids) for chat in ours._others] == [68, 67]


def test_the_cache_that_measurements_need() -> None:
    assert tokens_at_most([], [], 32) == 32
    assert tokens_at_most([0, 4096], [], 32) == 4128
    assert tokens_at_most([100], [2, 8], 32) == 8 * (64 + 32 + 64)
