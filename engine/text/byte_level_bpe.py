"""Byte-level BPE: words cut by a pre-tokenizer, their bytes as letters, merged by a list of merges.

The `tokenizers` library merges. Does not know special tokens.

Some vocabularies lack letters for bytes that their training text never held: control characters,
and bytes of planes that Unicode has not filled. The library drops such bytes, so that the model
would read another text than was sent. Here the text is refused.
"""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterator
from typing import Final, Self

from tokenizers import Tokenizer
from tokenizers.models import BPE

from engine.errors import GGUFError, InvalidRequest
from engine.files.gguf_file import GGUFFile
from engine.text.pre_tokenizer import PreTokenizer
from engine.text.vocabulary import BYTE_OF

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class ByteLevelBPE:
    """The merges of one vocabulary. Any thread may use it."""

    def __init__(self, bpe: BPE, pre: PreTokenizer, missing: bytes = b"") -> None:
        """missing: the bytes that have no token."""
        self._missing = re.compile(b"[%s]" % re.escape(missing)) if missing else None
        self._tokenizer = Tokenizer(bpe)
        self._tokenizer.pre_tokenizer = pre.splitter()

    @classmethod
    def from_gguf(cls, gguf: GGUFFile, ids: dict[str, int], pre: PreTokenizer) -> Self:
        """Read `tokenizer.ggml.merges`.

        ids: text -> id of the tokens that text may merge to.
        Raises GGUFError.
        """
        with _collector_paused():
            bpe = _build(gguf, ids, pre.ignore_merges)
        missing = [byte for letter, byte in BYTE_OF.items() if letter not in ids]
        return cls(bpe, pre, b"".join(missing))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text that holds no special token.

        Raises InvalidRequest when it holds a byte that has no token.
        """
        if self._missing:
            self._refuse_missing(text, self._missing)
        # As a batch of one: that way the library lets go of Python's lock, and a prompt of
        # megabytes holds up neither the other requests nor a signal.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

    @staticmethod
    def _refuse_missing(text: str, missing: re.Pattern[bytes]) -> None:
        data = text.encode()
        if found := missing.search(data):
            char = text[len(data[: found.start()].decode(errors="ignore"))]
            raise InvalidRequest(
                f"the text holds the character U+{ord(char):04X}, but this model's vocabulary has "
                f"no token for its byte 0x{found[0][0]:02X}; remove the character"
            )


def _build(gguf: GGUFFile, ids: dict[str, int], ignore_merges: bool) -> BPE:
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
