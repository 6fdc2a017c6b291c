"""Measured speeds, and what they make of work to come."""

from __future__ import annotations

import pytest

from engine.requests.speed import Speed


def test_nothing_is_said_before_anything_was_measured() -> None:
    speed = Speed()
    assert (speed.prefill_s(100), speed.decode_s(100), speed.work_s(1, 1)) == (None, None, None)
    speed.note_decode(1, 0.1)
    assert speed.decode_s(20) == pytest.approx(2)
    assert speed.prefill_s(20) == pytest.approx(2)  # at least as fast as that


def test_recent_speeds_count_more() -> None:
    speed = Speed()
    for _ in range(100):
        speed.note_prefill(256, 1.0)
    assert speed.prefill_s(512) == pytest.approx(2)
    assert speed.prefill_tokens_in(0.5) == 128
    for _ in range(30):
        speed.note_prefill(256, 2.0)
    assert speed.prefill_s(128) == pytest.approx(1, rel=0.05)


def test_replies_are_expected_to_be_as_others_were() -> None:
    speed = Speed()
    for _ in range(100):
        speed.note_reply(40)
    assert speed.usual_reply(1000) == 40
    assert speed.usual_reply(10) == 10
    assert speed.usual_reply(1000, n_decoded=30) == 10
    assert speed.usual_reply(1000, n_decoded=500) == 10  # it may end any time
