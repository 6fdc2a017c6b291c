"""The transformer in plain NumPy f32 over dequantised weights: slow, obvious, the judge.

Reads the file with the `gguf` package and shares no code with the engine, so that the two can only
agree by being right. Has no KV cache: every call computes the whole sequence. Supports the
architectures in ROTATE; what a model may or may not have (biases, an output matrix, RoPE factors)
follows from which tensors exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor, quants

F32 = npt.NDArray[np.float32]


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """x: f32[n, n_embd], normalised row by row."""
    mean_square: F32 = np.mean(x * x, axis=-1, keepdims=True)
    normalised: F32 = x / np.sqrt(mean_square + np.float32(eps))
    return normalised * weight


def silu(x: F32) -> F32:
    with np.errstate(over="ignore"):  # exp(-x) = inf gives -0, which is right
        y: F32 = x / (1 + np.exp(-x))
    return y


def softmax(x: F32) -> F32:
    e: F32 = np.exp(x - x.max(axis=-1, keepdims=True))
    probs: F32 = e / e.sum(axis=-1, keepdims=True)
    return probs


def rotate_pairs(x: F32, cos: F32, sin: F32) -> F32:
    """Rotate the pairs (0, 1), (2, 3), ...

    x: f32[n, heads, n_rot]; cos, sin: f32[n, 1, n_rot / 2]
    """
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


def rotate_halves(x: F32, cos: F32, sin: F32) -> F32:
    """Rotate the pairs (0, n_rot / 2), (1, n_rot / 2 + 1), ...; shapes as for rotate_pairs."""
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def gelu_tanh(x: F32) -> F32:
    y: F32 = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi).astype(np.float32) * (x + 0.044715 * x**3)))
    return y


# What a file does not say about its architecture: which elements RoPE pairs, and for Gemma the
# activation, the scaling of embeddings and the pattern of layers that see a window only.
ROTATE: Mapping[str, Callable[[F32, F32, F32], F32]] = {
    "llama": rotate_pairs,
    "qwen2": rotate_halves,
    "gemma3": rotate_halves,
}
WINDOW_PERIOD, WINDOW_ROPE_BASE = 6, 10000.0  # gemma3: each sixth layer sees everything


class ReferenceModel:
    """One model, all of it in f32."""

    def __init__(self, metadata: Mapping[str, Any], tensors: Mapping[str, ReaderTensor]) -> None:
        self.metadata = metadata
        self.tensors = tensors
        self.weights: dict[str, F32] = {}
        self.architecture: str = metadata["general.architecture"]
        self.rotate = ROTATE[self.architecture]
        self.n_layer: int = self.number("block_count")
        self.n_embd: int = self.number("embedding_length")
        self.n_head: int = self.number("attention.head_count")
        self.n_head_kv: int = self.number("attention.head_count_kv", self.n_head)
        self.head_dim: int = self.number("attention.key_length", self.n_embd // self.n_head)
        self.n_rot: int = self.number("rope.dimension_count", self.head_dim)
        self.rms_eps: float = self.number("attention.layer_norm_rms_epsilon")
        self.is_gemma = self.architecture == "gemma3"
        self.window: int = self.number("attention.sliding_window", 0)

    @classmethod
    def from_gguf(cls, path: str | Path) -> ReferenceModel:
        reader = GGUFReader(path)
        # The vocabulary is not needed here, and slow to read with this package.
        metadata = {
            key: field.contents()
            for key, field in reader.fields.items()
            if not key.startswith(("tokenizer.", "GGUF."))
        }
        return cls(metadata, {tensor.name: tensor for tensor in reader.tensors})

    def number(self, key: str, default: Any = None) -> Any:
        """A number of this architecture; KeyError when it is missing without a default."""
        if default is None:
            return self.metadata[f"{self.architecture}.{key}"]
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def weight(self, name: str) -> F32:
        """f32[n_rows, n_in], or f32[n] for a vector."""
        if name not in self.weights:
            tensor = self.tensors[name]
            self.weights[name] = quants.dequantize(tensor.data, tensor.tensor_type)
        return self.weights[name]

    def linear(self, name: str, x: F32) -> F32:
        """x: f32[n, n_in] -> f32[n, n_rows]"""
        y = x @ self.weight(f"{name}.weight").T
        return y + self.weight(f"{name}.bias") if f"{name}.bias" in self.tensors else y

    def norm(self, name: str, x: F32) -> F32:
        return rms_norm(x, self.weight(f"{name}.weight"), self.rms_eps)

    def logits(self, ids: Sequence[int]) -> F32:
        """f32[n, n_vocab]: for each position, the logits of the token that follows it."""
        x = self.weight("token_embd.weight")[np.asarray(ids)]
        if self.is_gemma:
            x = x * np.float32(np.sqrt(self.n_embd))
        for i in range(self.n_layer):
            layer, window = f"blk.{i}", self.window_of(i)
            added = self.attention(layer, self.norm(f"{layer}.attn_norm", x), window)
            x = x + self.norm_if_there(f"{layer}.post_attention_norm", added)
            added = self.ffn(layer, self.norm(f"{layer}.ffn_norm", x))
            x = x + self.norm_if_there(f"{layer}.post_ffw_norm", added)
        output = "output" if "output.weight" in self.tensors else "token_embd"
        return self.linear(output, self.norm("output_norm", x))

    def norm_if_there(self, name: str, x: F32) -> F32:
        return self.norm(name, x) if f"{name}.weight" in self.tensors else x

    def window_of(self, layer: int) -> int:
        """How many tokens a layer looks back on, 0 for all."""
        return self.window if (layer + 1) % WINDOW_PERIOD else 0

    def angles(self, n: int, window: int = 0) -> tuple[F32, F32]:
        """cos and sin of every rotation: f32[n, 1, n_rot/2]"""
        base = WINDOW_ROPE_BASE if window else self.number("rope.freq_base", 10000.0)
        freqs = base ** (-np.arange(0, self.n_rot, 2, dtype=np.float64) / self.n_rot)
        if "rope_freqs.weight" in self.tensors:
            freqs = freqs / self.weight("rope_freqs.weight")
        scaling = self.number("rope.scaling.type", "linear")  # as llama.cpp takes a bare factor
        if scaling == "linear":
            older_key = self.number("rope.scale_linear", 1.0)
            freqs = freqs / self.number("rope.scaling.factor", older_key)
        elif scaling != "none":
            raise NotImplementedError(f"RoPE scaling {scaling}")
        angles = np.arange(n)[:, None, None] * freqs
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def rope(self, x: F32, cos: F32, sin: F32) -> F32:
        """Rotate the first n_rot elements of each head. x: f32[n, heads, head_dim]"""
        rotated = self.rotate(x[..., : self.n_rot], cos, sin)
        return np.concatenate([rotated, x[..., self.n_rot :]], axis=-1)

    def attention(self, layer: str, x: F32, window: int) -> F32:
        n = len(x)
        q = self.linear(f"{layer}.attn_q", x).reshape(n, self.n_head, self.head_dim)
        k = self.linear(f"{layer}.attn_k", x).reshape(n, self.n_head_kv, self.head_dim)
        v = self.linear(f"{layer}.attn_v", x).reshape(n, self.n_head_kv, self.head_dim)
        cos, sin = self.angles(n, window)
        q = self.rope(self.norm_if_there(f"{layer}.attn_q_norm", q), cos, sin)
        k = self.rope(self.norm_if_there(f"{layer}.attn_k_norm", k), cos, sin)
        hidden = np.triu(np.ones((n, n), dtype=bool), 1)  # positions a query must not see
        if window:
            hidden |= np.tril(np.ones((n, n), dtype=bool), -window)
        heads = []
        for head in range(self.n_head):
            kv_head = head // (self.n_head // self.n_head_kv)
            scores = q[:, head] @ k[:, kv_head].T / np.float32(np.sqrt(self.head_dim))
            scores[hidden] = -np.inf
            heads.append(softmax(scores) @ v[:, kv_head])
        return self.linear(f"{layer}.attn_output", np.concatenate(heads, axis=-1))

    def ffn(self, layer: str, x: F32) -> F32:
        activation = gelu_tanh if self.is_gemma else silu
        gate = activation(self.linear(f"{layer}.ffn_gate", x))
        return self.linear(f"{layer}.ffn_down", gate * self.linear(f"{layer}.ffn_up", x))
