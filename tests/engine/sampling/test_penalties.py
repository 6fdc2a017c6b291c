"""Bias, repetition penalties and DRY, by hand, and DRY against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.penalties import Dry
from engine.sampling.sampling_params import SamplingParams


def letters(text: str) -> list[int]:
    return [ord(c) for c in text]


def byte(token_id: int) -> bytes:
    return bytes([token_id])


def penalties(text: str, **params: object) -> dict[str, float]:
    """What DRY takes from the logit of each letter after a text."""
    defaults = {"dry_multiplier": 1.0, "dry_base": 2.0, "dry_penalty_last_n": -1}
    dry = Dry(SamplingParams(**{**defaults, **params}), letters(text), byte)  # type: ignore[arg-type]
    logits = np.zeros(128, np.float32)
    dry.apply(logits)
    return {chr(i): -float(logits[i]) for i in np.flatnonzero(logits)}


def test_dry_by_hand() -> None:
    """multiplier * base^(length - allowed) for the letter that would go on with a repetition."""
    assert penalties("abcd abc") == {"d": 2.0}
    assert penalties("abcd abc", dry_multiplier=0.5, dry_base=3.0) == {"d": 1.5}
    assert penalties("abcd abc", dry_allowed_length=3) == {"d": 1.0}
    assert penalties("abcd abc", dry_allowed_length=4) == {}
    assert penalties("abcd xyz") == {}
    assert penalties("bcx abcy abc") == {"x": 1.0, "y": 4.0}  # " abc" and "bc"
    assert penalties("abcx abcx abc") == {"x": 64.0}  # "abcx abc", not only "abc"
    assert penalties("abcd abc", dry_multiplier=0.0) == {}
    assert penalties("abcd abc", dry_base=0.5) == {}


def test_dry_looks_back_so_far_only() -> None:
    assert penalties("abcd abc", dry_penalty_last_n=0) == {}
    assert penalties("abcd abc", dry_penalty_last_n=7) == {"d": 1.0}  # sees "bcd abc"
    assert penalties("abcd abc", dry_penalty_last_n=6) == {}
    assert penalties("abcd abc", dry_penalty_last_n=8) == {"d": 2.0}


def test_dry_stops_at_breakers() -> None:
    assert penalties("ab:cd ab:c") == {}  # one letter since the breaker
    assert penalties("ab:cde ab:cd") == {"e": 1.0}  # "cd", not "ab:cd"
    assert penalties("ab:cde ab:cd", dry_sequence_breakers=()) == {"e": 8.0}
    # A breaker of several tokens counts from where it is complete.
    assert penalties("xyENDab xyENDa", dry_sequence_breakers=("END",)) == {}
    assert penalties("xyENDabc xyENDab", dry_sequence_breakers=("END",)) == {"c": 1.0}
    # A token that holds a breaker is never penalised.
    assert penalties("abc: abc", dry_sequence_breakers=(":",)) == {}


def test_dry_takes_note_of_what_follows() -> None:
    params = SamplingParams(dry_multiplier=1.0, dry_base=2.0, dry_penalty_last_n=-1)
    dry = Dry(params, letters("abcd "), byte)
    for token_id in letters("abc"):
        dry.accept(token_id)
    logits = np.zeros(128, np.float32)
    dry.apply(logits)
    assert np.flatnonzero(logits).tolist() == letters("d")


def test_dry_never_overflows() -> None:
    found = penalties("a" * 2000, dry_base=1.75)
    assert 1e37 < found["a"] < np.inf
    assert penalties("a" * 2000, dry_base=1.0) == {"a": 1.0}


@given(st.text("abc:", min_size=1, max_size=40), st.integers(0, 4), st.sampled_from([-1, 5, 17]))
def test_dry_is_its_definition(text: str, allowed: int, last_n: int) -> None:
    """For each earlier place: how long is the text before it that also ends the whole text?"""
    window = text if last_n < 0 else text[-last_n:]
    unbroken = len(text) - 1 - text.rfind(":")
    expected: dict[str, float] = {}
    for place in range(1, len(window)):
        length = 0
        while length < min(place, unbroken) and window[place - 1 - length] == window[-1 - length]:
            length += 1
        follower = window[place]
        if length >= allowed and unbroken >= allowed and len(window) > allowed and follower != ":":
            expected[follower] = max(expected.get(follower, 0.0), 2.0 ** (length - allowed))
    found = penalties(
        text, dry_allowed_length=allowed, dry_penalty_last_n=last_n, dry_sequence_breakers=(":",)
    )
    assert found == pytest.approx(expected, rel=1e-5)
