"""SentencePiece BPE: neighbours merge when their joined text is a piece, by the pieces' scores.

Does not know special tokens, nor the space that goes before a text.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import numpy as np

from engine.errors import GGUFError
from engine.files.gguf_file import GGUFFile
from engine.text.character_merger import CharacterMerger


def sentencepiece(gguf: GGUFFile, ids: Mapping[str, int], byte_ids: list[int]) -> CharacterMerger:
    """Read `tokenizer.ggml.scores`; the higher, the earlier a piece is merged to.

    ids, byte_ids: as CharacterMerger's. Raises GGUFError.
    """
    scores = gguf.get_array("tokenizer.ggml.scores")
    n_vocab = len(gguf.get_strings("tokenizer.ggml.tokens"))
    if len(scores) != n_vocab or np.isnan(scores).any():
        raise GGUFError(gguf.path, f"tokenizer.ggml.scores: not {n_vocab} numbers")
    costs = -scores.astype(np.float64)
    by_cost = np.unique(costs, return_inverse=True)[1]  # equal scores, equal ranks
    ranks = array("i", by_cost.astype(np.intc).tobytes())

    def rank_of(word: str, start: int, middle: int, end: int) -> int | None:
        token_id = ids.get(word[start:end])
        return None if token_id is None else ranks[token_id]

    return CharacterMerger(ids, rank_of, byte_ids)
