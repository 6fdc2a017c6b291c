"""Byte-level BPE: words cut by a pre-tokenizer, their bytes as letters, merged by a list of merges.

The `tokenizers` library merges. Does not know special tokens.
"""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterator
from typing import Final, Self

from tokenizers import Tokenizer
from tokenizers.models import BPE

from engine.errors import GGUFError
from engine.gguf_file import GGUFFile
from engine.pre_tokenizer import PreTokenizer

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class ByteLevelBPE:
    """The merges of one vocabulary. Any thread may use it."""

    def __init__(self, bpe: BPE, pre: PreTokenizer) -> None:
        self._tokenizer = Tokenizer(bpe)
        self._tokenizer.pre_tokenizer = pre.splitter()

    @classmethod
    def from_gguf(cls, gguf: GGUFFile, ids: dict[str, int], pre: PreTokenizer) -> Self:
        """Read `tokenizer.ggml.merges`.

        ids: text -> id of the tokens that text may merge to.
        Raises GGUFError.
        """
        with _collector_paused():
            return cls(_build(gguf, ids, pre.ignore_merges), pre)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text that holds no special token."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids


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
