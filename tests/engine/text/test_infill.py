"""Fill-in-the-middle: which tokens a vocabulary has for it, the prompt, and what is cut of it."""

from __future__ import annotations

from pathlib import Path

from engine.files.gguf_file import GGUFFile
from engine.text.infill import FittedInfill, InfillTokens, OtherFile, fit_infill
from engine.text.tokenizer import Tokenizer
from tests.model_files import QWEN, SMOLLM2, needs

PRE, SUF, MID, REPO, FILE = 1001, 1002, 1003, 1004, 1005
TOKENS = InfillTokens(PRE, SUF, MID, REPO, FILE)
NO_FILES = InfillTokens(PRE, SUF, MID)
FILES = [OtherFile("a.py", "A" * 10), OtherFile("b.py", "B" * 20)]


def letters(text: str) -> list[int]:
    """A token for each character."""
    return list(map(ord, text))


def fit(
    before: str,
    after: str,
    files: list[OtherFile] | None = None,
    n_ctx: int = 800,
    tokens: InfillTokens = TOKENS,
) -> FittedInfill:
    return fit_infill(tokens, letters, before, after, files or [], n_ctx)


def spell(ids: list[int]) -> str:
    names = {PRE: "<PRE>", SUF: "<SUF>", MID: "<MID>", REPO: "<REPO>", FILE: "<FILE>"}
    return "".join(names.get(i) or chr(i) for i in ids)


def tokenizer_of(path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile(path))


@needs(QWEN)
def test_of_qwen_coder() -> None:
    """Ids as in the model's tokenizer_config.json."""
    found = InfillTokens.of(tokenizer_of(QWEN).vocabulary)
    assert found == InfillTokens(151659, 151661, 151660, repository=151663, file=151664)


@needs(SMOLLM2)
def test_of_a_model_without_them() -> None:
    assert InfillTokens.of(tokenizer_of(SMOLLM2).vocabulary) is None


def test_a_file_alone() -> None:
    fitted = fit("def f(", "return")
    assert spell(fitted.prompt_ids) == "<PRE>def f(<SUF>return<MID>"
    assert fitted.n_cut == 0


def test_a_repository_as_qwen_coder_was_taught() -> None:
    """The pattern that Qwen2.5-Coder's makers show, with llama-server's names."""
    fitted = fit("x", "y", FILES)
    assert spell(fitted.prompt_ids) == (
        f"<REPO>myproject\n<FILE>a.py\n{'A' * 10}<FILE>b.py\n{'B' * 20}<FILE>filename\n"
        "<PRE>x<SUF>y<MID>"
    )


def test_texts_before_it_where_the_model_knows_no_files() -> None:
    fitted = fit("x", "y", FILES[:1], tokens=NO_FILES)
    assert spell(fitted.prompt_ids) == f"\n\n--- snippet ---\n\n{'A' * 10}<PRE>x<SUF>y<MID>"


def test_what_is_far_from_the_cursor_is_cut() -> None:
    before, after = "".join(map(chr, range(1100, 2100))), "".join(map(chr, range(2100, 3100)))
    fitted = fit(before, after)
    ids = fitted.prompt_ids
    middle = ids.index(SUF)
    assert len(ids) <= 700  # an eighth is left for the reply
    assert "".join(map(chr, ids[1:middle])) == before[-(middle - 1) :]
    assert "".join(map(chr, ids[middle + 1 : -1])) == after[: len(ids) - middle - 2]
    assert fitted.n_cut == 2003 - len(ids)
    n_before, n_after = middle - 1, len(ids) - middle - 2
    assert n_after == 174 and n_before > 2 * n_after  # a quarter of 697


def test_one_text_may_have_what_the_other_does_not_need() -> None:
    assert len(fit("", "y" * 1000).prompt_ids) == 700
    assert len(fit("x" * 1000, "").prompt_ids) > 700 - 50
    assert fit("x" * 600, "y" * 97).n_cut == 0


def test_prompts_of_one_who_types_on_begin_alike() -> None:
    """Or nothing of them would come from the cache."""
    text = "".join(map(chr, range(1100, 2100)))
    firsts = {fit(text[:n], "y" * 100).prompt_ids[1] for n in range(700, 750)}
    assert len(firsts) <= 2
    files = [fit("x" * n, "y", [OtherFile("a", "A" * 250)]).prompt_ids[:270] for n in (0, 900)]
    assert files[0] == files[1]


def test_the_last_files_are_kept() -> None:
    files = [OtherFile(name, name * 100) for name in "abcd"]
    fitted = fit("x", "y", files)
    text = spell(fitted.prompt_ids)
    assert "<FILE>c\n" in text and "<FILE>d\n" in text and "<FILE>b\n" not in text
    assert fitted.n_cut == 2 * 103
    large_last = fit("x", "y", [OtherFile("a", "A"), OtherFile("b", "B" * 1000)])
    text = spell(large_last.prompt_ids)
    assert "<FILE>a\nA<FILE>filename\n" in text and "B" not in text
    assert large_last.n_cut == 1003
    too_long = fit("x", "y", [OtherFile("a", "A" * 1000)])
    assert spell(too_long.prompt_ids) == "<PRE>x<SUF>y<MID>" and too_long.n_cut == 1003


@needs(QWEN)
def test_names_of_tokens_in_a_file_are_text() -> None:
    tokenizer = tokenizer_of(QWEN)
    tokens = InfillTokens.of(tokenizer.vocabulary)
    assert tokens

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False)

    ids = fit_infill(tokens, encode, "<|fim_middle|>", "", [], 1000).prompt_ids
    assert ids.count(tokens.middle) == 1
