"""The cut for filling in the middle: whether the text ends, or which of few clear words follows.

Its definition and thresholds are llama.cpp's "infill" sampler's, which editors ask for behind top_k
and top_p. Does not know how a token is drawn from what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from engine.kernels.sampling import total
from engine.sampling.truncation import Candidates, Ids, cut_top_k

_LEAST: Final = 0.2  # of the probability that a word must have, with those that begin like it
_MOST: Final = 128  # tokens that are compared; behind the cuts there are fewer


def infill(
    candidates: Candidates, end_ids: Ids, end: int | None, bytes_of: Callable[[int], bytes]
) -> None:
    """Keep the end tokens where ending is likely, else the words that are clearly meant.

    end_ids: the model's end tokens; end: the one that is left where no word is clear, None = the
    reply may not end here; bytes_of: the bytes of a token, by id; an end token is no word.
    """
    n = candidates.n
    cut_top_k(candidates, _MOST)
    order = np.argsort(-candidates.logits, kind="stable")  # likeliest first
    candidates.take(order)
    assert candidates.ids is not None, "taken by index"
    ids = candidates.ids
    p = candidates.weights / total(candidates.weights)
    is_end = np.isin(ids, end_ids)
    p_end = float(p[is_end].sum())
    if 3 * p_end * n > 1 - p_end:
        candidates.take(np.flatnonzero(is_end))
        return
    ends = is_end.tolist()
    words = [b"" if ends[i] else bytes_of(token_id) for i, token_id in enumerate(ids.tolist())]
    p = _with_longer_ones(p, words)
    kept = is_end | (p >= _LEAST)
    n_words = np.count_nonzero(kept & ~is_end)
    if n_words:
        kept &= is_end | (p / p[kept].sum() >= 1 / (n_words + 1))
        candidates.take(np.flatnonzero(kept))
    elif end is None:
        cut_top_k(candidates, 1)
    else:
        candidates.take_only(end)


def _with_longer_ones(p: npt.NDArray[np.float32], words: list[bytes]) -> npt.NDArray[np.float32]:
    """f32[n]: where one word is the beginning of another, both's probability for the likelier one
    and 0 for the other. "hel" 0.5, "hello" 0.3 -> "hel" 0.8.
    """
    p = p.copy()
    is_in = np.ones(len(p), np.bool_)
    for i, short in enumerate(words):
        for j, long in enumerate(words):
            if not is_in[i]:
                break
            if i == j or not is_in[j] or not short or not long.startswith(short):
                continue
            winner, loser = (j, i) if p[j] > p[i] else (i, j)
            p[winner] += p[loser]
            p[loser], is_in[loser] = 0, False
    return p
