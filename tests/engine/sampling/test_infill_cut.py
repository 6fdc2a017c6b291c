"""The infill cut: llama.cpp's own answers, and where a reply may not end."""

from __future__ import annotations

import numpy as np
import pytest

from engine.sampling.infill_cut import infill
from engine.sampling.sampler import Sampler
from engine.sampling.sampling_params import SamplingParams
from engine.sampling.truncation import Candidates

END = 0
WORDS = ["<end>", " re", " ret", " return", " returns", "hel", "hello", " a", " an", " and", " b"]
WORDS += ["\n", "\n\n", " x", "def", "class"]
UNALIKE = ["hello", " a", " b", "\n", " x", "def", "class"]


def kept(logits: dict[str, float], end: int | None = END) -> set[str]:
    ids = np.array([WORDS.index(word) for word in logits], np.int64)
    candidates = Candidates(np.array(list(logits.values()), np.float32), ids)
    infill(candidates, np.array([END]), end, lambda token_id: WORDS[token_id].encode())
    assert candidates.ids is not None
    return {WORDS[token_id] for token_id in candidates.ids}


# What llama_sampler_init_infill leaves of these tokens of Qwen2.5-Coder (llama-cpp-python 0.3.36).
@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        # One is clear, or two are; a word counts for those that begin like it.
        ({"hello": 2.54, "hel": 0.69}, {"hello"}),
        ({"\n": -1.33, " re": 2.41, "class": -2.34}, {" re"}),
        ({" a": 3.91, "def": 3.68}, {" a", "def"}),
        ({" returns": -0.28, " an": -3.71, " and": -0.96}, {" and", " returns"}),
        (
            {"class": 3.55, "\n": 1.19, "hello": -3.77, " x": -0.28, "\n\n": 3.38},
            {"\n\n", "class"},
        ),
        (
            {" a": 2.59, " and": -2.28, " return": 2.5, "class": -0.54, "\n": 3.19, " re": -0.63,
             " x": -3.88, "def": 1.79},
            {"\n", " a", " return"},
        ),
        # The end stays a possibility, however unlikely, or is all that is left.
        ({"hello": -0.15, "hel": 2.55, "<end>": -4.19}, {"hel", "<end>"}),
        (
            {"<end>": -8.98, " b": 2.13, " returns": -2.72, " re": 2.38, "\n\n": -2.89, " a": 0.94,
             " ret": 3.33, " and": -1.76},
            {" ret", "<end>"},
        ),
        (
            {" an": 2.88, "<end>": 0.46, " re": -1.24, "\n": 2.38, " ret": 1.99, " returns": -3.14,
             " return": 0.2, " b": 2.2, "\n\n": -1.16},
            {"\n", " an", "<end>"},
        ),
        ({"<end>": -2.5, " returns": -2.72}, {"<end>"}),
        ({"class": -3.39, " return": -0.7, "<end>": -2.44}, {"<end>"}),
        # Nothing is clear: the text ends.
        (
            {" b": 0, "\n": 0.1, "def": 0.2, "class": 0.3, " x": 0.4, "hello": 0.5, " a": 0.6},
            {"<end>"},
        ),
    ],
)  # fmt: skip
def test_as_llama_cpp(logits: dict[str, float], expected: set[str]) -> None:
    assert kept(logits) == expected


def test_the_likeliest_is_left_where_the_reply_may_not_end() -> None:
    assert kept({word: 0.1 * i for i, word in enumerate(UNALIKE)}, end=None) == {"class"}


def draw(logits: list[float], **changes: object) -> set[int]:
    params = SamplingParams(samplers=("top_k", "infill"), seed=1, **changes)  # type: ignore[arg-type]
    sampler = Sampler(params, len(logits), [], [END], lambda token_id: WORDS[token_id].encode())
    return {sampler.sample(np.array(logits, np.float32)) for _ in range(50)}


def unclear(end: float) -> list[float]:
    """Logits: several words are equally likely."""
    return [end, *(0.0 if word in UNALIKE else -20.0 for word in WORDS[1:])]


def test_a_banned_end_stays_banned() -> None:
    assert draw(unclear(0.0)) == {END}
    assert END not in draw(unclear(0.0), ignore_eos=True)
    assert END not in draw(unclear(0.0), min_tokens=5)


def test_the_end_is_chosen_that_top_k_has_cut() -> None:
    assert draw(unclear(-9.0), top_k=len(UNALIKE)) == {END}


def test_an_end_tokens_name_is_no_word() -> None:
    """Or "<", which is not clear alone, would have the probability of "<end>" too."""
    words = [b"<end>", b"<", b"a", b"b", b"c", b"d", b"e"]
    logits = np.log(np.array([0.04, 0.17, *[0.158] * 5], np.float32))
    candidates = Candidates(logits, np.arange(7))
    infill(candidates, np.array([END]), END, lambda token_id: words[token_id])
    assert candidates.ids is not None and candidates.ids.tolist() == [END]
