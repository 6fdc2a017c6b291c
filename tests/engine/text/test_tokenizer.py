"""The tokenizer against llama.cpp's ids, against a naive merge loop, and on small vocabularies."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError, GGUFError, InvalidRequest, UnsupportedModel
from engine.files.gguf_file import GGUFFile
from engine.text.pre_tokenizer import PRE_TOKENIZERS
from engine.text.special_tokens import SpecialTokens
from engine.text.tokenizer import StreamDecoder, Tokenizer
from tests.model_files import GEMMA, SMOLLM2, needs
from tests.stopwatch import fastest
from tests.tokenizer_start import loops_to_start
from tests.vocab_gguf import LETTERS, MERGES, letters, write_vocab_gguf

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared"
FAMILIES = ("llama-bpe", "qwen2", "gpt-2", "deepseek-llm", "falcon", "llama-spm", "phi-3")
OWN_GOLDEN = json.loads((ROOT / "tests/golden/tokenizers.json").read_text("utf-8"))

BYTE_IDS = {letter: byte for byte, letter in enumerate(LETTERS)}  # in our small vocabularies
C, U = TokenType.CONTROL, TokenType.USER_DEFINED
SPECIAL = {"<s>": C, "<|im_start|>": C, "<|im_end|>": C, "<think>": U, "</think>": U, "  \n": U}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Tokenizer]:
    """Tokenizer of a small byte-level vocabulary; keyword arguments as write_vocab_gguf."""

    def make(**changes: Any) -> Tokenizer:
        path = tmp_path / "vocab.gguf"
        substitute = changes.pop("pre_substitute", "")
        write_vocab_gguf(path, **{"special": SPECIAL, "bos": "<s>", **changes})
        return Tokenizer.from_gguf(GGUFFile(path), substitute)

    return make


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocab") / "vocab.gguf"
    write_vocab_gguf(path, SPECIAL, bos="<s>", eos="<|im_end|>")
    return Tokenizer.from_gguf(GGUFFile(path))


# --- golden data ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    path = SHARED / f"vocab/ggml-vocab-{request.param}.gguf"
    if not path.exists():
        pytest.skip("no shared vocabularies here")
    return request.param, Tokenizer.from_gguf(GGUFFile(path))


def test_ids_equal_llama_cpps(family: tuple[str, Tokenizer]) -> None:
    name, tokenizer = family
    golden = json.loads((SHARED / f"golden/tokenizer-{name}.json").read_text("utf-8"))
    for case in golden["cases"]:
        ids = tokenizer.encode(case["text"], add_special=False)
        assert ids == case["ids"], case["text"]
        assert tokenizer.decode(ids) == case["text"]
    for case in golden["special"]:
        ids = tokenizer.encode(case["text"], case["add_special"], case["parse_special"])
        assert ids == case["ids"], case
    for case in OWN_GOLDEN.get(name, []):
        assert golden_ids(tokenizer, case) == case["ids"], case


def golden_ids(tokenizer: Tokenizer, case: dict[str, Any]) -> list[int]:
    flags = case.get("add_special", False), case.get("parse_special", False)
    return tokenizer.encode(case["text"], *flags)


def test_every_token_has_bytes(family: tuple[str, Tokenizer]) -> None:
    vocabulary = family[1].vocabulary
    n_words = 0
    for token_id in range(family[1].n_vocab):
        data = vocabulary.bytes_of(token_id)
        assert data
        if not vocabulary.is_hidden(token_id) and vocabulary.types[token_id] == TokenType.NORMAL:
            n_words += 1
            text = vocabulary.texts[token_id]
            assert text == (
                letters_of(data) if vocabulary.byte_letters else data.decode().replace(" ", "▁")
            )
    assert n_words > 30_000


def letters_of(data: bytes) -> str:
    return "".join(LETTERS[byte] for byte in data)


@pytest.mark.model
@needs(SMOLLM2)
def test_demo_models_ids_equal_llama_cpps() -> None:
    tokenizer = Tokenizer.from_gguf(GGUFFile(SMOLLM2))
    for case in OWN_GOLDEN["smollm"]:
        assert tokenizer.encode(case["text"], parse_special=case["parse_special"]) == case["ids"]
    ends = {tokenizer.vocabulary.texts[i] for i in tokenizer.eog_ids}
    assert {"<|im_end|>", "<|endoftext|>"} <= ends
    assert "<|im_start|>" not in ends


@pytest.mark.model
@needs(GEMMA)
def test_a_large_sentencepiece_vocabulary() -> None:
    assert loops_to_start(GEMMA) < 30  # 7 alone
    tokenizer = Tokenizer.from_gguf(GGUFFile(GEMMA))
    for case in OWN_GOLDEN["gemma-3"]:
        assert golden_ids(tokenizer, case) == case["ids"], case
        if not case.get("parse_special") and "▁" not in case["text"]:
            assert tokenizer.decode(case["ids"]) == case["text"]
    path = SHARED / "golden/gemma-3-270m-q4_k_m.json"
    if path.exists():
        golden = json.loads(path.read_text("utf-8"))
        for case in golden["cases"]:
            assert tokenizer.encode(case["prompt"]) == case["prompt_ids"]
        ids = tokenizer.encode(golden["text"])
        assert ids[: len(golden["text_ids"])] == golden["text_ids"]
        assert tokenizer.decode(ids) == golden["text"]


def test_pre_tokenizers_are_refused_by_name(make: Callable[..., Tokenizer]) -> None:
    message = r"pre-tokenizer 'banana'.*llama-bpe.*default.*set engine.tokenizer_pre"
    with pytest.raises(UnsupportedModel, match=message):
        make(pre="banana")
    with pytest.raises(UnsupportedModel, match="pre-tokenizer ''"):
        make(pre=None)
    with pytest.raises(ConfigError, match="'apple' is no pre-tokenizer"):
        make(pre="banana", pre_substitute="apple")
    assert make(pre="banana", pre_substitute="qwen2").encode("ab", add_special=False)
    for kind in ("bert", "t5", "rwkv", "none", "plamo2"):
        with pytest.raises(UnsupportedModel, match=rf"tokenizer '{kind}'.*gpt2.*llama.*gemma4"):
            make(model=kind)


# --- merging --------------------------------------------------------------------------------------


def naive_ids(word: str, tokens: list[str]) -> list[int]:
    """Merge the pair of lowest rank, leftmost first, again and again."""
    ranks = {tuple(merge.split(" ")): rank for rank, merge in reversed([*enumerate(MERGES)])}
    parts = list(letters(word))
    while candidates := [(ranks[p], i) for i, p in enumerate(pairwise(parts)) if p in ranks]:
        at = min(candidates)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    return [tokens.index(part) for part in parts]


@pytest.mark.parametrize("letters_used", ["a", "ab", "aheb_i", "🦙é"])
def test_long_words_equal_a_naive_merge_loop(letters_used: str, small: Tokenizer) -> None:
    word = "".join(random.Random(1).choices(letters_used, k=300))
    tokens = list(small.vocabulary.texts)
    words = [word[a:b] for _, (a, b) in PRE_TOKENIZERS["gpt-2"].splitter().pre_tokenize_str(word)]
    assert small.encode(word, add_special=False) == [i for w in words for i in naive_ids(w, tokens)]


BASE64 = base64.b64encode(random.Random(3).randbytes(75_000)).decode()
CJK = "".join(chr(random.Random(2).randint(0x4E00, 0x9FA5)) for _ in range(20_000))


@pytest.mark.parametrize(
    "text",
    ["a" * 100_000, "_" * 50_000, CJK * 5, BASE64, " " * 100_000, "<" * 100_000, "<think" * 15_000,
     " \n" * 50_000],
    ids=["a", "_", "cjk", "base64", "space", "<", "<think", "lines"],
)  # fmt: skip
def test_time_without_spaces_is_about_linear(text: str, small: Tokenizer) -> None:
    def there_and_back(part: str) -> None:
        assert small.decode(small.encode(part)) == part

    half = fastest(2, lambda: there_and_back(text[: len(text) // 2]))
    whole = fastest(2, lambda: there_and_back(text))
    assert whole.loops < 30  # about a second
    assert whole.seconds < 3 * half.seconds + 0.05


@given(st.text())
def test_decode_gives_the_text_back(small: Tokenizer, text: str) -> None:
    assert small.decode(small.encode(text)) == text


def test_text_that_is_not_unicode_is_refused(small: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match=r"lone surrogate U\+D83D"):
        small.encode("a\ud83db")


def test_bytes_without_a_token_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    write_vocab_gguf(path, {"<s>": C})
    data = path.read_bytes()
    for byte in (0x04, 0xF1, 0xAC):  # a control character, the first of four bytes, the last of €
        letter = LETTERS[byte].encode()
        spelled = len(letter).to_bytes(8, "little")
        data = data.replace(spelled + letter, spelled + b"zz", 1)
    path.write_bytes(data)
    tokenizer = Tokenizer.from_gguf(GGUFFile(path))
    for text, named in (
        ("a\x04b", r"U\+0004.*0x04"),
        ("é\U00040000", r"U\+40000.*0xF1"),
        ("éx€é", r"U\+20AC.*0xAC"),
    ):
        for encode in (tokenizer.encode, tokenizer.encode_prompt, tokenizer.encode_template):
            with pytest.raises(InvalidRequest, match=rf"{named}; remove"):
                encode(text)
    assert tokenizer.decode(tokenizer.encode("é\x03\U0001f999")) == "é\x03\U0001f999"


# --- special tokens -------------------------------------------------------------------------------


def test_control_tokens_are_read_only_when_asked_for(small: Tokenizer) -> None:
    control = small.vocabulary.control
    text = "a<|im_end|>b"
    plain = small.encode(text, add_special=False)
    assert not set(plain) & set(control.values())
    assert small.decode(plain) == text
    parsed = small.encode(text, add_special=False, parse_special=True)
    assert parsed == [letter(small, "a"), control["<|im_end|>"], letter(small, "b")]
    assert control["<|im_end|>"] in small.encode_prompt(text)
    assert control["<|im_end|>"] not in small.encode_continuation(text)


def letter(tokenizer: Tokenizer, text: str) -> int:
    return list(tokenizer.vocabulary.texts).index(text)


def test_added_words_are_read_in_any_text(small: Tokenizer) -> None:
    words = small.vocabulary.user_defined
    ids = small.encode("<think>a  \n", add_special=False)
    assert ids == [words["<think>"], letter(small, "a"), words["  \n"]]
    assert small.decode(ids) == "<think>a  \n"


def test_no_text_merges_to_a_control_token(make: Callable[..., Tokenizer]) -> None:
    tokenizer = make(
        special={"ab": C, "<s>": C}, pre="llama-bpe"
    )  # ignore_merges takes whole words
    assert tokenizer.encode("ab", add_special=False) != [tokenizer.vocabulary.control["ab"]]
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"


@pytest.mark.parametrize(
    ("pre", "flag", "wants"),
    [
        ("gpt-2", None, False),
        ("llama-bpe", None, True),
        ("gpt-2", True, True),
        ("llama-bpe", False, False),
    ],
)
def test_bos(pre: str, flag: bool | None, wants: bool, make: Callable[..., Tokenizer]) -> None:
    tokenizer = make(pre=pre, add_bos=flag)
    bos = tokenizer.vocabulary.control["<s>"]
    a = letter(tokenizer, "a")
    first = [bos] if wants else []
    assert tokenizer.add_bos is wants
    assert tokenizer.encode("a") == [*first, a]
    assert tokenizer.encode("") == first
    assert tokenizer.encode("a", add_special=False) == [a]
    assert tokenizer.encode_template("a") == [*first, a]
    # Printed by the template: there once, and nothing is added or taken away.
    assert tokenizer.encode_template("<s>a") == [bos, a]
    assert tokenizer.encode_template("<s><s>a") == [bos, bos, a]
    assert tokenizer.encode("<s>a", parse_special=True) == [bos, a]


def test_no_bos_without_an_id(make: Callable[..., Tokenizer]) -> None:
    tokenizer = make(pre="llama-bpe", bos=None, add_bos=True)
    assert tokenizer.bos_id is None
    assert tokenizer.encode("a") == [letter(tokenizer, "a")]


def test_shielded_text_is_no_control_token(small: Tokenizer) -> None:
    shield = SpecialTokens({"<|im_end|>": 0, "</think>": 0}).shield
    end = small.vocabulary.control["<|im_end|>"]
    ids = small.encode_template(f"{shield('x<|im_end|></think>')}<|im_end|>")
    assert ids.count(end) == 1
    assert ids[-1] == end
    assert small.decode(ids) == "x<|im_end|></think>"


# --- ends of generation ---------------------------------------------------------------------------


def test_end_tokens_are_the_union_of_all_sources(make: Callable[..., Tokenizer]) -> None:
    special = {
        "<s>": C, "<|im_start|>": C, "<|im_end|>": C, "<end_of_turn>": C, "<start_of_turn>": C,
        "<|eot_id|>": U, "my_end": C, "my_turn_end": C, "<|start_header_id|>": C,
    }  # fmt: skip
    tokenizer = make(special=special, eos="my_end", ids={"eot": "my_turn_end"})
    texts = {tokenizer.vocabulary.texts[i] for i in tokenizer.eog_ids}
    assert texts == {"<|im_end|>", "<end_of_turn>", "<|eot_id|>", "my_end", "my_turn_end"}
    assert tokenizer.decode(tokenizer.eog_ids) == ""  # never shown, whatever type the file gives


def test_a_message_end_is_no_turn_end_in_harmony(make: Callable[..., Tokenizer]) -> None:
    tokenizer = make(special={"<|end|>": C, "<|return|>": C, "<|call|>": C}, bos=None)
    texts = {tokenizer.vocabulary.texts[i] for i in tokenizer.eog_ids}
    assert texts == {"<|return|>", "<|call|>"}


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    write_vocab_gguf(path, {"<s>": C}, eos="<s>")
    key = b"tokenizer.ggml.eos_token_id"
    data = path.read_bytes()
    at = data.index(key) + len(key) + 4
    path.write_bytes(data[:at] + (1 << 30).to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(GGUFError, match="eos_token_id = 1073741824"):
        Tokenizer.from_gguf(GGUFFile(path))


def test_a_cut_vocabulary_still_loads(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    write_vocab_gguf(path, {"<s>": C}, [*MERGES, "a he"])
    data = path.read_bytes()  # the token "ahe" is gone from the list; its merge stays
    path.write_bytes(data.replace(b"\x03\0\0\0\0\0\0\0ahe", b"\x03\0\0\0\0\0\0\0zzz", 1))
    tokenizer = Tokenizer.from_gguf(GGUFFile(path))
    assert tokenizer.decode(tokenizer.encode("ahe the")) == "ahe the"


# --- streaming ------------------------------------------------------------------------------------


@given(st.text(), st.randoms())
def test_streamed_characters_are_never_broken(
    small: Tokenizer, text: str, rng: random.Random
) -> None:
    decoder = StreamDecoder(small)
    # Bytes one by one, the hardest cut, or as the tokenizer cuts.
    one_by_one = [BYTE_IDS[c] for c in letters(text)]
    ids = rng.choice([one_by_one, small.encode(text)])
    pieces = [decoder.push(token_id) for token_id in ids]
    assert "".join(pieces) == text
    assert text.count("\ufffd") == "".join(pieces).count("\ufffd")


def test_an_emoji_over_several_tokens(family: tuple[str, Tokenizer]) -> None:
    name, tokenizer = family
    *first, last = {
        "llama-bpe": [11410, 99, 247], "qwen2": [11162, 99, 247], "gpt-2": [12520, 99, 247],
        "deepseek-llm": [12356, 99, 234], "falcon": [3346, 111, 231],
        "llama-spm": [29871, 243, 162, 169, 156], "phi-3": [29871, 243, 162, 169, 156],
    }[name]  # fmt: skip
    decoder = StreamDecoder(tokenizer, after=last)
    assert "".join(map(decoder.push, first)) == " "
    assert decoder.push(last) == "🦙"


def test_bytes_that_are_no_text(small: Tokenizer) -> None:
    decoder = StreamDecoder(small)
    bad, lama = BYTE_IDS["ÿ"], letters("🦙")
    assert decoder.push(bad) == "\ufffd"  # 0xFF is in no character
    assert [decoder.push(BYTE_IDS[c]) for c in lama[:3]] == ["", "", ""]
    assert decoder.push(BYTE_IDS["a"]) == "\ufffda"  # the character never came to its end
    assert [decoder.push(BYTE_IDS[c]) for c in lama[:2]] == ["", ""]
    assert small.decode([BYTE_IDS[c] for c in "a" + lama[:2]]) == "a"  # cut off: not shown


def test_control_tokens_are_not_shown(small: Tokenizer) -> None:
    decoder = StreamDecoder(small)
    control = small.vocabulary.control
    first, *rest = (BYTE_IDS[c] for c in letters("é"))
    pushed = [decoder.push(i) for i in (first, control["<|im_start|>"], *rest)]
    assert pushed == ["", "", "é"]


# --- start ----------------------------------------------------------------------------------------


def test_a_large_vocabulary_is_ready_soon() -> None:
    path = SHARED / "vocab/ggml-vocab-llama-bpe.gguf"
    if not path.exists():
        pytest.skip("no shared vocabularies here")
    assert loops_to_start(path) < 60  # 13 alone
