"""Stop strings: the shown text is always the text before the earliest one, however it is cut up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.replies.stop import StopChecker
from tests.stopwatch import Stopwatch


def run(stop: tuple[str, ...], pieces: list[str]) -> tuple[str, bool, list[str]]:
    """(shown text, stopped, shown pieces) of a whole stream."""
    checker = StopChecker(stop)
    shown = []
    for piece in pieces:
        text, stopped = checker.push(piece)
        shown.append(text)
        if stopped:
            return "".join(shown), True, shown
    shown.append(checker.flush())
    return "".join(shown), checker.stopped, shown


@pytest.mark.parametrize(
    ("stop", "text", "shown", "stopped"),
    [
        (("beta gamma",), "alpha beta gamma delta", "alpha ", True),
        (("alpha",), "alpha beta gamma delta", "", True),
        (("gamma", "beta gamma"), "alpha beta gamma delta", "alpha ", True),
        (("beta gamma", "gamma"), "alpha beta gamma delta", "alpha ", True),
        ((), "alpha beta", "alpha beta", False),
        (("",), "alpha beta", "alpha beta", False),
        (("", "beta"), "alpha beta", "alpha ", True),
        (("TRE\nAAAA",), "UNO DUE TRE", "UNO DUE TRE", False),
        ((" Alice:",), " Alice! Bob", " Alice! Bob", False),
        (("aab",), "aaaab", "aa", True),
        (("a b c d", "b"), "a b c d", "", True),  # the longer one begins earlier
        (("a b c d", "b"), "a b c e", "a ", True),
        (("a b c d", "b"), "a b c", "a ", True),  # it never came true: the other one counts
        (("🦙",), "x🦙y", "x", True),
    ],
)
def test_cases(stop: tuple[str, ...], text: str, shown: str, stopped: bool) -> None:
    for size in (1, 2, 3, len(text)):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        assert run(stop, pieces)[:2] == (shown, stopped), size


@pytest.mark.parametrize(
    ("stop", "pieces", "ended_by"),
    [
        (("b", "abc"), ["a", "b", "c"], "abc"),  # begun earlier
        (("b", "abc"), ["a", "b", "d"], "b"),
        (("ab", "a"), ["ab"], "a"),
        (("x",), ["a"], None),
        (("abc", "b"), ["ab"], "b"),  # the longer one never came true
    ],
)
def test_tells_which_one_ended_the_text(
    stop: tuple[str, ...], pieces: list[str], ended_by: str | None
) -> None:
    checker = StopChecker(stop)
    for piece in pieces:
        checker.push(piece)
    if not checker.stopped:
        checker.flush()
    assert checker.stop_string == ended_by


def test_text_that_cannot_begin_a_stop_string_is_shown_at_once() -> None:
    assert run(("END",), ["one ", "two E", "NE", " three"])[2] == [
        "one ",
        "two ",
        "EN",
        "E three",
        "",
    ]


def test_nothing_comes_after_the_stop() -> None:
    checker = StopChecker(("STOP",))
    assert checker.push("a STOP b") == ("a ", True)
    assert checker.push("c") == ("", True)
    assert checker.flush() == ""


@given(
    st.lists(st.text("ab", max_size=5), max_size=3).map(tuple),
    st.lists(st.text("ab", max_size=4), max_size=8),
)
def test_equals_a_search_in_the_whole_text(stop: tuple[str, ...], pieces: list[str]) -> None:
    text = "".join(pieces)
    starts = [text.index(s) for s in stop if s and s in text]
    assert run(stop, pieces)[:2] == (text[: min(starts, default=len(text))], bool(starts))


def test_time_is_linear() -> None:
    stop = ("a" * 5000 + "b", "\nUser:")
    with Stopwatch() as watch:
        assert run(stop, ["aaaa"] * 25_000)[0] == "a" * 100_000
    assert watch.loops < 90
