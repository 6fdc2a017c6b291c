"""SentencePiece vocabularies: against llama.cpp's ids, a naive merge loop, and their own text."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import GGUFError
from engine.files.gguf_file import GGUFFile
from engine.text.tokenizer import StreamDecoder, Tokenizer
from tests.stopwatch import fastest
from tests.tokenizer_start import loops_to_start
from tests.vocab_gguf import PIECES, write_sentencepiece_gguf

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/tokenizers.json").read_text("utf-8"))
SPECIAL = {"<tool>": TokenType.USER_DEFINED, "<|end|>": TokenType.CONTROL}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Tokenizer]:
    """Tokenizer of a small vocabulary; keyword arguments as write_sentencepiece_gguf."""

    def make(pieces: Mapping[str, float] = PIECES, **changes: Any) -> Tokenizer:
        path = tmp_path / "vocab.gguf"
        write_sentencepiece_gguf(path, pieces, **{"special": SPECIAL, **changes})
        return Tokenizer.from_gguf(GGUFFile(path))

    return make


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocab") / "vocab.gguf"
    write_sentencepiece_gguf(path, PIECES, SPECIAL)
    return Tokenizer.from_gguf(GGUFFile(path))


def texts_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.vocabulary.texts[i] for i in ids]


def test_ids_equal_llama_cpps(tiny: Tokenizer) -> None:
    for case in GOLDEN["tiny-spm"]:
        flags = case.get("add_special", False), case.get("parse_special", False)
        assert tiny.encode(case["text"], *flags) == case["ids"], case


# --- merging --------------------------------------------------------------------------------------


def naive_pieces(text: str, scores: Mapping[str, float]) -> list[str]:
    """Join the neighbours of the highest score, the leftmost first, again and again."""
    parts = list(text)
    while True:
        pairs = [
            (-scores[p], i)
            for i in range(len(parts) - 1)
            if (p := "".join(parts[i : i + 2])) in scores
        ]
        if not pairs:
            break
        at = min(pairs)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    in_bytes = (
        [part] if part in scores else [f"<0x{b:02X}>" for b in part.encode()] for part in parts
    )
    return [piece for pieces in in_bytes for piece in pieces]


@pytest.mark.parametrize("seed", range(20))
def test_random_vocabularies_equal_a_naive_merge_loop(
    seed: int, make: Callable[..., Tokenizer]
) -> None:
    """With equal scores, pieces without their parts, and pieces that reach over a space."""
    rng = random.Random(seed)
    pieces = {
        "".join(rng.choices("ab▁]^", k=rng.choice((1, 2, 2, 2, 3, 3, 4, 5)))): -rng.randrange(9)
        for _ in range(rng.randrange(5, 60))
    }
    tokenizer = make(pieces, special={}, flags={"add_space_prefix": False})
    for length in (0, 1, 2, 3, 5, 8, 20, 63, 64, 65, 200):
        text = "".join(rng.choices(rng.choice(("ab", "ab ", "ab ]^", "a ")), k=length))
        ids = tokenizer.encode(text, add_special=False)
        assert texts_of(tokenizer, ids) == naive_pieces(text.replace(" ", "▁"), pieces), text


def test_no_text_merges_to_a_control_or_byte_token(tiny: Tokenizer) -> None:
    # The vocabulary has all that it takes: <s and >, <0 and x0A>. Such a token would be lost or
    # changed on the way back, and <s> would be structure that a user wrote.
    for text in ("<s>", "a<0x0A>", "<unk>"):
        ids = tiny.encode(text, add_special=False)
        assert not {"<s>", "<0x0A>", "<unk>"} & set(texts_of(tiny, ids))
        assert tiny.decode(ids) == text


def test_characters_that_are_no_piece(make: Callable[..., Tokenizer]) -> None:
    assert texts_of(make(), make().encode("ñ", False)) == ["▁", "<0xC3>", "<0xB1>"]
    tokenizer = make(byte_tokens=False)
    assert texts_of(tokenizer, tokenizer.encode("ñ", False)) == ["▁", "<unk>", "<unk>"]


@pytest.mark.parametrize(
    "text",
    ["a" * 100_000, "ab" * 50_000, "xy東京" * 25_000, "ñ" * 100_000, "the " * 25_000, " " * 100_000,
     "> <" * 33_000],
    ids=["a", "ab", "pieces", "bytes", "words", "space", "over spaces"],
)  # fmt: skip
def test_time_is_about_linear(text: str, tiny: Tokenizer) -> None:
    def there_and_back(part: str) -> None:
        assert tiny.decode(tiny.encode(part)) == part

    half = fastest(2, lambda: there_and_back(text[: len(text) // 2]))
    whole = fastest(2, lambda: there_and_back(text))
    assert whole.loops < 43  # about 1.5 s, of which a quarter is the way back
    assert whole.seconds < 3 * half.seconds + 0.05


@pytest.mark.slow
def test_a_large_vocabulary_is_ready_soon_and_small(tmp_path: Path) -> None:
    rng = random.Random(1)
    words = {"".join(rng.choices("▁etaoinshrdlu", k=rng.randrange(3, 14))) for _ in range(280_000)}
    write_sentencepiece_gguf(tmp_path / "vocab.gguf", dict.fromkeys(words, -1.0))
    assert loops_to_start(tmp_path / "vocab.gguf") < 30  # 8 alone
    with GGUFFile(tmp_path / "vocab.gguf") as gguf:
        tracemalloc.start()
        tokenizer = Tokenizer.from_gguf(gguf)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert tokenizer.n_vocab > 240_000
        assert peak < 150e6


# --- the space before a text ----------------------------------------------------------------------


@pytest.mark.parametrize("flags", [{}, {"add_space_prefix": True}, {"add_space_prefix": False}])
def test_space_prefix(flags: dict[str, bool], make: Callable[..., Tokenizer]) -> None:
    tokenizer = make(flags=flags)
    ids = tokenizer.encode("a<tool>a a")
    prefixed = ["<s>", "▁a", "<tool>", "▁a", "▁a"]
    plain = ["<s>", "a", "<tool>", "a", "▁a"]
    assert texts_of(tokenizer, ids) == (prefixed if flags.get("add_space_prefix", True) else plain)
    assert tokenizer.decode(ids) == "a<tool>a a"


@given(st.lists(st.sampled_from([*PIECES, *SPECIAL, "<s>", " ", "ñ", "🦙"]) | st.text(max_size=3)))
def test_decode_gives_the_text_back(tiny: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts).replace("▁", " ")  # the two are one to SentencePiece
    ids = tiny.encode(text)
    assert tiny.decode(ids) == text
    decoder = StreamDecoder(tiny)
    pieces = [decoder.push(token_id) for token_id in ids]
    assert "".join(pieces) == text
    assert text.count("\ufffd") == "".join(pieces).count("\ufffd")


def test_a_reply_keeps_its_space_unless_it_begins_a_text(tiny: Tokenizer) -> None:
    a, space_a, end, tool = (
        list(tiny.vocabulary.texts).index(text) for text in ("a", "▁a", "<|end|>", "<tool>")
    )
    assert StreamDecoder(tiny, after=a).push(space_a) == " a"  # "The capital of France is" " Paris"
    assert StreamDecoder(tiny, after=end).push(space_a) == "a"
    assert StreamDecoder(tiny).push(space_a) == "a"
    decoder = StreamDecoder(tiny, after=a)
    pushed = [decoder.push(i) for i in (space_a, tool, space_a, space_a, end, space_a)]
    assert pushed == [" a", "<tool>", "a", " a", "", "a"]


def test_phi_3s_special_tokens_swallow_whitespace(make: Callable[..., Tokenizer]) -> None:
    special = {"<|user|>": TokenType.CONTROL, "<|end|>": TokenType.CONTROL}
    prompt = "<s> a<|user|>\n \ta<|end|>\n<|user|>"
    expected = ["<s>", "▁", "▁a", "<|user|>", "▁a", "<|end|>", "<|user|>"]
    for name in ("Phi-3-mini", "phi3", "Phi 3 Mini 4k Instruct"):
        tokenizer = make(special=special, name=name)
        assert texts_of(tokenizer, tokenizer.encode_template(prompt)) == expected
    tokenizer = make(special=special)
    assert "<0x0A>" in texts_of(tokenizer, tokenizer.encode_template(prompt))


# --- what the file says ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "bos", "text"),
    [
        ({}, "<s>", ["<s>", "▁a"]),
        ({}, None, ["<s>", "▁a"]),  # SentencePiece's usual ids
        ({"add_bos_token": False}, "<s>", ["▁a"]),
        ({"add_eos_token": True}, "<s>", ["<s>", "▁a", "</s>"]),
        ({"add_bos_token": False, "add_eos_token": True}, "<s>", ["▁a", "</s>"]),
    ],
)
def test_bos_and_eos(
    flags: dict[str, bool], bos: str | None, text: list[str], make: Callable[..., Tokenizer]
) -> None:
    tokenizer = make(flags=flags, bos=bos)
    assert texts_of(tokenizer, tokenizer.encode("a")) == text
    assert texts_of(tokenizer, tokenizer.encode("a", add_special=False)) == ["▁a"]
    prompt = [token for token in text if token != "</s>"]  # what is to be continued has no end
    assert texts_of(tokenizer, tokenizer.encode_prompt("a")) == prompt
    assert texts_of(tokenizer, tokenizer.encode_template("a")) == prompt


def test_damaged_vocabularies_are_refused(make: Callable[..., Tokenizer]) -> None:
    with pytest.raises(GGUFError, match=r"scores: not \d+ numbers"):
        make(scores=[0.0] * 5)
    with pytest.raises(GGUFError, match=r"scores: not \d+ numbers"):
        make(scores=[float("nan")] * len(make().vocabulary.texts))
