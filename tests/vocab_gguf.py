"""Writes GGUF files that hold a vocabulary and no tensors, by the `gguf` package alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gguf import GGUFWriter, TokenType

# GPT-2's alphabet for bytes, written out: printable Latin-1 stands for itself, the other 68 bytes
# are U+0100 and up, in order.
PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
HIDDEN = [byte for byte in range(256) if byte not in PRINTABLE]
LETTERS = [chr(b if b in PRINTABLE else 0x100 + HIDDEN.index(b)) for b in range(256)]

MERGES = (
    "Ġ t", "h e", "i n", "Ġt he", "a b", "ab ab", "a a", "aa aa", "l l", "h e", "Ċ Ċ", "Ġ Ġ",
    "ð Ł", "Ł ¦", "ðŁ ¦", "Ã ©", "i m", "_ e",
)  # fmt: skip

# Scores with ties, pieces with a space inside, characters that are a piece only together (x and y).
PIECES = {
    "▁": -1, "a": -2, "b": -3, "c": -4, "t": -5, "h": -6, "e": -7, "<": -8, ">": -9, "é": -10,
    "▁t": -11, "he": -12, "▁the": -13, "aa": -14, "aaa": -14, "aaaa": -20, "ab": -14, "ba": -14,
    "bc": -14, "abc": -15, "▁a": -16, "e▁t": -17, ">▁<": -18, "xy": -19, "▁▁": -1e9, "▁▁▁▁": -1e9,
    "東京": -21, "<s": -22, "<0": -23, "x0": -23, "A>": -23, "x0A>": -24,
}  # fmt: skip


def letters(text: str) -> str:
    """A text as byte-level vocabularies spell it."""
    return "".join(LETTERS[byte] for byte in text.encode())


def write_vocab_gguf(
    path: Path,
    special: Mapping[str, TokenType],
    merges: Sequence[str] = MERGES,
    *,
    model: str = "gpt2",
    pre: str | None = "gpt-2",
    bos: str | None = None,
    eos: str | None = None,
    add_bos: bool | None = None,
    chat_template: str | None = None,
    templates: Mapping[str, str] | None = None,
    ids: Mapping[str, str] | None = None,
) -> list[str]:
    """Write the file; returns the tokens: 256 bytes, one per merge, then the special ones.

    bos, eos: texts of tokens; None leaves the key out.
    ids:      more keys under tokenizer.ggml, without `_token_id`, and the texts of their tokens.
    """
    merges = list(dict.fromkeys(merges))
    normal = [*LETTERS, *(merge.replace(" ", "") for merge in merges)]
    tokens = [*dict.fromkeys(normal), *special]
    types = [TokenType.NORMAL] * (len(tokens) - len(special)) + list(special.values())
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    for key, text in {"bos": bos, "eos": eos, **(ids or {})}.items():
        if text is not None:
            writer.add_uint32(f"tokenizer.ggml.{key}_token_id", tokens.index(text))
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for name, source in (templates or {}).items():
        writer.add_string(f"tokenizer.chat_template.{name}", source)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return tokens


def write_characters_gguf(
    path: Path,
    merges: Sequence[str],
    special: Mapping[str, TokenType] | None = None,
    *,
    model: str = "gpt2",
    pre: str | None = "gemma4",
    add_bos: bool | None = None,
) -> list[str]:
    """Write a BPE vocabulary in characters, as Gemma 4's; returns the tokens: <s>, 256 bytes, the
    characters of the merges, what they make, and the special ones.
    """
    halves = [merge.split(" ") for merge in merges]
    texts = sorted({c for a, b in halves for c in a + b}) + ["".join(pair) for pair in halves]
    types = {"<s>": TokenType.CONTROL}
    types |= {f"<0x{byte:02X}>": TokenType.BYTE for byte in range(256)}
    types |= dict.fromkeys(texts, TokenType.NORMAL) | dict(special or {})
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(types))
    writer.add_token_types(list(types.values()))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return list(types)


def write_sentencepiece_gguf(
    path: Path,
    pieces: Mapping[str, float],
    special: Mapping[str, TokenType] | None = None,
    *,
    byte_tokens: bool = True,
    name: str = "tiny",
    bos: str | None = "<s>",
    flags: Mapping[str, bool] | None = None,
    scores: Sequence[float] | None = None,
) -> list[str]:
    """Write the file; returns the tokens: <unk> <s> </s>, 256 bytes, the pieces, special ones.

    pieces: text -> score.
    flags:  add_bos_token, add_eos_token and add_space_prefix, where the file is to have them.
    scores: instead of the right ones.
    """
    types = {"<unk>": TokenType.UNKNOWN, "<s>": TokenType.CONTROL, "</s>": TokenType.CONTROL}
    if byte_tokens:
        types |= {f"<0x{byte:02X}>": TokenType.BYTE for byte in range(256)}
    types |= dict.fromkeys(pieces, TokenType.NORMAL) | dict(special or {})
    tokens = list(types)
    writer = GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(list(types.values()))
    writer.add_token_scores(scores or [float(pieces.get(text, 0)) for text in tokens])
    writer.add_unk_token_id(0)
    if bos is not None:
        writer.add_bos_token_id(tokens.index(bos))
    for flag, value in (flags or {}).items():
        writer.add_bool(f"tokenizer.ggml.{flag}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return tokens
