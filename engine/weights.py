"""Weights: named, shape-checked views of the mapped tensors. Attributes are called what the GGUF
calls the tensors.

Nothing is copied but the few floats of a vector that is not stored as F32. An absent optional
tensor is None. A tensor in the file that nobody asks for is refused: a model run without one of its
parts would answer wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import GGUFError, UnsupportedModel
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.quants import quant_type
from engine.quants.base import QuantType


@dataclass(frozen=True, slots=True)
class Matrix:
    """n_out rows of n_in weights in the mapped file."""

    name: str
    quant: QuantType
    address: int
    n_in: int
    n_out: int

    @property
    def row_bytes(self) -> int:
        return self.quant.row_bytes(self.n_in)

    @property
    def n_bytes(self) -> int:
        return self.n_out * self.row_bytes

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


Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer block."""

    attn_norm: Vector  # f32[n_embd]
    attn_q: Matrix  # [n_head * head_dim, n_embd]
    attn_k: Matrix  # [n_head_kv * head_dim, n_embd]
    attn_v: Matrix
    attn_output: Matrix  # [n_embd, n_head * head_dim]
    ffn_norm: Vector
    ffn_gate: Matrix  # [n_ff, n_embd]
    ffn_up: Matrix
    ffn_down: Matrix  # [n_embd, n_ff]
    attn_q_bias: Vector | None
    attn_k_bias: Vector | None
    attn_v_bias: Vector | None
    attn_output_bias: Vector | None
    attn_q_norm: Vector | None  # f32[head_dim], of each head
    attn_k_norm: Vector | None
    post_attention_norm: Vector | None  # f32[n_embd], of what the block adds to the residual stream
    post_ffw_norm: Vector | None

    def matrices(self) -> tuple[Matrix, ...]:
        """Every matrix that each token is multiplied with."""
        return (
            *(self.attn_q, self.attn_k, self.attn_v, self.attn_output),
            *(self.ffn_gate, self.ffn_up, self.ffn_down),
        )


@dataclass(frozen=True, slots=True)
class Weights:
    """All tensors of a model."""

    token_embd: Matrix  # [n_vocab, n_embd]
    blk: tuple[LayerWeights, ...]
    output_norm: Vector
    output: Matrix  # [n_vocab, n_embd]; the embedding where the file has no output
    rope_freqs: Vector | None  # f32[n_rot / 2]: what each frequency is divided by

    @classmethod
    def from_gguf(cls, gguf: GGUFFile, config: ModelConfig) -> Weights:
        """Raises GGUFError for a missing or misshapen tensor, UnsupportedModel for one this engine
        does not know.
        """
        return _Reader(gguf, config).read()


class _Reader:
    def __init__(self, gguf: GGUFFile, config: ModelConfig) -> None:
        self.gguf, self.config = gguf, config
        self.unread = set(gguf.tensors)

    def read(self) -> Weights:
        c = self.config
        embedding = self.gguf.tensor("token_embd.weight")
        n_vocab = embedding.shape[-1]
        token_embd = self.matrix("token_embd", c.n_embd, n_vocab)
        has_output = "output.weight" in self.gguf.tensors
        weights = Weights(
            token_embd=token_embd,
            blk=tuple(self.layer(i) for i in range(c.n_layer)),
            output_norm=self.vector("output_norm.weight", c.n_embd),
            output=self.matrix("output", c.n_embd, n_vocab) if has_output else token_embd,
            rope_freqs=self.optional_vector("rope_freqs.weight", c.n_rot // 2),
        )
        if self.unread:
            raise UnsupportedModel(f"tensor in {self.gguf.path}", sorted(self.unread)[0])
        return weights

    def layer(self, i: int) -> LayerWeights:
        c, blk = self.config, f"blk.{i}."
        n_q, n_kv = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
        # Old files repeat the model's RoPE factors in each layer.
        self.unread.discard(f"{blk}rope_freqs.weight")
        return LayerWeights(
            attn_norm=self.vector(f"{blk}attn_norm.weight", c.n_embd),
            attn_q=self.matrix(f"{blk}attn_q", c.n_embd, n_q),
            attn_k=self.matrix(f"{blk}attn_k", c.n_embd, n_kv),
            attn_v=self.matrix(f"{blk}attn_v", c.n_embd, n_kv),
            attn_output=self.matrix(f"{blk}attn_output", n_q, c.n_embd),
            ffn_norm=self.vector(f"{blk}ffn_norm.weight", c.n_embd),
            ffn_gate=self.matrix(f"{blk}ffn_gate", c.n_embd, c.n_ff),
            ffn_up=self.matrix(f"{blk}ffn_up", c.n_embd, c.n_ff),
            ffn_down=self.matrix(f"{blk}ffn_down", c.n_ff, c.n_embd),
            attn_q_bias=self.optional_vector(f"{blk}attn_q.bias", n_q),
            attn_k_bias=self.optional_vector(f"{blk}attn_k.bias", n_kv),
            attn_v_bias=self.optional_vector(f"{blk}attn_v.bias", n_kv),
            attn_output_bias=self.optional_vector(f"{blk}attn_output.bias", c.n_embd),
            attn_q_norm=self.optional_vector(f"{blk}attn_q_norm.weight", c.head_dim),
            attn_k_norm=self.optional_vector(f"{blk}attn_k_norm.weight", c.head_dim),
            post_attention_norm=self.optional_vector(f"{blk}post_attention_norm.weight", c.n_embd),
            post_ffw_norm=self.optional_vector(f"{blk}post_ffw_norm.weight", c.n_embd),
        )

    def matrix(self, stem: str, n_in: int, n_out: int) -> Matrix:
        name = f"{stem}.weight"
        quant = self.take(name, (n_in, n_out))
        return Matrix(name, quant, self.gguf.address(name), n_in, n_out)

    def vector(self, name: str, n: int) -> Vector:
        quant = self.take(name, (n,))
        blocks = self.gguf.bytes_of(name).view(quant.block)
        return np.ascontiguousarray(quant.dequantize(blocks).reshape(-1))

    def optional_vector(self, name: str, n: int) -> Vector | None:
        return self.vector(name, n) if name in self.gguf.tensors else None

    def take(self, name: str, shape: tuple[int, ...]) -> QuantType:
        """Check a tensor's shape and mark it as read."""
        tensor = self.gguf.tensor(name)
        found = tensor.shape
        while len(found) > len(shape) and found[-1] == 1:
            found = found[:-1]
        if found != shape:
            raise GGUFError(
                self.gguf.path, f"tensor {name}: shape {found} where {shape} is expected"
            )
        self.unread.discard(name)
        return quant_type(tensor.ggml_type, name)
