"""The roles of tokens: named by the file or told by their texts, as llama.cpp finds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType

from engine.files.gguf_file import GGUFFile
from engine.text.tokenizer import Tokenizer
from tests.vocab_gguf import write_vocab_gguf

C, U, N = TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.NORMAL


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Tokenizer]:
    def make(special: dict[str, TokenType], **changes: Any) -> Tokenizer:
        path = tmp_path / "vocab.gguf"
        write_vocab_gguf(path, special, **changes)
        return Tokenizer.from_gguf(GGUFFile(path))

    return make


def text_of(tokenizer: Tokenizer, token_id: int | None) -> str | None:
    return None if token_id is None else tokenizer.vocabulary.texts[token_id]


def fim_texts(tokenizer: Tokenizer) -> list[str | None]:
    roles = ("fim_pre", "fim_suf", "fim_mid", "fim_rep", "fim_sep")
    return [text_of(tokenizer, tokenizer.vocabulary.roles.get(role)) for role in roles]


@pytest.mark.parametrize(
    "texts",
    [
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>", None],
        ["<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<fim-repo>", None],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", None, None],
        ["<PRE>", "<SUF>", "<MID>", "<REPO>", None],
        ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", None, None],
        ["<|prefix|>", "<|suffix|>", "<|middle|>", None, None],
    ],
)
def test_fill_in_the_middle_by_text(
    texts: list[str | None], make: Callable[..., Tokenizer]
) -> None:
    tokenizer = make({text: U for text in texts if text})
    assert fim_texts(tokenizer) == texts
    # They are structure, whatever type the file gives them.
    prefix, prefix_id = texts[0], tokenizer.vocabulary.roles["fim_pre"]
    assert tokenizer.encode(f"{prefix}") != [prefix_id]
    assert tokenizer.encode(f"{prefix}", parse_special=True) == [prefix_id]
    assert tokenizer.decode([prefix_id]) == ""
    assert tokenizer.token_bytes(prefix_id) == f"{prefix}".encode()


def test_what_the_file_names_goes_first(make: Callable[..., Tokenizer]) -> None:
    special = {"<PRE>": C, "<SUF>": C, "<MID>": C, "before": C, "behind": C, "gap": U}
    tokenizer = make(special, ids={"fim_pre": "before", "suffix": "behind"})
    assert fim_texts(tokenizer)[:3] == ["before", "behind", "<MID>"]
    assert fim_texts(make({"<think>": C})) == [None] * 5


def test_padding_and_files_end_a_generation(make: Callable[..., Tokenizer]) -> None:
    special = {"<|fim_pad|>": C, "<|repo_name|>": C, "<|file_sep|>": C, "<|fim_prefix|>": C}
    tokenizer = make(special)
    ends = {text_of(tokenizer, i) for i in tokenizer.eog_ids}
    assert ends == {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}
    # Where the file names one, another that looks like one is none.
    tokenizer = make({"[PAD]": C, "pad": C}, ids={"fim_pad": "pad"})
    assert {text_of(tokenizer, i) for i in tokenizer.eog_ids} == {"pad"}


@pytest.mark.parametrize(
    ("texts", "ends"),
    [
        ("<|end|> <|return|> <|call|>", "<|return|> <|call|>"),  # gpt-oss
        ("<|end|> <|calls|> <|flush|>", "<|calls|> <|flush|>"),  # Solar
        ("<|end|> <|return|>", "<|end|> <|return|>"),
        ("</s> <turn|> <|tool_response> <eos>", "<turn|> <|tool_response> <eos>"),  # Gemma 4
        ("<end_of_turn> <end_function_call> <start_function_response>",  # FunctionGemma
         "<end_of_turn> <start_function_response>"),
        ("<|inner_suffix|> <|tools_suffix|>", "<|tools_suffix|>"),  # Apertus
        ("</s> <eos> [EOS] [e~[", "</s> <eos> [EOS] [e~["),
        ("<|start|> <|im_start|> <start_of_turn> <|im_end|> <end_of_turn>",
         "<|im_end|> <end_of_turn>"),
    ],
)  # fmt: skip
def test_ends_by_text(texts: str, ends: str, make: Callable[..., Tokenizer]) -> None:
    tokenizer = make(dict.fromkeys(texts.split(), C))
    assert {text_of(tokenizer, i) for i in tokenizer.eog_ids} == set(ends.split())


def test_words_that_look_like_structure_stay_words_in_text(make: Callable[..., Tokenizer]) -> None:
    """Qwen's vocabulary has </s> as a word that text merges to; as structure it ends a reply."""
    tokenizer = make({}, merges=["< /", "s >", "</ s>"], pre="superbpe")
    (end,) = tokenizer.encode("</s>")
    assert tokenizer.eog_ids == {end}
    assert tokenizer.decode([end]) == ""
