"""QUANTS: the table of tensor types, by GGML's type number.

A new type is a new file and its name in the tuple below.
"""

from __future__ import annotations

from gguf import GGMLQuantizationType

from engine.errors import UnsupportedModel
from engine.quants import (
    bf16,
    f16,
    f32,
    iq1_m,
    iq1_s,
    iq2_s,
    iq2_xs,
    iq2_xxs,
    iq3_s,
    iq3_xxs,
    iq4_nl,
    iq4_xs,
    mxfp4,
    q2_k,
    q3_k,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
    tq1_0,
    tq2_0,
)
from engine.quants.base import QuantType

_MODULES = (
    *(f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k),
    *(mxfp4, iq4_nl, iq4_xs, iq3_s, iq3_xxs, iq2_s, iq2_xs, iq2_xxs, iq1_m, iq1_s, tq2_0, tq1_0),
)
QUANTS: dict[int, QuantType] = {module.QUANT.ggml_type: module.QUANT for module in _MODULES}


def quant_type(ggml_type: int, tensor: str) -> QuantType:
    """The type of a tensor, by GGML's number, one that the gguf package knows.

    Raises UnsupportedModel, naming the tensor and the types that are there.
    """
    try:
        return QUANTS[ggml_type]
    except KeyError:
        supported = tuple(q.name for q in QUANTS.values())
        name = GGMLQuantizationType(ggml_type).name
        raise UnsupportedModel(f"tensor type of {tensor}", name, supported) from None
