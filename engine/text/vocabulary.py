"""Vocabulary: what a GGUF file says of its tokens, one by one and by their roles.

Texts, types, the bytes each stands for, BOS, EOS, and which tokens end a generation. Does not know
how text is cut into tokens.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from engine.errors import GGUFError
from engine.files.gguf_file import GGUFFile


class TokenType(enum.IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3  # structure of the prompt: never shown, never read from a user's text
    USER_DEFINED = 4  # added words, matched whole before merging, in any text
    UNUSED = 5
    BYTE = 6  # named <0x0A>


SPACE: Final = "▁"  # U+2581, how SentencePiece spells one

HIDDEN: Final = (TokenType.CONTROL, TokenType.UNKNOWN)
SPECIAL: Final = (*HIDDEN, TokenType.USER_DEFINED)  # spelled as they are

SENTENCEPIECE_IDS: Final = {"bos": 1, "eos": 2, "unknown": 0}  # where the file names none

# Roles that files name by a metadata key, or else leave to be known by the token's text.
ROLE_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "eot": ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
            "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>",
            "<end_of_utterance>"),
    "eom": ("<|eom_id|>",),
    "fim_pre": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>",
                "▁<PRE>", "<|code_prefix|>", "<|prefix|>"),
    "fim_suf": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>",
                "▁<SUF>", "<|code_suffix|>", "<|suffix|>"),
    "fim_mid": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>",
                "▁<MID>", "<|code_middle|>", "<|middle|>"),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
OLD_ROLE_KEYS: Final = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}

# Tokens that end a generation, by role and by text. Files name them in many places, and often only
# some of them, so the set is the union of all. llama.cpp knows the same texts, but for two behind
# which a tool's result stands: FunctionGemma's and Apertus' models would go on and invent it.
END_ROLES: Final = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
END_TEXTS: Final = frozenset({
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|end_of_text|>", "<|endoftext|>", "</s>",
    "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>", "<turn|>", "[e~[",
    "<|tool_response>", "<end_of_utterance>", "<｜end▁of▁sentence｜>", "<eos>", "<EOT>", "_<EOT>",
    "[EOT]", "[EOS]", "<start_function_response>", "<|tools_suffix|>",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of one model.

    texts:        as the file spells them: special tokens as they are, others by `byte_letters`.
    types:        TokenType of each, one byte per token.
    byte_letters: True: a letter for each byte; False: as they are, but SPACE for a space.
    roles:        role -> id of the token that has it: bos, eos, unknown and those of ROLE_TEXTS,
                  where there is one.
    add_bos:      the file's own word on whether a text starts with BOS; None when it has none.
    add_eos:      so on whether one ends with EOS.
    eog_ids:      every token that ends a generation.
    structure_ids: those and others that count as CONTROL for their role, whatever their type.
    control:      text -> id of the tokens that only a template may print.
    user_defined: text -> id of the added words that any text may hold: tool and thinking tags, ...
    """

    texts: Sequence[str]
    types: bytes
    byte_letters: bool
    roles: Mapping[str, int]
    add_bos: bool | None
    add_eos: bool | None
    eog_ids: frozenset[int]
    structure_ids: frozenset[int]
    control: dict[str, int]
    user_defined: dict[str, int]

    @classmethod
    def from_gguf(
        cls,
        gguf: GGUFFile,
        ids: Mapping[str, int],
        *,
        byte_letters: bool,
        usual: Mapping[str, int] | None = None,
    ) -> Self:
        """Read the metadata under `tokenizer.ggml`. Texts stay in the mapping: keep `gguf` open.

        ids:   text -> id of every token, which the caller has made anyway.
        usual: ids of the roles bos, eos and unknown where the file names none.
        Raises GGUFError.
        """
        texts = gguf.get_strings("tokenizer.ggml.tokens")
        types = _token_types(gguf, len(texts))
        named = _named_roles(gguf, len(texts))
        known = _known_roles(ids, named)
        roles = {**(usual or {}), **named, **known}
        ends = {text: ids[text] for text in END_TEXTS if text in ids}
        eog_ids = _end_ids(roles, ends)
        # Some files call these ordinary words. Text may merge to them then, but none shows.
        told_by_text = {*known.values(), *eog_ids.intersection(ends.values())}
        control = told_by_text.union(np.flatnonzero(np.isin(types, HIDDEN)).tolist())
        user_defined = np.flatnonzero(types == TokenType.USER_DEFINED).tolist()
        return cls(
            texts,
            types.tobytes(),
            byte_letters=byte_letters,
            roles=roles,
            add_bos=gguf.get_bool("tokenizer.ggml.add_bos_token", None),
            add_eos=gguf.get_bool("tokenizer.ggml.add_eos_token", None),
            eog_ids=eog_ids,
            structure_ids=eog_ids | told_by_text,
            # A single character cannot be broken by `shield`, so none is ever read as control.
            control={texts[i]: i for i in control if len(texts[i]) > 1},
            user_defined={texts[i]: i for i in user_defined if i not in control},
        )

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes a token stands for; for a special token its name's."""
        text, kind = self.texts[token_id], self.types[token_id]
        if kind in SPECIAL:
            return text.encode("utf-8", "surrogateescape")
        if kind == TokenType.BYTE and (named := _BYTE_TOKEN.fullmatch(text)):
            return bytes.fromhex(named[1])
        if not self.byte_letters:
            return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")
        return b"".join(BYTE_OF.get(c) or c.encode("utf-8", "surrogateescape") for c in text)

    def is_special(self, token_id: int) -> bool:
        """Whether the token stands for itself in a text, cutting it in two."""
        kind = self.types[token_id]
        return kind in (TokenType.CONTROL, TokenType.USER_DEFINED) or token_id in self.structure_ids

    def is_hidden(self, token_id: int) -> bool:
        """Whether the token is structure that is never shown."""
        return self.types[token_id] in HIDDEN or token_id in self.structure_ids


def _byte_letters() -> dict[str, bytes]:
    """GPT-2's alphabet: a printable character for each byte, its own where it has one."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = {chr(byte): byte for byte in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}
    return {letter: bytes([byte]) for letter, byte in letters.items()}


BYTE_OF: Final = _byte_letters()
_BYTE_TOKEN: Final = re.compile("<0x([0-9A-F]{2})>")


def _token_types(gguf: GGUFFile, n_vocab: int) -> npt.NDArray[np.uint8]:
    """u8[n_vocab] TokenType of each token, an own copy; all NORMAL when the file does not say."""
    key = "tokenizer.ggml.token_type"
    types = gguf.get_array(key, None)
    if types is None:
        return np.full(n_vocab, TokenType.NORMAL, np.uint8)
    if len(types) != n_vocab:
        raise GGUFError(gguf.path, f"{key} has {len(types)} entries for {n_vocab} tokens")
    if not ((types >= 0) & (types <= 255)).all():
        raise GGUFError(gguf.path, f"{key} holds values that are no token types")
    return types.astype(np.uint8)


def _named_roles(gguf: GGUFFile, n_vocab: int) -> dict[str, int]:
    """The roles that the file names. Raises GGUFError: to tokens that it does not have."""
    named = {}
    for role in ("bos", "eos", "unknown", *ROLE_TEXTS):
        for name in (role, OLD_ROLE_KEYS.get(role, role)):
            key = f"tokenizer.ggml.{name}_token_id"
            token_id = gguf.get_int(key, None)
            if token_id is None:
                continue
            if not 0 <= token_id < n_vocab:
                raise GGUFError(gguf.path, f"{key} = {token_id} is not one of the {n_vocab} tokens")
            named[role] = token_id
    return named


def _known_roles(ids: Mapping[str, int], named: Mapping[str, int]) -> dict[str, int]:
    """The roles that the file does not name but that a token's text tells."""
    known = {}
    for role, texts in ROLE_TEXTS.items():
        found = next((ids[text] for text in texts if text in ids), None)
        if found is not None and role not in named:
            known[role] = found
    return known


def _end_ids(roles: Mapping[str, int], ends: Mapping[str, int]) -> frozenset[int]:
    ids = {roles[role] for role in END_ROLES if role in roles} | set(ends.values())
    has = ends.keys()
    # gpt-oss and Solar end each message with <|end|>, but a turn with one of the others.
    calls = "<|call|>" in has or "<|calls|>" in has
    if "<|end|>" in has and calls and ("<|return|>" in has or "<|flush|>" in has):
        ids.discard(ends["<|end|>"])
    if has >= {"</s>", "<|tool_response>"}:  # Gemma 4, where </s> is HTML
        ids.discard(ends["</s>"])
    return frozenset(ids)
