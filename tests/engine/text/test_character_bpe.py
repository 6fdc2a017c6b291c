"""BPE in characters against a naive merge loop, and what Gemma 4's files add. Ids equal to
llama.cpp's are test_pre_tokenizer.py's matter.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType

from engine.errors import GGUFError
from engine.files.gguf_file import GGUFFile
from engine.text.tokenizer import Tokenizer
from tests.stopwatch import fastest
from tests.vocab_gguf import write_characters_gguf

MERGES = ("a b", "ab ab", "▁ a", "b a", "▁ ▁", "▁a b", "a a", "aa aa", "漢 字", "> <", "a ▁")
NEWLINES = dict.fromkeys(("\n", "\n\n"), TokenType.NORMAL)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Tokenizer]:
    """Tokenizer of a small vocabulary; keyword arguments as write_characters_gguf."""

    def make(**changes: Any) -> Tokenizer:
        path = tmp_path / "vocab.gguf"
        write_characters_gguf(path, MERGES, NEWLINES, **{"model": "gemma4", "pre": None, **changes})
        return Tokenizer.from_gguf(GGUFFile(path))

    return make


def texts_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.vocabulary.texts[i] for i in tokenizer.encode(text, add_special=False)]


def naive_parts(line: str) -> list[str]:
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(MERGES)}
    parts = list(line.replace(" ", "▁"))
    while candidates := [(ranks[p], i) for i, p in enumerate(pairwise(parts)) if p in ranks]:
        at = min(candidates)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    return parts


@pytest.mark.parametrize("seed", range(10))
def test_lines_equal_a_naive_merge_loop(seed: int, make: Callable[..., Tokenizer]) -> None:
    tokenizer, rng = make(), random.Random(seed)
    for length in (1, 2, 3, 8, 40, 64, 65, 200):
        line = "".join(rng.choices(rng.choice(("ab", "ab ", "a ", "漢字>< ")), k=length))
        assert texts_of(tokenizer, line) == naive_parts(line)


def test_newlines_are_cut_off_and_merge_by_the_vocabulary(make: Callable[..., Tokenizer]) -> None:
    tokenizer = make()
    assert texts_of(tokenizer, "a\n\nb a\n") == ["a", "\n\n", "b", "▁a", "\n"]
    assert texts_of(tokenizer, "\n\n\n") == ["\n"] * 3  # three together are no token
    sarvam = make(model="gpt2", pre="sarvam-moe")
    assert texts_of(sarvam, "\n\n") == ["\n", "\n"]


def test_characters_without_a_token_are_spelled_in_bytes(make: Callable[..., Tokenizer]) -> None:
    tokenizer = make()
    assert texts_of(tokenizer, "aé") == ["a", "<0xC3>", "<0xA9>"]
    for text in ("aé 漢字  🦙\n\n \t", " a", "<0x41> </s>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("flag", [None, True, False])
def test_gemma_4_wants_bos_whatever_the_file_says(
    flag: bool | None, make: Callable[..., Tokenizer]
) -> None:
    assert make(add_bos=flag).encode("")[:1] == [0]
    assert make(add_bos=flag, model="gpt2", pre="sarvam-moe").add_bos is bool(flag)


def test_byte_tokens_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    write_characters_gguf(path, MERGES)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"<0x7F>", b"<0x7f>"))
    with pytest.raises(GGUFError, match="tokens lack <0x00>"):
        Tokenizer.from_gguf(GGUFFile(path))


@pytest.mark.parametrize("text", ["a", "ab", " ", "\n", "a ", "漢字", "é"])
def test_time_is_about_linear(text: str, make: Callable[..., Tokenizer]) -> None:
    tokenizer = make()

    half = fastest(2, lambda: tokenizer.encode((text * 50_000)[:50_000]))
    whole = fastest(2, lambda: tokenizer.encode((text * 100_000)[:100_000]))
    assert whole.loops < 30  # about a second
    assert whole.seconds < 3 * half.seconds + 0.05
