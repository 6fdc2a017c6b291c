"""read_weights: a file's tensors found by name, their shapes checked.

A tensor that is several in one (attn_qkv, gate and up) becomes views of its rows. A tensor in the
file that nobody asks for is refused: a model run without one of its parts would answer wrongly.
Brings no Numba, unless a vector is of a rare type.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.errors import GGUFError, UnsupportedModel
from engine.files.gguf_file import GGUFFile
from engine.files.gguf_header import TensorInfo
from engine.model.lora import EMBEDDING, Adapters
from engine.model.low_rank import low_rank
from engine.model.mixture import Mixture
from engine.model.model_config import ModelConfig
from engine.model.weights import (
    FeedForwardWeights,
    LayerWeights,
    Matrix,
    MixtureWeights,
    Norm,
    Vector,
    Weights,
    padded,
)
from engine.quants import check_type, dequantize


def read_weights(gguf: GGUFFile, config: ModelConfig, adapters: Adapters | None = None) -> Weights:
    """Views of all tensors; `gguf` must stay open as long as they are used. What adapters add is
    copied.

    Raises GGUFError for a missing or misshapen tensor, UnsupportedModel for one this engine does
    not know, or cannot adapt.
    """
    return _Reader(gguf, config, adapters or Adapters((), gguf)).read()


class _Reader:
    def __init__(self, gguf: GGUFFile, config: ModelConfig, adapters: Adapters) -> None:
        self.gguf, self.config, self.adapters = gguf, config, adapters
        self.unread = set(gguf.tensors)

    def read(self) -> Weights:
        c = self.config
        n_vocab = self.gguf.tensor("token_embd.weight").shape[-1]
        token_embd = self.matrix("token_embd", c.n_embd, n_vocab)
        # Where one matrix is both, adapters change the embedding, as they were trained.
        tied = replace(token_embd, low_rank=None) if token_embd.low_rank else token_embd
        long_rope = c.rope.scaling == "longrope" or self.has("rope_factors_long")
        weights = Weights(
            token_embd=token_embd,
            blk=tuple(self.layer(f"blk.{i}.") for i in range(c.n_layer)),
            output_norm=self.norm("output_norm"),
            output=self.matrix("output", c.n_embd, n_vocab) if self.has("output") else tied,
            rope_freqs=self.rope_factors("rope_freqs") if self.has("rope_freqs") else None,
            rope_factors_long=self.rope_factors("rope_factors_long") if long_rope else None,
            rope_factors_short=self.rope_factors("rope_factors_short") if long_rope else None,
        )
        if self.unread:
            raise UnsupportedModel(f"tensor in {self.gguf.path}", sorted(self.unread)[0])
        self.adapters.check_all_taken()
        return weights

    def layer(self, blk: str) -> LayerWeights:
        c = self.config
        n_q = c.n_head * c.head_dim
        # Old files repeat the model's RoPE factors in each layer, or have its frequencies there.
        self.unread -= {f"{blk}rope_freqs.weight", f"{blk}attn_rot_embd.weight"}
        attn_q, attn_k, attn_v = self.queries_keys_values(blk)
        return LayerWeights(
            attn_norm=self.norm_unless_optional(blk, "attn_norm"),
            attn_q=attn_q,
            attn_k=attn_k,
            attn_v=attn_v,
            attn_q_norm=self.head_norm(f"{blk}attn_q_norm", c.n_head),
            attn_k_norm=self.head_norm(f"{blk}attn_k_norm", c.n_head_kv),
            attn_output=self.matrix(f"{blk}attn_output", n_q, c.n_embd),
            attn_sinks=self.optional_vector(f"{blk}attn_sinks.weight", c.n_head),
            ffn_norm=self.norm_unless_optional(blk, c.ffn_norm),
            post_attention_norm=None
            if c.ffn_norm == "post_attention_norm"
            else self.optional_norm(f"{blk}post_attention_norm"),
            ffn=self.feed_forward(blk) if c.mixture is None else self.mixture(blk, c.mixture),
            post_ffw_norm=self.optional_norm(f"{blk}post_ffw_norm"),
        )

    def queries_keys_values(self, blk: str) -> tuple[Matrix, Matrix, Matrix]:
        c = self.config
        n_q, n_kv = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
        if self.has(f"{blk}attn_qkv"):
            all_three = self.matrix(f"{blk}attn_qkv", c.n_embd, n_q + 2 * n_kv)
            return (
                all_three.rows(0, n_q),
                all_three.rows(n_q, n_kv),
                all_three.rows(n_q + n_kv, n_kv),
            )
        return (
            self.matrix(f"{blk}attn_q", c.n_embd, n_q),
            self.matrix(f"{blk}attn_k", c.n_embd, n_kv),
            self.matrix(f"{blk}attn_v", c.n_embd, n_kv),
        )

    def feed_forward(self, blk: str) -> FeedForwardWeights:
        gate, up = self.gate_and_up(blk)
        down = self.matrix(f"{blk}ffn_down", self.config.n_ff, self.config.n_embd)
        return FeedForwardWeights(gate, up, down)

    def mixture(self, blk: str, m: Mixture) -> MixtureWeights:
        n_embd, n_ff, has_shared = self.config.n_embd, m.n_ff, m.n_ff_shared > 0
        has_share = has_shared and self.has(f"{blk}ffn_gate_inp_shexp")
        return MixtureWeights(
            n_used=m.n_used,
            ffn_gate_inp=self.matrix(f"{blk}ffn_gate_inp", n_embd, m.n_expert),
            exp_probs_b=self.optional_vector(f"{blk}exp_probs_b.bias", m.n_expert),
            ffn_gate_exps=self.experts(f"{blk}ffn_gate_exps", n_embd, n_ff, m.n_expert),
            ffn_up_exps=self.experts(f"{blk}ffn_up_exps", n_embd, n_ff, m.n_expert),
            ffn_down_exps=self.experts(f"{blk}ffn_down_exps", n_ff, n_embd, m.n_expert),
            shared=self.shared_expert(blk, m.n_ff_shared) if has_shared else None,
            ffn_gate_inp_shexp=self.matrix(f"{blk}ffn_gate_inp_shexp", n_embd, 1)
            if has_share
            else None,
        )

    def experts(self, stem: str, n_in: int, n_out: int, n: int) -> Matrix:
        name, bias = f"{stem}.weight", f"{stem}.bias"
        tensor = self.take(name, (n_in, n_out, n))
        biases = self.vector(bias, n_out, n) if bias in self.gguf.tensors else None
        return Matrix(name, tensor.ggml_type, self.gguf.address(name), n_in, n_out, biases, n)

    def shared_expert(self, blk: str, n_ff: int) -> FeedForwardWeights:
        n_embd = self.config.n_embd
        return FeedForwardWeights(
            ffn_gate=self.matrix(f"{blk}ffn_gate_shexp", n_embd, n_ff),
            ffn_up=self.matrix(f"{blk}ffn_up_shexp", n_embd, n_ff),
            ffn_down=self.matrix(f"{blk}ffn_down_shexp", n_ff, n_embd),
        )

    def gate_and_up(self, blk: str) -> tuple[Matrix | None, Matrix]:
        c = self.config
        gate, up = f"{blk}ffn_gate", f"{blk}ffn_up"
        if not self.has(gate) and self.gguf.tensor(f"{up}.weight").shape[-1] == 2 * c.n_ff:
            both = self.matrix(up, c.n_embd, 2 * c.n_ff)
            return both.rows(0, c.n_ff), both.rows(c.n_ff, c.n_ff)
        if not self.has(gate) and "ffn_gate" in c.optional:
            return None, self.matrix(up, c.n_embd, c.n_ff)
        return self.matrix(gate, c.n_embd, c.n_ff), self.matrix(up, c.n_embd, c.n_ff)

    def has(self, stem: str) -> bool:
        return f"{stem}.weight" in self.gguf.tensors

    def matrix(self, stem: str, n_in: int, n_out: int) -> Matrix:
        name = f"{stem}.weight"
        tensor = self.take(name, (n_in, n_out))
        bias = self.optional_vector(f"{stem}.bias", n_out)
        added = low_rank(self.adapters.take(name), looked_up=name == EMBEDDING)
        address = self.gguf.address(name)
        return Matrix(name, tensor.ggml_type, address, n_in, n_out, bias, low_rank=added)

    def norm(self, stem: str) -> Norm:
        n = self.config.n_embd
        return Norm(self.vector(f"{stem}.weight", n), self.optional_vector(f"{stem}.bias", n))

    def optional_norm(self, stem: str) -> Norm | None:
        return self.norm(stem) if self.has(stem) else None

    def norm_unless_optional(self, blk: str, name: str) -> Norm | None:
        optional = name in self.config.optional and not self.has(f"{blk}{name}")
        return None if optional else self.norm(f"{blk}{name}")

    def head_norm(self, stem: str, n_head: int) -> Vector | None:
        """f32[n_head, head_dim], also where all heads share one; or f32[n_head * head_dim]."""
        if not self.has(stem):
            return None
        name, head_dim = f"{stem}.weight", self.config.head_dim
        shape = self.gguf.tensor(name).shape
        if shape == (n_head * head_dim,) and n_head > 1:
            return self.vector(name, *shape)
        if len(shape) == 1:
            return np.tile(self.vector(name, head_dim), (n_head, 1))
        return self.vector(name, head_dim, n_head).reshape(n_head, head_dim)

    def rope_factors(self, stem: str) -> Vector:
        name, n = f"{stem}.weight", self.config.rope.n_rot // 2
        factors = self.vector(name, n)
        if not np.all(np.isfinite(factors[:n]) & (factors[:n] > 0)):
            raise GGUFError(
                self.gguf.path, f"tensor {name}: frequencies are divided by it; all must be above 0"
            )
        return factors

    def vector(self, name: str, *shape: int) -> Vector:
        tensor = self.take(name, shape)
        return padded(dequantize(tensor.ggml_type, self.gguf.bytes_of(name)))

    def optional_vector(self, name: str, n: int) -> Vector | None:
        return self.vector(name, n) if name in self.gguf.tensors else None

    def take(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """Check a tensor's shape and type, and mark it as read."""
        tensor = self.gguf.tensor(name)
        if _without_ones(tensor.shape) != _without_ones(shape):
            raise GGUFError(
                self.gguf.path, f"tensor {name}: shape {tensor.shape} where {shape} is expected"
            )
        check_type(tensor.ggml_type, name)
        self.unread.discard(name)
        return tensor


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without dimensions of 1 at its end, which say nothing."""
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape
