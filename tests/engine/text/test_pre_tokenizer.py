"""Where each family cuts: by the meaning of its expression, and by llama.cpp's ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType

from engine.files.gguf_file import GGUFFile
from engine.text.pre_tokenizer import PRE_TOKENIZERS
from engine.text.tokenizer import Tokenizer
from tests.stopwatch import fastest
from tests.vocab_gguf import write_characters_gguf, write_vocab_gguf

# Made by make_pre_tokenizers.py beside it.
GOLDEN = json.loads(
    Path(__file__).parents[2].joinpath("golden/pre_tokenizers.json").read_text("utf-8")
)
NAMES = [(family, name) for family, names in GOLDEN["families"].items() for name in names]
NEWLINES = dict.fromkeys(("\n", "\n\n", "\n\n\n"), TokenType.NORMAL)


def test_every_name_that_llama_cpp_knows_is_known_and_tested() -> None:
    assert {name for _, name in NAMES} == PRE_TOKENIZERS.keys()


@pytest.mark.parametrize(("family", "name"), NAMES, ids=[name for _, name in NAMES])
def test_ids_equal_llama_cpps(family: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    if PRE_TOKENIZERS[name].byte_letters:
        write_vocab_gguf(
            path, {"<s>": TokenType.CONTROL}, GOLDEN["bytes_merges"], pre=name, bos="<s>"
        )
    else:
        write_characters_gguf(path, GOLDEN["characters_merges"], NEWLINES, pre=name)
    with GGUFFile(path) as gguf:
        tokenizer = Tokenizer.from_gguf(gguf)
        for case in GOLDEN["cases"]:
            ids = tokenizer.encode(case["text"], add_special=False)
            assert ids == ids_of(case, family), case["text"]
            assert tokenizer.decode(ids) == case["text"]


def ids_of(case: dict[str, Any], family: str) -> list[int]:
    return next(ids for families, ids in case["ids"] if family in families)


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("llama-bpe", "I'LL 3333!!\n\n  x", ["I", "'LL", " ", "333", "3", "!!\n\n", " ", " x"]),
        ("qwen2", "I'LL 333!!\n\n  x", ["I", "'LL", " ", "3", "3", "3", "!!\n\n", " ", " x"]),
        ("gpt-2", "I'll I'L 33!!\n\n  x", ["I", "'ll", " I", "'", "L", " 33", "!!", "\n\n ", " x"]),
        ("smollm", "x 333!! y", ["x", " ", "3", "3", "3", "!!", " y"]),
        ("default", "a.b 33333, x", ["a", ".", "b", " ", "333", "33", ",", " x"]),
        ("deepseek-llm", "It's 123年!\n b。", ["It", "'", "s", " ", "123", "年", "!", "\n", " b",
         "。"]),
        ("deepseek-llm", " ок ق漢가 x\u3000、 ", [" ок", " ق", "漢가", " x", "\u3000", "、", " "]),
        ("deepseek-llm", "aЯ ὗ", ["a", "Я", " ", "ὗ"]),  # its : to ~ and U+0800 to 一 hold letters
        ("falcon", "I've 12345 `x`|y~ a.b", ["I", "'", "ve", " ", "123", "45", " ", "`", "x", "`|",
         "y", "~", " a", ".", "b"]),
        ("llama-bpe", "(x)\r\n a\t\tb", ["(x", ")\r\n", " a", "\t", "\tb"]),
        ("gpt-2", "naïve 東京🦙", ["naïve", " 東京", "🦙"]),
        ("stablelm2", "WE'VE 12!\n\ny", ["WE", "'VE", " ", "1", "2", "!\n\n", "y"]),
        ("qwen35", "हिन्दी e\u0301x", ["हिन्दी", " e\u0301x"]),
        ("qwen2", "e\u0301x", ["e", "\u0301x"]),
        ("ufakzeka", "Ankara'da 'tis", ["Ankara", "'da", " '", "tis"]),
        ("seed-coder", "x!!\n\ny", ["x", "!!", "\n\n", "y"]),
        ("minicpm5", "a1234b 56", ["a", "123", "4", "b", " ", "56"]),
        ("jais-2", f"a{' ' * 21}b", ["a", " " * 16, " " * 4, " b"]),
        ("exaone-moe", "Two words, 가나 다 12", ["Two words", ",", " 가나 다", " ", "1", "2"]),
        ("laguna", "a\n \n\nb", ["a", "\n", " ", "\n\n", "b"]),
        ("tekken", "camelCase HTTPServer 12//\n/ x", ["camel", "Case", " HTTPServer", " ", "1", "2",
         "//\n/", " x"]),
        ("tekken", "aBC's", ["a", "BC", "'s"]),
        ("gpt-4o", "aBC's 1234.\n/", ["a", "BC's", " ", "123", "4", ".\n/"]),
        ("gpt-4o", "e\u0301x", ["e", "\u0301x"]),
        ("granite-embed-multi-97m", "e\u0301Xy", ["e\u0301", "Xy"]),
        ("kimi-k2", "ab漢字c's漢 1234", ["ab", "漢字", "c's", "漢", " ", "123", "4"]),
        ("deepseek-v3", "12345 .py x+=y 漢か!\n", ["123", "45", " .", "py", " x", "+=", "y", " ",
         "漢か", "!\n"]),
        ("spark2_5", "x!\n\ny", ["x", "!", "\n", "\n", "y"]),
        ("youtu", "漢字，가나 ㄅㄆx's 1", ["漢字", "，", "가나", " ", "ㄅㄆ", "x's", " ", "1"]),
        ("deepseek-coder", "x = 12;\n", ["x", " = ", "1", "2", ";", "\n"]),
        ("afmoe", "n=1234567", ["n", "=", "1", "234", "567"]),
        ("tiny_aya", "1234567 x 12", ["1", "234", "567", " x", " ", "12"]),
        ("superbpe", "by the way 1234567", ["by the way ", "1", "234", "567"]),
        ("superbpe", "1000² ²123", ["1", "000²", " ", "²", "123"]),
        ("bloom", "Hello, world (x) a.b", ["Hello", ",", " world", " (", "x", ")", " a", ".", "b"]),
        ("viking", "ab12, x", ["ab", "1", "2", ",", " x"]),
        ("chameleon", "IMGIMGABZ a.  b<sentinel:12>", ["IMGIMGABZ", " a", ".", "  ", "b",
         "<", "sentinel", ":", "1", "2", ">"]),
        ("gemma4", "any text\n at all", ["any text\n at all"]),
    ],
)  # fmt: skip
def test_words(pre: str, text: str, words: list[str]) -> None:
    splitter = PRE_TOKENIZERS[pre].splitter()
    assert [text[a:b] for _, (a, b) in splitter.pre_tokenize_str(text)] == words


RUNS = ("a", "A", "aA", "1", " ", "\n", " \n", "!", "漢", "\u0301", "<sentinel:1", "'", "\u00a0")


@pytest.mark.parametrize("pre", GOLDEN["families"])
def test_time_is_about_linear(pre: str) -> None:
    splitter = PRE_TOKENIZERS[pre].splitter()

    def seconds(text: str) -> float:
        return fastest(3, lambda: splitter.pre_tokenize_str(text)).seconds

    for run in RUNS:
        # The end is what a look ahead finds at last, and fails at.
        half, whole = ((run * n)[:n] + "x1" for n in (10_000, 20_000))
        assert seconds(whole) < 3 * seconds(half) + 0.05, run
