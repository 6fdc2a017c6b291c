"""Replies that end with a line, however their text comes."""

from __future__ import annotations

import pytest

from engine.replies.line_limits import LineLimits

CODE = "return a + b\n\n    def sub(a, b):\n        return a - b\n\nclass Next:\n    pass\n"


def join(limits: LineLimits, text: str, size: int) -> str:
    """What is left when it comes in pieces of `size` characters."""
    return "".join(limits.push(text[i : i + size]) for i in range(0, len(text), size))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_less_indentation_ends_the_text(size: int) -> None:
    limits = LineLimits(4, None)
    assert join(limits, CODE, size) == CODE[: CODE.index("class")]
    assert limits.is_over
    deeper = LineLimits(8, None)  # of the class, whose second method is not wanted
    assert join(deeper, CODE, size) == "return a + b\n\n    "
    assert deeper.push("more") == ""


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_tabs_count_as_one_each(size: int) -> None:
    text = "x\n\t\ty\r\n\tz"
    assert join(LineLimits(1, None), text, size) == text
    assert join(LineLimits(2, None), text, size) == "x\n\t\ty\r\n\t"


def test_without_limits_all_is_left() -> None:
    limits = LineLimits(0, None)
    assert join(limits, CODE, 5) == CODE
    assert not limits.is_over


def test_the_line_in_which_the_time_is_up_is_the_last() -> None:
    now = 0.0
    limits = LineLimits(0, 1.0, lambda: now)
    assert limits.push("one\ntwo") == "one\ntwo"
    now = 1.0
    assert limits.push("\nthree") == "\nthree"  # up to the limit
    now = 1.1
    assert limits.push(" goes on") == " goes on"  # and to the end of its line
    assert limits.push(" here\nfour\n") == " here\n"
    assert limits.is_over
