"""Text to token ids and back, from the vocabulary of a GGUF file.

One of three mergers cuts ordinary text: byte-level BPE, BPE in characters or SentencePiece. Special
tokens, BOS, EOS, the space that SentencePiece puts before a text, and the way back to text are done
here, so that they follow the GGUF and not a library. Does not know chat templates.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, Self

import numpy as np

from engine.errors import GGUFError, InvalidRequest, UnsupportedModel
from engine.files.gguf_file import GGUFFile
from engine.text.byte_level_bpe import ByteLevelBPE
from engine.text.character_bpe import CharacterBPE
from engine.text.pre_tokenizer import PreTokenizer, choose_pre_tokenizer
from engine.text.sentencepiece import sentencepiece
from engine.text.special_tokens import SpecialTokens, unshield
from engine.text.vocabulary import SENTENCEPIECE_IDS, TokenType, Vocabulary

# `tokenizer.ggml.model`.
BPE: Final = "gpt2"  # in bytes, but for a few pre-tokenizers
SENTENCEPIECE: Final = "llama"
CHARACTER_BPE: Final = "gemma4"
MODELS: Final = (BPE, SENTENCEPIECE, CHARACTER_BPE)

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_WHITESPACE: Final = " \t\n\v\f\r"


class Merger(Protocol):
    """Cuts a text without special tokens into tokens. May raise InvalidRequest."""

    def encode(self, text: str) -> list[int]: ...


class Tokenizer:
    """The tokenizer of one model. Any thread may use it.

    n_vocab: ids are 0 .. n_vocab - 1.
    bos_id:  None when the file names none; so with eos_id.
    add_bos: whether a text starts with `bos_id`.
    add_eos: whether a text that is not a prompt ends with `eos_id`.
    eog_ids: every token that ends a generation.
    space_prefix: whether a space goes before a text, and before one that follows a special token.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        merger: Merger,
        *,
        add_bos: bool,
        space_prefix: bool = False,
        space_eaters: Iterable[int] = (),
    ) -> None:
        """add_bos: the merger's custom, for files that do not say.
        space_eaters: special tokens that swallow the whitespace behind them.
        """
        self.vocabulary: Final = vocabulary
        self.n_vocab: Final = len(vocabulary.texts)
        role = vocabulary.roles.get
        self.bos_id: Final = role("bos")
        self.eos_id: Final = role("eos")
        wants_bos = add_bos if vocabulary.add_bos is None else vocabulary.add_bos
        self.add_bos: Final = wants_bos and self.bos_id is not None
        self.add_eos: Final = bool(vocabulary.add_eos) and self.eos_id is not None
        self.eog_ids: Final = vocabulary.eog_ids
        self.space_prefix: Final = space_prefix
        self._space_eaters = frozenset(space_eaters)
        self._added_words = SpecialTokens(vocabulary.user_defined)
        self._special = SpecialTokens(vocabulary.user_defined | vocabulary.control)
        self._merger = merger

    @classmethod
    def from_gguf(cls, gguf: GGUFFile, pre_substitute: str = "") -> Self:
        """Build from the metadata under `tokenizer`. Texts stay in the mapping: keep `gguf` open.

        pre_substitute: pre-tokenizer to use when the file names one that is not known here.
        Raises UnsupportedModel, GGUFError, ConfigError (the substitute is not known either).
        """
        pre = check_tokenizer(gguf, pre_substitute)
        if pre is None:
            return cls._sentencepiece(gguf)
        return cls._byte_level(gguf, pre) if pre.byte_letters else cls._characters(gguf, pre)

    @classmethod
    def _byte_level(cls, gguf: GGUFFile, pre: PreTokenizer) -> Self:
        ids = _ids_by_text(gguf)
        vocabulary = Vocabulary.from_gguf(gguf, ids, byte_letters=True)
        _drop(ids, vocabulary, TokenType.CONTROL)
        return cls(vocabulary, ByteLevelBPE.from_gguf(gguf, ids, pre), add_bos=pre.add_bos)

    @classmethod
    def _characters(cls, gguf: GGUFFile, pre: PreTokenizer) -> Self:
        ids = _ids_by_text(gguf)
        vocabulary = Vocabulary.from_gguf(gguf, ids, byte_letters=False)
        byte_ids = _byte_ids(gguf, ids, vocabulary)
        _drop(ids, vocabulary, TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE)
        merger = CharacterBPE.from_gguf(gguf, ids, byte_ids, pre.ignore_merges)
        add_bos = pre.add_bos or bool(vocabulary.add_bos)
        return cls(replace(vocabulary, add_bos=add_bos), merger, add_bos=add_bos)

    @classmethod
    def _sentencepiece(cls, gguf: GGUFFile) -> Self:
        ids = _ids_by_text(gguf)
        vocabulary = Vocabulary.from_gguf(gguf, ids, byte_letters=False, usual=SENTENCEPIECE_IDS)
        byte_ids = _byte_ids(gguf, ids, vocabulary)
        _drop(ids, vocabulary, TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE)
        return cls(
            vocabulary,
            sentencepiece(gguf, ids, byte_ids),
            add_bos=True,
            space_prefix=gguf.get_bool("tokenizer.ggml.add_space_prefix", True),
            space_eaters=_space_eaters(gguf, vocabulary),
        )

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        add_special:   begin with BOS and end with EOS if the model wants them; a BOS that stands
                       there is not doubled.
        parse_special: read control tokens in the text. Not for the text of a message.
        Raises InvalidRequest when the text is not Unicode (a lone surrogate), or holds a byte that
        the vocabulary has no token for.
        """
        special = self._special if parse_special else self._added_words
        ids = self._encode(special.split(text), add_special)
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a text to be continued: never ends with EOS, whatever the file says, as
        nothing would follow. Its control tokens count. Raises InvalidRequest as `encode`.
        """
        return self._encode(self._special.split(text), True)

    def encode_template(self, rendered: str) -> list[int]:
        """Token ids of a rendered chat template: its control tokens count, shielded ones do not.

        Begins with one BOS if the model wants one, whether the template printed it or not.
        Raises InvalidRequest as `encode`.
        """
        pieces = self._special.split(rendered)
        return self._encode((unshield(p) if isinstance(p, str) else p for p in pieces), True)

    def encode_continuation(self, text: str) -> list[int]:
        """Token ids of a text that goes on behind other text: nothing is put before it. Control
        tokens' texts stay text. Raises InvalidRequest as `encode`.
        """
        pieces = self._added_words.split(text)
        return [i for p in pieces for i in ([p] if isinstance(p, int) else self._merger.encode(p))]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some tokens, control tokens left out; see StreamDecoder."""
        return self._decode(ids, StreamDecoder(self))

    def decode_all(self, ids: Sequence[int]) -> str:
        """The text of some tokens, control tokens and all."""
        return self._decode(ids, StreamDecoder(self, visible_ids=frozenset(ids)))

    def _decode(self, ids: Iterable[int], decoder: StreamDecoder) -> str:
        return "".join([decoder.push(token_id) for token_id in ids])

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; a control token's are its name's."""
        return self.vocabulary.bytes_of(token_id)

    def _encode(self, pieces: Iterable[str | int], add_bos: bool) -> list[int]:
        ids: list[int] = []
        begins = True  # the text, or the text after a special token
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
                begins = True
                continue
            if lone := _SURROGATE.search(piece):  # JSON can hold one, UTF-8 cannot
                bad = f"U+{ord(lone[0]):04X}"
                raise InvalidRequest(f"the text is not Unicode: it holds a lone surrogate {bad}")
            text = piece.lstrip(_WHITESPACE) if ids and ids[-1] in self._space_eaters else piece
            if text:
                ids += self._merger.encode(f" {text}" if begins and self.space_prefix else text)
                begins = False
        if add_bos and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids


class StreamDecoder:
    """Turns tokens into text one by one and holds back the bytes of an unfinished character.

    Everything `push` returned, joined, is the exact text. Bytes that can be part of no character
    come out as U+FFFD, once that is certain; a character never finished is dropped, as half of one
    is no text. Control tokens are '', but for visible ones. The space that `encode` puts before a
    text is taken away again.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        after: int | None = None,
        visible_ids: frozenset[int] = frozenset(),
    ) -> None:
        """after: the token before the first one; None at the beginning of a text.
        visible_ids: control tokens that come out as their names.
        """
        self._visible_ids = visible_ids
        self._vocabulary = tokenizer.vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._space_prefix = tokenizer.space_prefix
        self._begins = after is None or self._vocabulary.is_special(after)

    def push(self, token_id: int) -> str:
        """The text that is complete with this token."""
        begins, self._begins = self._begins, self._vocabulary.is_special(token_id)
        if token_id not in self._visible_ids and self._vocabulary.is_hidden(token_id):
            return ""
        data = self._vocabulary.bytes_of(token_id)
        if begins and self._space_prefix and not self._begins:
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)


def check_tokenizer(gguf: GGUFFile, pre_substitute: str = "") -> PreTokenizer | None:
    """The pre-tokenizer of a file whose tokenizer is there; None: SentencePiece, which has none.
    Raises as `Tokenizer.from_gguf`, having looked at no token.
    """
    model = gguf.get_str("tokenizer.ggml.model")
    if model not in MODELS:
        raise UnsupportedModel("tokenizer", model, MODELS)
    if model == SENTENCEPIECE:
        return None
    name = model if model == CHARACTER_BPE else gguf.get_str("tokenizer.ggml.pre", "")
    return choose_pre_tokenizer(name, pre_substitute)


def _ids_by_text(gguf: GGUFFile) -> dict[str, int]:
    """text -> id of every token; of equal texts the first one's."""
    texts = gguf.get_strings("tokenizer.ggml.tokens").to_list()
    return dict(zip(reversed(texts), range(len(texts) - 1, -1, -1), strict=True))


def _byte_ids(gguf: GGUFFile, ids: Mapping[str, int], vocabulary: Vocabulary) -> list[int]:
    """[256] token of each byte, the unknown token where there is none. Raises GGUFError."""
    found = [ids.get(f"<0x{byte:02X}>", vocabulary.roles.get("unknown")) for byte in range(256)]
    byte_ids = [token_id for token_id in found if token_id is not None]
    if len(byte_ids) < 256:
        raise GGUFError(gguf.path, "its tokens lack <0x00> .. <0xFF>, or an unknown token")
    return byte_ids


def _drop(ids: dict[str, int], vocabulary: Vocabulary, *types: TokenType) -> None:
    """Take tokens of these types out of `ids`, so that no text may merge to one."""
    dropped = np.isin(np.frombuffer(vocabulary.types, np.uint8), types)
    for token_id in np.flatnonzero(dropped).tolist():
        ids.pop(vocabulary.texts[token_id], None)


def _space_eaters(gguf: GGUFFile, vocabulary: Vocabulary) -> list[int]:
    """Phi-3's special tokens, but for three. No GGUF says so; as llama.cpp, go by the name."""
    if not re.search("phi[ -]?3", gguf.get_str("general.name", "").lower()):
        return []
    special = vocabulary.user_defined | vocabulary.control
    return [special[text] for text in special if text not in ("<unk>", "<s>", "<|endoftext|>")]
