"""QUANTS: the table of tensor types, by GGML's type number.

A new type is a new file and its name in the tuple below. A type's file, and Numba with it, is
imported when the type is first asked for: whether a type is there can be told without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from engine.errors import UnsupportedModel
from engine.files.ggml_types import GGML_TYPES

if TYPE_CHECKING:
    from engine.quants.base import QuantType

_NAMES: Final = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("MXFP4", "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS"),
    *("IQ1_M", "IQ1_S", "TQ2_0", "TQ1_0"),
)


class _Quants(Mapping[int, "QuantType"]):
    """As a dict; only what is looked up is imported."""

    def __init__(self) -> None:
        numbers = {known.name: number for number, known in GGML_TYPES.items()}
        self._names = {numbers[name]: name for name in _NAMES}

    def __getitem__(self, ggml_type: int) -> QuantType:
        module = import_module(f"engine.quants.{self._names[ggml_type].lower()}")
        quant: QuantType = module.QUANT
        return quant

    def __contains__(self, ggml_type: object) -> bool:
        return ggml_type in self._names

    def __iter__(self) -> Iterator[int]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


QUANTS: Final = _Quants()


def check_type(ggml_type: int, tensor: str) -> None:
    """Raises UnsupportedModel where there is no such type, naming the tensor and the types that
    are there. ggml_type: a key of GGML_TYPES.
    """
    if ggml_type not in QUANTS:
        raise UnsupportedModel(f"tensor type of {tensor}", GGML_TYPES[ggml_type].name, _NAMES)


def dequantize(ggml_type: int, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """f32[n] of n weights in whole blocks. F32, which nearly all vectors are, brings no Numba."""
    if GGML_TYPES[ggml_type].name == "F32":
        return data.view(np.float32)
    quant = QUANTS[ggml_type]
    return quant.dequantize(data.view(quant.block)).reshape(-1)
