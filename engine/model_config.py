"""ModelConfig: all numbers of a model, from the GGUF's metadata and, for what no GGUF says, from
the ARCHITECTURES table.

The only file that knows architectures by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engine.errors import GGUFError, UnsupportedModel
from engine.gguf_file import GGUFFile

# What kernels/rope.py has room for. Not imported from there: with it would come Numba, for which
# nobody should wait to hear that a file is not supported.
MAX_HEAD_DIM = 512


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a GGUF does not say about its architecture."""

    rope_halves: (
        bool  # RoPE turns dimension i with i + n_rot / 2 (True) or 2 i with 2 i + 1 (False)
    )
    gelu: bool = False  # activation of the feed-forward block: GELU (tanh form) instead of SiLU
    scale_embedding: bool = False  # embeddings are multiplied with sqrt(n_embd)
    window_period: int = (
        0  # of so many layers, the last looks at everything, the others at a window
    )
    window_rope_theta: float = 0.0  # base of the frequencies in layers with a window


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(rope_halves=False),
    "qwen2": Architecture(rope_halves=True),
    "gemma3": Architecture(
        rope_halves=True,
        gelu=True,
        scale_embedding=True,
        window_period=6,
        window_rope_theta=10000.0,
    ),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model, in GGUF's names."""

    architecture: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ctx_train: int  # tokens the model was made for
    rms_eps: float
    rope_theta: float  # base of the frequencies
    rope_scale: float  # positions are divided by it ("linear" scaling)
    rope_halves: bool
    n_rot: int  # dimensions of a head that RoPE turns
    gelu: bool
    embedding_scale: float
    attention_scale: float  # of the scores before softmax
    window: int  # tokens that a layer with a window looks back on; 0 = no layer has one
    window_period: int
    window_rope_theta: float

    def has_window(self, layer: int) -> bool:
        """Whether a layer looks at the last `window` tokens only."""
        return bool(self.window) and (layer + 1) % self.window_period != 0

    @classmethod
    def from_gguf(cls, gguf: GGUFFile) -> ModelConfig:
        """Raises UnsupportedModel for what this engine cannot run, GGUFError for missing or
        impossible numbers.
        """
        name = gguf.get_str("general.architecture")
        if name not in ARCHITECTURES:
            raise UnsupportedModel("architecture", name, tuple(ARCHITECTURES))
        row = ARCHITECTURES[name]
        if gguf.get_int(f"{name}.expert_count", 0):
            raise UnsupportedModel("model option", f"{name}.expert_count (a mixture of experts)")

        window = gguf.get_int(f"{name}.attention.sliding_window", 0)
        if not 0 <= window < 1 << 31:
            raise GGUFError(gguf.path, f"{name}.attention.sliding_window: {window} is impossible")
        if window and not row.window_period:
            raise UnsupportedModel("model option", f"{name}.attention.sliding_window")
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if gguf.get_float(f"{name}.{key}", 0.0):
                raise UnsupportedModel("model option", f"{name}.{key}")
        n_embd = _positive(gguf, f"{name}.embedding_length")
        n_head = _positive(gguf, f"{name}.attention.head_count")
        n_head_kv = _same_in_all_layers(gguf, f"{name}.attention.head_count_kv", n_head)
        head_dim = gguf.get_int(f"{name}.attention.key_length", n_embd // n_head)
        n_layer = _positive(gguf, f"{name}.block_count")
        # Gemma 3 of 27B, which no key of its file tells, scales by another size than its heads'.
        is_27b = name == "gemma3" and n_layer == 62
        query_size = n_embd // n_head if is_27b else head_dim
        if query_size <= 0:
            raise GGUFError(gguf.path, f"{name}.attention.key_length: {head_dim} is impossible")
        config = cls(
            architecture=name,
            n_layer=n_layer,
            n_embd=n_embd,
            n_ff=_same_in_all_layers(gguf, f"{name}.feed_forward_length", None),
            n_head=n_head,
            n_head_kv=n_head_kv,
            head_dim=head_dim,
            n_ctx_train=_positive(gguf, f"{name}.context_length"),
            rms_eps=gguf.get_float(f"{name}.attention.layer_norm_rms_epsilon"),
            rope_theta=gguf.get_float(f"{name}.rope.freq_base", 10000.0),
            rope_scale=_linear_rope_scale(gguf, name),
            rope_halves=row.rope_halves,
            n_rot=gguf.get_int(f"{name}.rope.dimension_count", head_dim),
            gelu=row.gelu,
            embedding_scale=math.sqrt(n_embd) if row.scale_embedding else 1.0,
            attention_scale=1 / math.sqrt(query_size),
            window=window,
            window_period=row.window_period,
            window_rope_theta=row.window_rope_theta,
        )
        config._check(gguf, name)
        return config

    def _check(self, gguf: GGUFFile, name: str) -> None:
        def refuse(key: str, why: str) -> None:
            raise GGUFError(gguf.path, f"{name}.{key}: {why}")

        if self.n_head % self.n_head_kv:
            refuse(
                "attention.head_count_kv",
                f"{self.n_head} heads cannot share {self.n_head_kv} KV heads",
            )
        if gguf.get_int(f"{name}.attention.value_length", self.head_dim) != self.head_dim:
            raise UnsupportedModel(
                "model option", f"{name}.attention.value_length other than key_length"
            )
        if not 0 < self.head_dim <= MAX_HEAD_DIM or self.head_dim % 16:
            raise UnsupportedModel(
                "head size", f"{self.head_dim} (multiples of 16 up to {MAX_HEAD_DIM})"
            )
        if self.n_rot % 2 or not 0 < self.n_rot <= self.head_dim:
            refuse(
                "rope.dimension_count", f"{self.n_rot} is not an even number up to {self.head_dim}"
            )
        if self.rms_eps <= 0:
            refuse("attention.layer_norm_rms_epsilon", f"{self.rms_eps} is not positive")
        if self.rope_theta <= 0:
            refuse("rope.freq_base", f"{self.rope_theta} is not positive")
        for width in ("n_embd", "n_ff"):
            if getattr(self, width) % 32:
                raise UnsupportedModel(
                    "width", f"{width} = {getattr(self, width)} (multiples of 32)"
                )


def _positive(gguf: GGUFFile, key: str) -> int:
    return _checked(gguf, key, gguf.get_int(key))


def _checked(gguf: GGUFFile, key: str, value: int) -> int:
    if not 0 < value < 1 << 31:
        raise GGUFError(gguf.path, f"{key}: {value} is not a sensible number")
    return value


def _same_in_all_layers(gguf: GGUFFile, key: str, default: int | None) -> int:
    """A number that some files give as one number, some for each layer.

    Different ones are refused.
    """
    value = gguf.metadata.get(key)
    if isinstance(value, np.ndarray):
        if len(value) == 0 or value.dtype.kind not in "iu":
            raise GGUFError(gguf.path, f"{key}: not whole numbers, one for each layer")
        if len(set(value.tolist())) != 1:
            raise UnsupportedModel("model option", f"{key} that differs between layers")
        return _checked(gguf, key, int(value[0]))
    if default is not None and key not in gguf.metadata:
        return default
    return _positive(gguf, key)


def _linear_rope_scale(gguf: GGUFFile, name: str) -> float:
    """The factor of linear RoPE scaling, 1 for none.

    A bare factor without a type means linear; so does the old key.
    """
    kind = gguf.get_str(f"{name}.rope.scaling.type", "")
    if kind not in ("", "none", "linear"):
        raise UnsupportedModel("RoPE scaling", kind, ("none", "linear"))
    if kind == "none":
        return 1.0
    old = gguf.get_float(f"{name}.rope.scale_linear", 1.0)
    factor = gguf.get_float(f"{name}.rope.scaling.factor", old)
    if factor < 0:
        raise GGUFError(gguf.path, f"{name}.rope.scaling.factor: {factor} is negative")
    return factor or 1.0  # 0 means none
