"""QuantType: all that the engine knows of one tensor type.

Each type is one file of this folder, which ends in its record; layouts.py is what they share.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.jit import Native

Blocks = npt.NDArray[Any]  # of the type's structured dtype
Floats = npt.NDArray[np.float32]


class FewInput(enum.Enum):
    """The form in which `dot` wants its input row (kernels/activation.py)."""

    FLOATS = "f32"
    FINE8 = "fine8"
    FINE16 = "fine16"


@dataclass(frozen=True, slots=True)
class QuantType:
    """One tensor type of GGUF.

    block:      NumPy dtype of one block; its itemsize is the block's size in the file.
    block_size: weights per block.
    group:      weights that share a scale in an unpacked tile; 0 = the tile is f32 and input rows
                are f32.
    dequantize: blocks[n] -> f32[n, block_size], the reference.
    few_input:  the form of x for dot.
    dot:        (w, row_bytes, n_rows, n_in, x, out): out[r] = weight row r . input row x; f32 out.
                Rows follow one another in memory. The last bits of a result are always the same for
                calls that begin at multiples of ROW_STEP rows of a matrix (kernels/matmul.py).
    dot4:       (w, row_bytes, n_rows, n_in, x, x_bytes, n_x, out, out_bytes): the same for two to
                four input rows, x_bytes apart, to rows of out, out_bytes apart; weights are decoded
                once. Three take the time of four, and room for a fourth. Each result equals dot's,
                to the last bit.
    unpack:     (w, row_bytes, n_rows, k0, kn, tile): columns k0..k0+kn of up to N rows to a tile
                (kernels/tile.py). Rows beyond n_rows repeat the last one.
    tile_dot:   the product that suits the tile (kernels/tile.py).
    """

    name: str
    ggml_type: int
    block: np.dtype[Any]
    block_size: int
    group: int
    dequantize: Callable[[Blocks], Floats]
    few_input: FewInput
    dot: Native
    dot4: Native
    unpack: Native
    tile_dot: Native

    @property
    def block_bytes(self) -> int:
        return self.block.itemsize

    def row_bytes(self, n_in: int) -> int:
        """Bytes of a row of n_in weights."""
        return n_in // self.block_size * self.block_bytes
