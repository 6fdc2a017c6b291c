"""Weights: a model's tensors, by the names that GGUF gives them.

Views of the mapped file; nothing is copied but the few floats of a vector. An absent optional
tensor is None. How they are found and checked is weights_reader.py's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine.files.ggml_types import GGML_TYPES
from engine.model.low_rank import LowRank
from engine.quants import QUANTS

if TYPE_CHECKING:
    from engine.quants.base import QuantType

Vector = npt.NDArray[np.float32]

# Kernels read vectors up to the next multiple of this.
_PADDING = 16


@dataclass(frozen=True, slots=True)
class Matrix:
    """n_out rows of n_in weights in the mapped file, and what is added to their products.

    Of a mixture, n_expert such matrices, one after the other, and as many biases.
    """

    name: str
    ggml_type: int  # a key of QUANTS
    address: int
    n_in: int
    n_out: int
    bias: Vector | None = field(default=None, compare=False)  # f32[n_out]
    n_expert: int = 1
    low_rank: LowRank | None = None  # what adapters add

    @property
    def quant(self) -> QuantType:
        """What can be done with its weights. Brings Numba."""
        return QUANTS[self.ggml_type]

    @property
    def row_bytes(self) -> int:
        return GGML_TYPES[self.ggml_type].bytes_of(self.n_in)

    @property
    def n_bytes(self) -> int:
        """Bytes of one expert's matrix, where there are several."""
        return self.n_out * self.row_bytes

    def rows(self, first: int, n: int) -> Matrix:
        """A view of n rows."""
        bias = None if self.bias is None else padded(self.bias[first : first + n])
        low_rank = None if self.low_rank is None else self.low_rank.rows(first, n)
        address = self.address + first * self.row_bytes
        return replace(self, address=address, n_out=n, bias=bias, low_rank=low_rank)

    @property
    def op_fields(self) -> dict[str, Any]:
        """The fields that describe it to an op."""
        quant = self.quant
        return {
            "weight": self.address,
            "row_bytes": self.row_bytes,
            "n_in": self.n_in,
            "n_out": self.n_out,
            "float_x": int(quant.group == 0),
            "group": quant.group,
            "dot": quant.dot,
            "dot4": quant.dot4,
            "unpack": quant.unpack,
            "tile_dot": quant.tile_dot,
        }


@dataclass(frozen=True, slots=True)
class Norm:
    """What a normalised row is multiplied with, and what is added then: f32[n]."""

    weight: Vector
    bias: Vector | None = None

    def scaled(self, factor: float) -> Norm:
        """A norm whose result is multiplied with a factor."""
        by = np.float32(factor)
        return Norm(self.weight * by, None if self.bias is None else self.bias * by)


@dataclass(frozen=True, slots=True)
class FeedForwardWeights:
    """One feed-forward block, or a mixture's shared expert (ffn_gate_shexp, ...)."""

    ffn_gate: Matrix | None  # [n_ff, n_embd]
    ffn_up: Matrix
    ffn_down: Matrix  # [n_embd, n_ff]

    def matrices(self) -> tuple[Matrix, ...]:
        """Every matrix that each token is multiplied with."""
        gate = () if self.ffn_gate is None else (self.ffn_gate,)
        return (*gate, self.ffn_up, self.ffn_down)


@dataclass(frozen=True, slots=True)
class MixtureWeights:
    """A feed-forward block that is a mixture of experts."""

    n_used: int  # experts that a token takes
    ffn_gate_inp: Matrix  # [n_expert, n_embd], the router
    exp_probs_b: Vector | None  # f32[n_expert], which only the choice of experts sees
    ffn_gate_exps: Matrix  # n_expert of [n_ff, n_embd]
    ffn_up_exps: Matrix
    ffn_down_exps: Matrix  # n_expert of [n_embd, n_ff]
    shared: FeedForwardWeights | None
    ffn_gate_inp_shexp: Matrix | None  # [1, n_embd]: how much the shared expert counts

    def matrices(self) -> tuple[Matrix, ...]:
        """Every matrix that each token is multiplied with, or as many of them."""
        experts = (self.ffn_gate_exps, self.ffn_up_exps, self.ffn_down_exps)
        shared = () if self.shared is None else self.shared.matrices()
        return (self.ffn_gate_inp, *experts * self.n_used, *shared)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer block."""

    attn_norm: Norm | None  # [n_embd]
    attn_q: Matrix  # [n_head * head_dim, n_embd]
    attn_k: Matrix  # [n_head_kv * head_dim, n_embd]
    attn_v: Matrix
    attn_q_norm: Vector | None  # f32[n_head, head_dim], of each head, or f32[n_q], of the whole row
    attn_k_norm: Vector | None
    attn_output: Matrix  # [n_embd, n_head * head_dim]
    post_attention_norm: Norm | None  # [n_embd], of what the block adds to the residual stream
    attn_sinks: Vector | None  # f32[n_head]: of each head, a score whose token is nothing
    ffn_norm: Norm | None
    ffn: FeedForwardWeights | MixtureWeights
    post_ffw_norm: Norm | None

    @property
    def is_parallel(self) -> bool:
        """Whether feed-forward reads what attention reads, instead of what attention left."""
        return self.ffn_norm is None and self.attn_norm is not None

    def matrices(self) -> tuple[Matrix, ...]:
        """Every matrix that each token is multiplied with."""
        attention = (self.attn_q, self.attn_k, self.attn_v, self.attn_output)
        return (*attention, *self.ffn.matrices())


@dataclass(frozen=True, slots=True)
class Weights:
    """All tensors of a model."""

    token_embd: Matrix  # [n_vocab, n_embd]
    blk: tuple[LayerWeights, ...]
    output_norm: Norm
    output: Matrix  # [n_vocab, n_embd]; token_embd where the file has none
    rope_freqs: Vector | None  # f32[n_rot / 2], what RoPE's frequencies are divided by ...
    rope_factors_long: Vector | None  # ... in contexts longer than the original one
    rope_factors_short: Vector | None  # ... in others

    def rope_factors(self, long: bool) -> Vector | None:
        """What RoPE's frequencies are divided by in a long context, or in a short one."""
        if self.rope_freqs is not None:
            return self.rope_freqs
        return self.rope_factors_long if long else self.rope_factors_short


def padded(vector: Vector) -> Vector:
    """A copy of f32[n] in memory that kernels may read up to the next multiple of _PADDING."""
    n = len(vector)
    memory = np.zeros((n + _PADDING - 1) // _PADDING * _PADDING, np.float32)
    memory[:n] = vector
    return memory[:n]
