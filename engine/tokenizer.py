"""Text to token ids and back: byte-level BPE, from the vocabulary and merges of a GGUF file.

The `tokenizers` library merges. Special tokens, BOS and the way back to text are done here, so that
they follow the GGUF and not the library. Does not know chat templates.
"""

from __future__ import annotations

import codecs
import contextlib
import gc
import re
from collections.abc import Iterable, Iterator
from typing import Final, Self

import tokenizers
from tokenizers.models import BPE

from engine.errors import GGUFError, InvalidRequest, UnsupportedModel
from engine.gguf_file import GGUFFile
from engine.pre_tokenizer import PreTokenizer, choose_pre_tokenizer
from engine.special_tokens import SpecialTokens, unshield
from engine.vocabulary import TokenType, Vocabulary

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """The tokenizer of one model. Any thread may use it.

    n_vocab: ids are 0 .. n_vocab - 1.
    bos_id:  None when the file names none; so with eos_id.
    add_bos: whether a prompt starts with `bos_id`.
    eog_ids: every token that ends a generation.
    """

    def __init__(self, vocabulary: Vocabulary, bpe: BPE, pre: PreTokenizer) -> None:
        self.vocabulary: Final = vocabulary
        self.n_vocab: Final = len(vocabulary.texts)
        self.bos_id: Final = vocabulary.bos_id
        self.eos_id: Final = vocabulary.eos_id
        wants_bos = pre.add_bos if vocabulary.add_bos is None else vocabulary.add_bos
        self.add_bos: Final = wants_bos and vocabulary.bos_id is not None
        self.eog_ids: Final = vocabulary.eog_ids
        self._added_words = SpecialTokens(vocabulary.user_defined)
        self._special = SpecialTokens(vocabulary.user_defined | vocabulary.control)
        self._bpe = tokenizers.Tokenizer(bpe)
        self._bpe.pre_tokenizer = pre.splitter()

    @classmethod
    def from_gguf(cls, gguf: GGUFFile, pre_substitute: str = "") -> Self:
        """Build from the metadata under `tokenizer`. Texts stay in the mapping: keep `gguf` open.

        pre_substitute: pre-tokenizer to use when the file names one that is not known here.
        Raises UnsupportedModel, GGUFError, ConfigError (the substitute is not known either).
        """
        model = gguf.get_str("tokenizer.ggml.model")
        if model != "gpt2":
            raise UnsupportedModel("tokenizer", model, ("gpt2",))
        pre = choose_pre_tokenizer(gguf.get_str("tokenizer.ggml.pre", ""), pre_substitute)
        texts = gguf.get_strings("tokenizer.ggml.tokens").to_list()
        # Backwards, so that of equal texts the first one's id stays.
        ids = dict(zip(reversed(texts), range(len(texts) - 1, -1, -1), strict=True))
        vocabulary = Vocabulary.from_gguf(gguf, ids)
        for text, token_id in vocabulary.control.items():
            if vocabulary.types[token_id] == TokenType.CONTROL:
                ids.pop(text, None)  # no text may merge to one
        return cls(vocabulary, _build_bpe(gguf, ids, pre.ignore_merges), pre)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        add_special:   begin with BOS if the model wants one; one that stands there is not doubled.
        parse_special: read control tokens in the text. Only for text that no user wrote.
        Raises InvalidRequest when the text is not Unicode (a lone surrogate).
        """
        special = self._special if parse_special else self._added_words
        return self._encode(special.split(text), add_special)

    def encode_template(self, rendered: str) -> list[int]:
        """Token ids of a rendered chat template: its control tokens count, shielded ones do not.

        Begins with one BOS if the model wants one, whether the template printed it or not.
        Raises InvalidRequest when the text is not Unicode.
        """
        pieces = self._special.split(rendered)
        return self._encode((unshield(p) if isinstance(p, str) else p for p in pieces), True)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some tokens, control tokens left out; see StreamDecoder."""
        decoder = StreamDecoder(self)
        return "".join([decoder.push(token_id) for token_id in ids]) + decoder.flush()

    def _encode(self, pieces: Iterable[str | int], add_special: bool) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            ids += [piece] if isinstance(piece, int) else self._encode_words(piece)
        if add_special and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def _encode_words(self, text: str) -> list[int]:
        if lone := _SURROGATE.search(text):  # JSON can hold one, UTF-8 cannot
            bad = f"U+{ord(lone[0]):04X}"
            raise InvalidRequest(f"the text is not Unicode: it holds a lone surrogate {bad}")
        return self._bpe.encode(text, add_special_tokens=False).ids


class StreamDecoder:
    """Turns tokens into text one by one and holds back the bytes of an unfinished character.

    Everything `push` returned, joined, is the exact text. Bytes that can be part of no character
    come out as U+FFFD, once that is certain. Control tokens are ''.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocabulary = tokenizer.vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that is complete with this token."""
        if self._vocabulary.is_hidden(token_id):
            return ""
        return self._utf8.decode(self._vocabulary.bytes_of(token_id))

    def flush(self) -> str:
        """End the text; ''. A character never finished is dropped: half of one is no text."""
        self._utf8.reset()
        return ""


def _build_bpe(gguf: GGUFFile, ids: dict[str, int], ignore_merges: bool) -> BPE:
    with _collector_paused():
        merges = gguf.get_strings("tokenizer.ggml.merges")
        halves = " ".join(merges.to_list()).split(" ")
        if len(halves) != 2 * len(merges):
            raise GGUFError(gguf.path, "tokenizer.ggml.merges: each is two tokens and a space")
        pairs = list(zip(halves[::2], halves[1::2], strict=True))
        del halves  # 30 MB
        try:
            return BPE(ids, pairs, ignore_merges=ignore_merges)
        except Exception:
            # The library wants merges of known tokens to known tokens, in Unicode. Files with a cut
            # vocabulary or damaged texts hold others, which no text could use.
            known = {text: i for text, i in ids.items() if not _SURROGATE.search(text)}
            usable = [(a, b) for a, b in pairs if a in known and b in known and a + b in known]
            return BPE(known, usable, ignore_merges=ignore_merges)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Half a million tuples make the cycle collector walk the heap again and again, for 0.2 s."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
