"""Replies taken apart: thinking and content, whatever the pieces they come in."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.replies.reply_parser import ReplyParser
from engine.replies.thinking import MARKS, THINK, find_marks
from engine.tool_formats.deltas import ContentDelta, Delta, ReasoningDelta


def joined(deltas: Iterable[Delta]) -> tuple[str, str]:
    """(reasoning, content)."""
    deltas = list(deltas)
    reasoning = "".join(d.text for d in deltas if isinstance(d, ReasoningDelta))
    return reasoning, "".join(d.text for d in deltas if isinstance(d, ContentDelta))


def read(text: str, written: str = "", n: int = 1) -> tuple[str, str]:
    parser = ReplyParser([THINK], written=written)
    pieces = [text[i : i + n] for i in range(0, len(text), n)]
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    return joined(deltas + parser.finish())


@pytest.mark.parametrize("n", [1, 3, 1000])
@pytest.mark.parametrize(
    ("written", "text", "reasoning", "content"),
    [
        ("", "Hello  world \n", "", "Hello  world \n"),
        ("", "  x", "", "  x"),
        ("", " \n", "", " \n"),
        ("", "", "", ""),
        ("", "<think>\nabc\n</think>\n\nHi", "abc", "Hi"),
        ("", "<think>abc def", "abc def", ""),
        ("<think>\n", "abc def", "abc def", ""),
        ("<think>\n", "abc\n</think>\n\nHi", "abc", "Hi"),
        ("<think>\n\n</think>\n\n", "Hi", "", "Hi"),
        ("", "\n<think>a</think> b <think>c</think> d", "ac", "b d"),
        ("", "Say `<think>` or '</think>'.", "", "Say `<think>` or '</think>'."),
        ("<think>", 'it says "no"</think>yes', 'it says "no"', "yes"),
        ("<think>", "a `</think>` b</think>c", "a `</think>` b", "c"),
        ("", "a <thin", "", "a <thin"),
        ("<think>", "a </thin", "a </thin", ""),
        ("", "<b>a</b> < b", "", "<b>a</b> < b"),
        ("Once", " upon", "", " upon"),
        ("Once ", "upon", "", "upon"),
        ("<think>Once ", "upon</think> a", "upon", "a"),
        ("Once <", "b> upon", "", "b> upon"),  # might have been a mark
        ("Once <thi", "nk>upon</think> a", "upon", "a"),
        ("Once <", "", "", ""),
    ],
)
def test_thinking(written: str, text: str, reasoning: str, content: str, n: int) -> None:
    assert read(text, written, n) == (reasoning, content)


def test_text_that_is_certain_is_not_held_back() -> None:
    parser = ReplyParser([THINK])
    assert parser.push("a <") == [ContentDelta("a")]
    assert parser.push("b") == [ContentDelta(" <b")]
    assert parser.push("<think>c") == [ReasoningDelta("c")]
    assert parser.push("</thin") == []
    assert parser.push("g") == [ReasoningDelta("</thing")]


@given(st.data())
def test_pieces_do_not_matter(data: st.DataObject) -> None:
    marks = [text for m in MARKS for text in (m.open, m.close)]
    parts = data.draw(st.lists(st.sampled_from([*marks, "<", "a", " ", "\n", "`", "'", "é🦙"])))
    text = "".join(parts)
    whole, cut = ReplyParser(MARKS), ReplyParser(MARKS)
    expected = joined([*whole.push(text), *whole.finish()])
    deltas: list[Delta] = []
    while text:
        n = data.draw(st.integers(1, len(text)))
        deltas += cut.push(text[:n])
        text = text[n:]
    assert joined([*deltas, *cut.finish()]) == expected


# As their model cards and the reasoning parsers of vLLM have them.
FAMILIES = {
    "exaone deep": "<thought>\nI add.\n</thought>\n\n4",
    "granite 3.2": "Here is my thought process: I add.\n\nHere is my response: 4",
    "granite 3.3": "<think>I add.</think>\n\n<response>4</response>",
    "hunyuan": "<think>\nI add.\n</think>\n<answer>\n4\n</answer>",
    "apertus": "<|inner_prefix|>I add.<|inner_suffix|>4",
    "minicpm 3": "<|thought_start|>\nI add.\n<|thought_end|>\n4",
    "kimi vl": "◁think▷I add.◁/think▷4",
    "longcat": "<longcat_think>\nI add.\n</longcat_think>\n4",
    "seed oss": "<seed:think>I add.</seed:think>4",
    "magistral": "[THINK]I add.[/THINK]4",
    "command a": "<|START_THINKING|>I add.<|END_THINKING|><|START_RESPONSE|>4<|END_RESPONSE|>",
    "gemma 4": "<|channel>thought\nI add.\n<channel|>4",
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("n", [1, 3, 1000])
def test_every_familys_thinking(name: str, n: int) -> None:
    text = FAMILIES[name]
    parser = ReplyParser(find_marks(text))
    pieces = [text[i : i + n] for i in range(0, len(text), n)]
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    assert joined(deltas + parser.finish()) == ("I add.", "4")
