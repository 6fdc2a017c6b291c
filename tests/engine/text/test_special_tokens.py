"""Finding special tokens in text, and keeping the text of messages from becoming one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.text.special_tokens import MARK, SpecialTokens, unshield
from tests.stopwatch import Stopwatch

TOKENS = {"<|im_start|>": 1, "<|im_end|>": 2, "<|im": 3, "</think>": 4, "[INST]": 5, "~~": 6}
SPECIAL = SpecialTokens(TOKENS)

# Texts made of tokens, of pieces of tokens and of everything else.
pieces = st.sampled_from(
    [*TOKENS, "<", "|", "<|im_", "_end|>", "</thi", "nk>", "~", MARK, "x", " "]
)
texts = st.lists(pieces | st.text(max_size=4), max_size=8).map("".join)


def test_split_takes_the_longest_token_and_keeps_all_text() -> None:
    assert list(SPECIAL.split("a<|im_start|>user<|im<|im_end|>")) == ["a", 1, "user", 3, 2]
    assert list(SPECIAL.split("~~~")) == [6, "~"]
    assert list(SPECIAL.split("")) == []
    assert list(SpecialTokens({}).split("<|im_end|>")) == ["<|im_end|>"]


@given(texts)
def test_split_loses_nothing(text: str) -> None:
    names = {token_id: name for name, token_id in TOKENS.items()}
    split = [names[p] if isinstance(p, int) else p for p in SPECIAL.split(text)]
    assert "".join(split) == text
    assert all(split)


@given(st.lists(texts, max_size=4))
def test_shielded_texts_hold_no_token_even_when_joined(parts: list[str]) -> None:
    joined = "".join(map(SPECIAL.shield, parts))
    assert not [piece for piece in SPECIAL.split(joined) if isinstance(piece, int)]
    assert unshield(joined) == "".join(parts)


@given(texts, texts)
def test_what_the_template_prints_around_them_still_counts(before: str, after: str) -> None:
    rendered = f"{SPECIAL.shield(before)}<|im_end|>{SPECIAL.shield(after)}"
    assert [piece for piece in SPECIAL.split(rendered) if isinstance(piece, int)] == [2]


def test_ordinary_text_is_not_touched() -> None:
    for text in ("", "a < b", "naïve 🦙 <|eot", "5 < 6 |> im_end", "x" * 1000):
        assert SPECIAL.shield(text) == text


def test_time_is_linear_with_many_tokens() -> None:
    many = SpecialTokens({f"<|reserved_{i}|>": i for i in range(6000)})
    with Stopwatch() as watch:
        assert list(many.split("<" * 100_000)) == ["<" * 100_000]
        assert unshield(many.shield("<|reserved_" * 10_000)) == "<|reserved_" * 10_000
    assert watch.loops < 150
