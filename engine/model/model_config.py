"""ModelConfig: all numbers of a model, from the GGUF's metadata and, for what no GGUF says, from
the ARCHITECTURES table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engine.errors import GGUFError, UnsupportedModel
from engine.files.gguf_file import GGUFFile
from engine.model.architectures import ARCHITECTURES, EVERY_LAYER, Architecture
from engine.model.mixture import Mixture
from engine.model.rope import Rope

# What kernels/rope.py has room for. Not imported from there: with it would come Numba, for which
# nobody should wait to hear that a file is not supported.
MAX_HEAD_DIM = 512

# Options that no model of the table has. A file that sets one would be run wrongly.
_UNKNOWN_OPTIONS = (
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.temperature_scale",
    "rope.dimension_sections",  # of images, and of text in another pairing
    "rope.scaling.alpha",
)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model, in GGUF's names.

    The residual stream is kept divided by residual_scale, so that blocks add to it what they
    compute, as it is: norms do not see the factor, if their epsilon is divided by its square.
    """

    architecture: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ctx_train: int  # tokens the model was made for
    activation: str
    layer_norm: bool
    norm_eps: float  # of norms inside a block
    stream_eps: float  # of norms of the residual stream
    optional: tuple[str, ...]  # tensors that a layer may lack
    ffn_norm: str  # the tensor that feed-forward's input is normalised with
    mixture: Mixture | None  # None where feed-forward is one block for all tokens
    embedding_scale: float  # of token embeddings on their way into the residual stream
    attention_scale: float  # of the scores before softmax
    attention_soft_cap: float  # of the scaled scores; 0 = none
    logit_scale: float
    logit_soft_cap: float  # 0 = none
    rope: Rope
    window_rope: Rope  # of layers with a window
    window: int  # tokens that a layer with a window looks back on; 0 = no layer has one
    windowed: tuple[bool, ...]  # which layers have one
    roped: tuple[bool, ...]  # which layers have RoPE

    def has_window(self, layer: int) -> bool:
        """Whether a layer looks at the last `window` tokens only."""
        return self.windowed[layer]

    @classmethod
    def from_gguf(cls, gguf: GGUFFile) -> ModelConfig:
        """Raises UnsupportedModel for what this engine cannot run, GGUFError for missing or
        impossible numbers.
        """
        name, row = _architecture(gguf)
        n_ff = _same_in_all_layers(gguf, f"{name}.feed_forward_length", None)
        n_layer = _positive(gguf, f"{name}.block_count")
        n_embd = _positive(gguf, f"{name}.embedding_length")
        n_head = _positive(gguf, f"{name}.attention.head_count")
        head_dim = gguf.get_int(f"{name}.attention.key_length", n_embd // n_head)
        query_size = n_embd // n_head if n_layer == row.n_layer_largest else head_dim
        if query_size <= 0:
            raise GGUFError(gguf.path, f"{name}.attention.key_length: {head_dim} is impossible")
        n_ctx_train = _positive(gguf, f"{name}.context_length")
        rope, window_rope = _ropes(gguf, name, row, head_dim)
        window = _window(gguf, name, row)
        windowed = _windowed(gguf, name, row, n_layer) if window else (False,) * n_layer
        norm_eps = gguf.get_float(
            f"{name}.attention.layer_norm{'' if row.layer_norm else '_rms'}_epsilon"
        )
        residual_scale = _factor(gguf, f"{name}.residual_scale", 1.0)
        if residual_scale != 1.0 and "attn_norm" in row.optional:
            raise UnsupportedModel("model option", f"{name}.residual_scale")
        logit_scale = _factor(gguf, f"{name}.logit_scale", 1.0)
        config = cls(
            architecture=name,
            n_layer=n_layer,
            n_embd=n_embd,
            n_ff=n_ff,
            n_head=n_head,
            n_head_kv=_same_in_all_layers(gguf, f"{name}.attention.head_count_kv", n_head),
            head_dim=head_dim,
            n_ctx_train=n_ctx_train,
            activation=row.activation,
            layer_norm=row.layer_norm,
            norm_eps=norm_eps,
            stream_eps=norm_eps / residual_scale**2,
            optional=row.optional,
            ffn_norm=row.ffn_norm,
            mixture=Mixture.from_gguf(gguf, name, row.router, n_ff),
            embedding_scale=_factor(
                gguf,
                f"{name}.embedding_scale",
                math.sqrt(n_embd) if row.scale_embedding else 1.0,
            )
            / residual_scale,
            attention_scale=_factor(gguf, f"{name}.attention.scale", 1 / math.sqrt(query_size)),
            attention_soft_cap=_soft_cap(
                gguf, f"{name}.attn_logit_softcapping", row.attention_soft_cap
            ),
            logit_scale=1 / logit_scale if row.logit_scale_divides else logit_scale,
            logit_soft_cap=_soft_cap(gguf, f"{name}.final_logit_softcapping", row.logit_soft_cap),
            rope=rope,
            window_rope=window_rope,
            window=window,
            windowed=windowed,
            roped=_roped(gguf, name, row, windowed),
        )
        config._check(gguf, name)
        return config

    def _check(self, gguf: GGUFFile, name: str) -> None:
        if self.n_head % self.n_head_kv:
            raise GGUFError(
                gguf.path,
                f"{name}.attention.head_count_kv: {self.n_head} heads cannot share"
                f" {self.n_head_kv} KV heads",
            )
        if gguf.get_int(f"{name}.attention.value_length", self.head_dim) != self.head_dim:
            raise UnsupportedModel(
                "model option", f"{name}.attention.value_length other than key_length"
            )
        if not 0 < self.head_dim <= MAX_HEAD_DIM or self.head_dim % 16:
            raise UnsupportedModel(
                "head size", f"{self.head_dim} (multiples of 16 up to {MAX_HEAD_DIM})"
            )
        if self.norm_eps <= 0:
            kind = "layer_norm" if self.layer_norm else "layer_norm_rms"
            raise GGUFError(
                gguf.path, f"{name}.attention.{kind}_epsilon: {self.norm_eps} is not positive"
            )
        for width in ("n_embd", "n_ff"):
            if getattr(self, width) % 32:
                raise UnsupportedModel(
                    "width", f"{width} = {getattr(self, width)} (multiples of 32)"
                )


def _architecture(gguf: GGUFFile) -> tuple[str, Architecture]:
    """Its name and its row. Raises UnsupportedModel."""
    name = gguf.get_str("general.architecture")
    if name not in ARCHITECTURES:
        raise UnsupportedModel("architecture", name, tuple(ARCHITECTURES))
    for key in _UNKNOWN_OPTIONS:
        if np.any(np.asarray(gguf.metadata.get(f"{name}.{key}", 0)) != 0):
            raise UnsupportedModel("model option", f"{name}.{key}")
    if not gguf.get_bool(f"{name}.attention.causal", True):
        raise UnsupportedModel("model option", f"{name}.attention.causal = false")
    return name, ARCHITECTURES[name]


def _ropes(gguf: GGUFFile, name: str, row: Architecture, head_dim: int) -> tuple[Rope, Rope]:
    """Of layers that look back on everything, and of those with a window."""
    rope = Rope.from_gguf(gguf, name, head_dim, row.rope_halves)
    base = gguf.get_float(f"{name}.rope.freq_base_swa", row.window_rope_theta or rope.theta)
    return rope, (rope if row.window_rope_scaled else rope.unscaled()).with_base(base)


def _positive(gguf: GGUFFile, key: str) -> int:
    return _checked(gguf, key, gguf.get_int(key))


def _checked(gguf: GGUFFile, key: str, value: int) -> int:
    if not 0 < value < 1 << 31:
        raise GGUFError(gguf.path, f"{key}: {value} is not a sensible number")
    return value


def _factor(gguf: GGUFFile, key: str, default: float) -> float:
    """A factor, the default where it is absent or 0."""
    return gguf.get_float(key, default) or default


def _soft_cap(gguf: GGUFFile, key: str, default: float) -> float:
    cap = gguf.get_float(key, default)
    if cap < 0:
        raise GGUFError(gguf.path, f"{key}: {cap} is negative")
    return cap


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


def _window(gguf: GGUFFile, name: str, row: Architecture) -> int:
    key = f"{name}.attention.sliding_window"
    window = gguf.get_int(key, 0)
    if not 0 <= window < 1 << 31:
        raise GGUFError(gguf.path, f"{key}: {window} is impossible")
    if window and not row.window_period:
        raise UnsupportedModel("model option", key)
    return window


def _windowed(gguf: GGUFFile, name: str, row: Architecture, n_layer: int) -> tuple[bool, ...]:
    """Which layers have a window: as the file says, by a period or layer by layer, or as usual."""
    key = f"{name}.attention.sliding_window_pattern"
    pattern = gguf.metadata.get(key, row.window_period)
    if isinstance(pattern, np.ndarray):
        if len(pattern) != n_layer or pattern.dtype.kind not in "biu":
            raise GGUFError(gguf.path, f"{key}: not one yes or no for each of {n_layer} layers")
        return tuple(bool(one) for one in pattern)
    period = gguf.get_int(key, row.window_period)
    if period < 0:
        raise GGUFError(gguf.path, f"{key}: {period} is negative")
    return tuple((i + 1) % (period or EVERY_LAYER) != 0 for i in range(n_layer))


def _roped(
    gguf: GGUFFile, name: str, row: Architecture, windowed: tuple[bool, ...]
) -> tuple[bool, ...]:
    """Which layers have RoPE."""
    if row.rope_in_windows_only and any(windowed):
        return windowed
    if row.rope_finetuned and not gguf.get_bool(f"{name}.rope.scaling.finetuned", True):
        return (False,) * len(windowed)
    return tuple((i + 1) % (row.nope_period or EVERY_LAYER) != 0 for i in range(len(windowed)))
