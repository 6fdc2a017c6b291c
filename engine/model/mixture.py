"""Mixture: the numbers of a mixture of experts.

Names and their sense are GGUF's, but for how a router chooses, which only the architecture tells.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import GGUFError, UnsupportedModel
from engine.files.gguf_file import GGUFFile


@dataclass(frozen=True, slots=True)
class Router:
    """How a router's logits become the factors of the experts that it chooses.

    gating:     what makes probabilities of them: "softmax" over all experts, "sigmoid" of each, or
                "softmax_of_chosen", over those that have the largest logits.
    normalises: a row's factors are divided by their sum.
    """

    gating: str = "softmax"
    normalises: bool = False


@dataclass(frozen=True, slots=True)
class Mixture:
    """A model whose feed-forward blocks are mixtures of experts."""

    n_expert: int
    n_used: int  # experts that a token takes
    n_ff: int  # width of an expert
    n_ff_shared: int  # width of the shared expert, which every token takes; 0 = none
    router: Router
    scale: float  # what the factors are multiplied with

    @classmethod
    def from_gguf(
        cls, gguf: GGUFFile, name: str, router: Router | None, n_ff: int
    ) -> Mixture | None:
        """None where the model is no mixture. name: of the architecture, which begins each key;
        router: None where it is not known to have one; n_ff: width where the file gives no other.

        Raises UnsupportedModel, GGUFError.
        """
        n_expert = gguf.get_int(f"{name}.expert_count", 0)
        if n_expert == 0:
            return None
        if router is None:
            raise UnsupportedModel("model option", f"{name}.expert_count")
        has_shared = "blk.0.ffn_up_shexp.weight" in gguf.tensors
        mixture = cls(
            n_expert=n_expert,
            n_used=gguf.get_int(f"{name}.expert_used_count"),
            n_ff=gguf.get_int(f"{name}.expert_feed_forward_length", n_ff),
            n_ff_shared=gguf.get_int(f"{name}.expert_shared_feed_forward_length", n_ff)
            if has_shared
            else 0,
            router=router,
            scale=gguf.get_float(f"{name}.expert_weights_scale", 1.0) or 1.0,
        )
        if not 0 < mixture.n_used <= n_expert < 1 << 16:
            raise GGUFError(
                gguf.path,
                f"{name}.expert_used_count: {mixture.n_used} of {n_expert} experts is impossible",
            )
        for width in (mixture.n_ff, mixture.n_ff_shared):
            if width % 32 or not 0 <= width < 1 << 31 or mixture.n_ff == 0:
                raise UnsupportedModel("width", f"{width} of an expert (multiples of 32)")
        return mixture
