"""Rope: how fast each pair of a head's dimensions turns with the position, and by what factor it
grows, for every kind of RoPE scaling that GGUF files name.

Numbers and their sense are GGUF's. Nothing here is computed per token: kernels/rope.py does that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from engine.errors import GGUFError, UnsupportedModel
from engine.files.gguf_file import GGUFFile

# What `rope.scaling.type` may say. Llama 3's scaling has no name: it is the tensor rope_freqs.
SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotation of one model's queries and keys, or of its layers with a window."""

    n_rot: int  # dimensions of a head that turn
    halves: bool  # dimension i turns with i + n_rot / 2 (True), or 2 i with 2 i + 1 (False)
    theta: float  # base of the frequencies
    scaling: str = "none"
    factor: float = 1.0  # times that the context is longer than the original one
    attn_factor: float = 1.0  # what sines and cosines are multiplied with, beside YaRN's own
    n_ctx_orig: int = 0  # tokens that the model saw before its context was stretched
    beta_fast: float = 32.0  # YaRN: dimensions that turn more often in n_ctx_orig stay as they are
    beta_slow: float = 1.0  # YaRN: those that turn less often are slowed by the whole factor

    @classmethod
    def from_gguf(cls, gguf: GGUFFile, name: str, head_dim: int, halves: bool) -> Rope:
        """name: of the architecture, which begins each key. Raises GGUFError, UnsupportedModel."""
        n_rot = gguf.get_int(f"{name}.rope.dimension_count", head_dim)
        if n_rot % 2 or not 0 < n_rot <= head_dim:
            raise GGUFError(
                gguf.path,
                f"{name}.rope.dimension_count: {n_rot} is not an even number up to {head_dim}",
            )
        key = f"{name}.rope.scaling"
        # A bare factor without a type means linear; so does the old key. 0 means none.
        scaling = gguf.get_str(f"{key}.type", "linear")
        if scaling not in SCALINGS:
            raise UnsupportedModel("RoPE scaling", scaling, SCALINGS)
        old_factor = gguf.get_float(f"{name}.rope.scale_linear", 1.0)
        n_ctx_train = gguf.get_int(f"{name}.context_length")
        rope = cls(
            n_rot=n_rot,
            halves=halves,
            theta=gguf.get_float(f"{name}.rope.freq_base", 10000.0),
            scaling=scaling,
            factor=gguf.get_float(f"{key}.factor", old_factor) or 1.0,
            attn_factor=gguf.get_float(f"{key}.attn_factor", 1.0),
            n_ctx_orig=gguf.get_int(f"{key}.original_context_length", n_ctx_train),
            beta_fast=gguf.get_float(f"{key}.yarn_beta_fast", 32.0),
            beta_slow=gguf.get_float(f"{key}.yarn_beta_slow", 1.0),
        )
        for what, value in (
            ("freq_base", rope.theta),
            ("scaling.factor", rope.factor),
            ("scaling.attn_factor", rope.attn_factor),
            ("scaling.original_context_length", rope.n_ctx_orig),
            ("scaling.yarn_beta_fast", rope.beta_fast),
            ("scaling.yarn_beta_slow", rope.beta_slow),
        ):
            if value <= 0:
                raise GGUFError(gguf.path, f"{name}.rope.{what}: {value} is not positive")
        return rope

    def with_base(self, theta: float) -> Rope:
        """The same with another base, which must be positive."""
        return replace(self, theta=theta)

    def unscaled(self) -> Rope:
        """The same as if the context had never been stretched."""
        return Rope(self.n_rot, self.halves, self.theta)

    @property
    def magnitude(self) -> float:
        """What sines and cosines are multiplied with."""
        if self.scaling != "yarn":
            return self.attn_factor
        return self.attn_factor * (1 + 0.1 * math.log(max(self.factor, 1.0)))

    def frequencies(self, factors: npt.NDArray[np.float32] | None) -> npt.NDArray[np.float64]:
        """Radians a token, f64[n_rot / 2]. factors: a tensor that they are divided by."""
        pair = np.arange(self.n_rot // 2, dtype=np.float64)
        frequencies = self.theta ** (-2 * pair / self.n_rot)
        if factors is not None:
            frequencies /= factors.astype(np.float64)
        if self.scaling == "linear":
            return frequencies / self.factor
        if self.scaling == "yarn":
            first, last = math.floor(self._pair_of(self.beta_fast)), self._pair_of(self.beta_slow)
            first, last = max(first, 0), min(math.ceil(last), self.n_rot - 1)
            slowed = np.clip((pair - first) / max(last - first, 0.001), 0, 1)
            return frequencies * (1 - slowed + slowed / self.factor)
        return frequencies

    def _pair_of(self, n_turns: float) -> float:
        """Which pair turns so often in n_ctx_orig tokens."""
        tokens_a_radian = self.n_ctx_orig / (n_turns * 2 * math.pi)
        return self.n_rot / 2 * math.log(tokens_a_radian) / math.log(self.theta)
