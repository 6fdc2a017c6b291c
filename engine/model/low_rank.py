"""LowRank: what adapters add to a matrix's products, B (A x), ready to be multiplied with.

Adapters are small, a hundredth of their model: they are copied to f32, in memory of their own. So
all that is added to one matrix becomes two products, however many adapters there are, of which type
and rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from engine.files.gguf_file import GGUFFile
from engine.files.gguf_header import TensorInfo
from engine.model.lora import Pair
from engine.quants import dequantize

Floats = npt.NDArray[np.float32]

_RANKS: Final = 16  # kernels read floats in such steps: ranks are filled up with zeros


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """The ranks of all adapters side by side, scaled.

    a: f32[rank, n_in], or for the embedding f32[n_vocab, rank]; b: f32[n_out, rank].
    """

    a: Floats
    b: Floats

    @property
    def rank(self) -> int:
        return int(self.b.shape[1])

    def rows(self, first: int, n: int) -> LowRank:
        """What is added to n rows of the matrix."""
        return LowRank(self.a, self.b[first : first + n])


def low_rank(pairs: Sequence[Pair], *, looked_up: bool = False) -> LowRank | None:
    """All that adapters add to one matrix; None for nothing. looked_up: it is the embedding."""
    if not pairs:
        return None
    n_all = sum(pair.rank for pair in pairs)
    rank = (n_all + _RANKS - 1) // _RANKS * _RANKS
    a_ranks = np.zeros((rank, pairs[0].a.n_rows if looked_up else pairs[0].a.n_in), np.float32)
    b = np.zeros((pairs[0].b.n_rows, rank), np.float32)
    first = 0
    for pair in pairs:
        last = first + pair.rank
        a = _floats(pair.gguf, pair.a)
        a_ranks[first:last] = a.T if looked_up else a
        np.multiply(_floats(pair.gguf, pair.b), np.float32(pair.scale), out=b[:, first:last])
        first = last
    return LowRank(np.ascontiguousarray(a_ranks.T) if looked_up else a_ranks, b)


def _floats(gguf: GGUFFile, tensor: TensorInfo) -> Floats:
    floats = dequantize(tensor.ggml_type, gguf.bytes_of(tensor.name))
    return floats.reshape(tensor.n_rows, tensor.n_in)
