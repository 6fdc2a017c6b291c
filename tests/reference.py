"""The transformer in plain NumPy f32 over dequantised weights: slow, obvious, the judge.

Reads the file with the `gguf` package and shares no code with the engine, so that the two can only
agree by being right. Has no KV cache: every call computes the whole sequence. What a model may or
may not have (biases, norms, an output matrix, RoPE factors) follows from which tensors exist; what
no file says of its architecture stands in that architecture's golden file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor, quants

from tests.golden_cases import facts

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


def soft_cap(x: F32, cap: float) -> F32:
    """Keep x between -cap and cap; 0 = no cap."""
    return np.float32(cap) * np.tanh(x / np.float32(cap)) if cap else x


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


def swiglu_oai(gate: F32, up: F32) -> F32:
    """gpt-oss's gate: both inputs are clamped, and `up` counts from -1 on."""
    gate = np.minimum(gate, np.float32(7))
    y: F32 = gate / (1 + np.exp(-np.float32(1.702) * gate)) * (np.clip(up, -7, 7) + 1)
    return y


def relu_squared(x: F32) -> F32:
    y: F32 = np.maximum(x, 0) ** 2
    return y


ROTATE: Mapping[str, Callable[[F32, F32, F32], F32]] = {
    "neighbours": rotate_pairs,
    "halves": rotate_halves,
}
ACTIVATE: Mapping[str, Callable[[F32], F32]] = {
    "silu": silu,
    "gelu": gelu_tanh,
    "relu_squared": relu_squared,
}


class ReferenceModel:
    """One model, all of it in f32.

    n_ctx: tokens that a chat may have; long-RoPE models have other factors for long contexts.
    """

    def __init__(
        self, metadata: Mapping[str, Any], tensors: Mapping[str, ReaderTensor], n_ctx: int = 256
    ) -> None:
        self.metadata = metadata
        self.tensors = tensors
        self.n_ctx = n_ctx
        self.weights: dict[str, F32] = {}
        self.architecture: str = metadata["general.architecture"]
        self.facts = facts(self.architecture)
        self.rotate = ROTATE[self.facts["rope_pairs"]]
        self.activate = ACTIVATE.get(self.facts.get("activation", "silu"), silu)
        self.n_layer: int = self.number("block_count")
        self.n_embd: int = self.number("embedding_length")
        self.n_head: int = self.number("attention.head_count")
        self.n_head_kv: int = self.number("attention.head_count_kv", self.n_head)
        self.head_dim: int = self.number("attention.key_length", self.n_embd // self.n_head)
        self.n_rot: int = self.number("rope.dimension_count", self.head_dim)
        self.layer_norm: bool = self.facts.get("layer_norm", False)
        kind = "layer_norm" if self.layer_norm else "layer_norm_rms"
        self.eps: float = self.number(f"attention.{kind}_epsilon")
        self.window: int = self.number("attention.sliding_window", 0)
        self.residual_scale = np.float32(self.number("residual_scale", 1.0))

    @classmethod
    def from_gguf(cls, path: str | Path, n_ctx: int = 256) -> ReferenceModel:
        reader = GGUFReader(path)
        # The vocabulary is not needed here, and slow to read with this package.
        metadata = {
            key: field.contents()
            for key, field in reader.fields.items()
            if not key.startswith(("tokenizer.", "GGUF."))
        }
        return cls(metadata, {tensor.name: tensor for tensor in reader.tensors}, n_ctx)

    def number(self, key: str, default: Any = None) -> Any:
        """A number of this architecture; KeyError when it is missing without a default."""
        if default is None:
            return self.metadata[f"{self.architecture}.{key}"]
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def add_lora(self, path: Path, scale: float) -> None:
        """Add an adapter to the weights, for good: W + scale alpha / rank B A."""
        reader = GGUFReader(path)
        pairs = {t.name: quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
        alpha = reader.get_field("adapter.lora.alpha")
        for name in (n.removesuffix(".lora_a") for n in pairs if n.endswith(".lora_a")):
            a, b = pairs[f"{name}.lora_a"], pairs[f"{name}.lora_b"]
            factor = scale * alpha.contents() / b.shape[1] if alpha else scale
            if name == "token_embd.weight":
                self.embedding = self.embedding + np.float32(factor) * a @ b.T
            else:
                self.weights[name] = self.weight(name) + np.float32(factor) * b @ a

    @functools.cached_property
    def embedding(self) -> F32:
        """f32[n_vocab, n_embd]; an adapter of it leaves a tied output as it is."""
        return self.weight("token_embd.weight")

    def weight(self, name: str) -> F32:
        """f32[n_rows, n_in], or f32[n] for a vector."""
        if name not in self.weights:
            tensor = self.tensors[name]
            self.weights[name] = quants.dequantize(tensor.data, tensor.tensor_type)
        return self.weights[name]

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self.tensors

    def linear(self, name: str, x: F32, rows: slice = slice(None)) -> F32:
        """x: f32[n, n_in] -> f32[n, n_rows]; rows: of a tensor that is several in one."""
        y = x @ self.weight(f"{name}.weight")[rows].T
        return y + self.weight(f"{name}.bias")[rows] if f"{name}.bias" in self.tensors else y

    def norm(self, name: str, x: F32) -> F32:
        """Over the last axis; x itself where there is no such tensor."""
        if not self.has(name):
            return x
        centred = x - x.mean(axis=-1, keepdims=True) if self.layer_norm else x
        y = rms_norm(centred, self.weight(f"{name}.weight"), self.eps)
        return y + self.weight(f"{name}.bias") if f"{name}.bias" in self.tensors else y

    def logits(self, ids: Sequence[int]) -> F32:
        """f32[n, n_vocab]: for each position, the logits of the token that follows it."""
        x = self.embedding[np.asarray(ids)]
        root = np.sqrt(self.n_embd) if self.facts.get("scale_embedding") else 1.0
        x = x * np.float32(self.number("embedding_scale", root))
        for i in range(self.n_layer):
            x = self.layer(i, x)
        output = "output" if self.has("output") else "token_embd"
        logits = self.linear(output, self.norm("output_norm", x))
        scale = self.number("logit_scale", 1.0)
        logits *= np.float32(1 / scale if self.facts.get("logit_scale_divides") else scale)
        return soft_cap(logits, self.soft_cap("final_logit_softcapping"))

    def layer(self, i: int, x: F32) -> F32:
        """One transformer block. Without a norm of its own, feed-forward reads what attention
        reads, unless the norms come after the blocks.
        """
        layer = f"blk.{i}"
        normed = self.norm(f"{layer}.attn_norm", x)
        added = self.attention(i, normed)
        ffn_norm = self.facts.get("ffn_norm", "ffn_norm")
        if ffn_norm != "post_attention_norm":
            added = self.norm(f"{layer}.post_attention_norm", added)
        after = x + self.residual_scale * added
        if self.has(f"{layer}.{ffn_norm}") or not self.has(f"{layer}.attn_norm"):
            normed = self.norm(f"{layer}.{ffn_norm}", after)
        return after + self.residual_scale * self.norm(
            f"{layer}.post_ffw_norm", self.ffn(layer, normed)
        )

    def soft_cap(self, key: str) -> float:
        """0 for none."""
        return float(self.number(key, self.facts.get(key, 0.0)))

    def window_of(self, layer: int) -> int:
        """How many tokens a layer looks back on, 0 for all."""
        pattern = self.number(
            "attention.sliding_window_pattern", self.facts.get("window_period", 0)
        )
        if isinstance(pattern, list):
            return self.window if pattern[layer] else 0
        return 0 if pattern and (layer + 1) % pattern == 0 else self.window

    def angles(self, n: int, window: int = 0) -> tuple[F32, F32]:
        """cos and sin of every rotation: f32[n, 1, n_rot/2]"""
        base = self.number("rope.freq_base", 10000.0)
        scaled = True
        if window:
            base = self.number("rope.freq_base_swa", self.facts.get("window_rope_base", base))
            scaled = self.facts.get("window_rope_scaled", True)
        freqs = base ** (-np.arange(0, self.n_rot, 2, dtype=np.float64) / self.n_rot)
        if not scaled:
            return self.turns(n, freqs, 1.0)
        n_ctx_orig = self.number(
            "rope.scaling.original_context_length", self.number("context_length")
        )
        length = "long" if self.n_ctx > n_ctx_orig else "short"
        for factors in ("rope_freqs", f"rope_factors_{length}"):
            if self.has(factors):
                freqs = freqs / self.weight(f"{factors}.weight")
        magnitude = self.number("rope.scaling.attn_factor", 1.0)
        kind = self.number("rope.scaling.type", "linear")  # as llama.cpp takes a bare factor
        if kind in ("none", "longrope"):
            return self.turns(n, freqs, magnitude)
        # The older key, where there is no newer one.
        factor = self.number("rope.scaling.factor", self.number("rope.scale_linear", 1.0))
        if kind == "linear":
            return self.turns(n, freqs / factor, magnitude)
        if kind != "yarn":
            raise NotImplementedError(f"RoPE scaling {kind}")
        # YaRN (Peng et al. 2023): dimensions that turn more than 32 times in the original context
        # stay, those that turn less than once are slowed by the factor, those between in part.
        place = np.arange(self.n_rot // 2)

        def place_of(n_turns: float) -> float:
            return self.n_rot * np.log(n_ctx_orig / (n_turns * 2 * np.pi)) / (2 * np.log(base))

        first = max(np.floor(place_of(32.0)), 0)
        last = min(np.ceil(place_of(1.0)), self.n_rot - 1)
        slowed = np.clip((place - first) / max(last - first, 0.001), 0, 1)
        freqs = freqs * (1 - slowed) + freqs / factor * slowed
        return self.turns(n, freqs, magnitude * (1 + 0.1 * np.log(max(factor, 1.0))))

    def turns(self, n: int, freqs: npt.NDArray[np.float64], magnitude: float) -> tuple[F32, F32]:
        angles = np.arange(n)[:, None, None] * freqs
        cos, sin = magnitude * np.cos(angles), magnitude * np.sin(angles)
        return cos.astype(np.float32), sin.astype(np.float32)

    def rope(self, i: int, x: F32, window: int) -> F32:
        """Rotate the first n_rot elements of each head. x: f32[n, heads, head_dim]"""
        period = self.facts.get("nope_period", 0)
        is_finetuned = self.number("rope.scaling.finetuned", True)
        never = self.facts.get("rope_finetuned", False) and not is_finetuned
        if self.facts.get("rope_in_windows_only") and self.window:
            never = not window
        if never or (period and (i + 1) % period == 0):
            return x
        cos, sin = self.angles(len(x), window)
        rotated = self.rotate(x[..., : self.n_rot], cos, sin)
        return np.concatenate([rotated, x[..., self.n_rot :]], axis=-1)

    def queries_keys_values(self, layer: str, x: F32) -> tuple[F32, F32, F32]:
        """f32[n, heads * head_dim] each"""
        if not self.has(f"{layer}.attn_qkv"):
            q, k, v = (self.linear(f"{layer}.attn_{name}", x) for name in "qkv")
            return q, k, v
        n_q, n_kv = self.n_head * self.head_dim, self.n_head_kv * self.head_dim
        ends = (0, n_q, n_q + n_kv, n_q + 2 * n_kv)
        q, k, v = (
            self.linear(f"{layer}.attn_qkv", x, slice(ends[i], ends[i + 1])) for i in range(3)
        )
        return q, k, v

    def heads(self, norm: str, x: F32) -> F32:
        """f32[n, heads, head_dim], normalised: the whole row, or each head."""
        heads = x.reshape(len(x), -1, self.head_dim)
        is_row = self.has(norm) and self.weight(f"{norm}.weight").shape == (x.shape[1],)
        return self.norm(norm, x).reshape(heads.shape) if is_row else self.norm(norm, heads)

    def attention(self, i: int, x: F32) -> F32:
        n, layer, window = len(x), f"blk.{i}", self.window_of(i)
        q, k, v = self.queries_keys_values(layer, x)
        q = self.rope(i, self.heads(f"{layer}.attn_q_norm", q), window)
        k = self.rope(i, self.heads(f"{layer}.attn_k_norm", k), window)
        v = v.reshape(k.shape)
        hidden = np.triu(np.ones((n, n), dtype=bool), 1)  # positions a query must not see
        if window:
            hidden |= np.tril(np.ones((n, n), dtype=bool), -window)
        scale = np.float32(self.number("attention.scale", 1 / np.sqrt(self.head_dim)))
        heads = []
        for head in range(self.n_head):
            kv_head = head // (self.n_head // self.n_head_kv)
            scores = q[:, head] @ k[:, kv_head].T * scale
            scores = soft_cap(scores, self.soft_cap("attn_logit_softcapping"))
            scores[hidden] = -np.inf
            if self.has(f"{layer}.attn_sinks"):  # a score more, of a token whose value is 0
                sink = np.full((n, 1), self.weight(f"{layer}.attn_sinks.weight")[head])
                scores = np.concatenate([scores, sink], axis=-1)
            heads.append(softmax(scores)[:, :n] @ v[:, kv_head])
        return self.linear(f"{layer}.attn_output", np.concatenate(heads, axis=-1))

    def gated(self, gate: F32, up: F32) -> F32:
        if self.facts.get("activation") == "swiglu_oai":
            return swiglu_oai(gate, up)
        return self.activate(gate) * up

    def expert(self, layer: str, expert: int, x: F32) -> F32:
        """What one expert makes of f32[n, n_embd]."""

        def product(name: str, x: F32) -> F32:
            y: F32 = x @ self.weight(f"{layer}.{name}.weight")[expert].T
            bias = f"{layer}.{name}.bias"
            return y + self.weight(bias)[expert] if bias in self.tensors else y

        gate, up = product("ffn_gate_exps", x), product("ffn_up_exps", x)
        return product("ffn_down_exps", self.gated(gate, up))

    def mixture(self, layer: str, x: F32) -> F32:
        """A mixture of experts, row by row."""
        logits = self.linear(f"{layer}.ffn_gate_inp", x)
        gating = self.facts["router"]
        probs = logits if gating == "softmax_of_chosen" else softmax(logits)
        added = np.zeros_like(x)
        for row in range(len(x)):
            chosen = np.argsort(-probs[row])[: self.number("expert_used_count")]
            factors = probs[row, chosen]
            if gating == "softmax_of_chosen":
                factors = softmax(factors)
            elif gating == "softmax_normalised":
                factors = factors / factors.sum()
            for expert, factor in zip(chosen, factors, strict=True):
                added[row] += factor * self.expert(layer, expert, x[row])
        if not self.has(f"{layer}.ffn_up_shexp"):
            return added
        gate, up = (self.linear(f"{layer}.ffn_{name}_shexp", x) for name in ("gate", "up"))
        shared = self.linear(f"{layer}.ffn_down_shexp", self.gated(gate, up))
        if self.has(f"{layer}.ffn_gate_inp_shexp"):
            share = x @ self.weight(f"{layer}.ffn_gate_inp_shexp.weight").reshape(-1)
            shared = shared / (1 + np.exp(-share))[:, None]
        return added + shared

    def ffn(self, layer: str, x: F32) -> F32:
        if self.has(f"{layer}.ffn_gate_inp"):
            return self.mixture(layer, x)
        n_ff = self.number("feed_forward_length")
        up = self.linear(f"{layer}.ffn_up", x)
        if self.has(f"{layer}.ffn_gate"):
            up = self.gated(self.linear(f"{layer}.ffn_gate", x), up)
        elif up.shape[1] == 2 * n_ff:  # both in one tensor
            up = self.gated(up[:, :n_ff], up[:, n_ff:])
        else:
            up = self.activate(up)
        return self.linear(f"{layer}.ffn_down", up)
