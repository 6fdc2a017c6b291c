"""ARCHITECTURES: what no GGUF says of its architecture, a row each.

The only file that knows architectures by name. A new one is a row here and a golden file in
tests/golden/architectures, if it needs no kernel that is not there yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.model.mixture import Router

EVERY_LAYER = 1 << 30  # a period that never comes to its end


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a GGUF does not say about its architecture."""

    # RoPE turns dimension i with i + n_rot / 2 (True) or 2 i with 2 i + 1 (False).
    rope_halves: bool
    # Of the feed-forward block: "silu", "gelu" (tanh form), "relu_squared", "swiglu_oai".
    activation: str = "silu"
    layer_norm: bool = False  # norms subtract the mean; else they are RMS norms
    # Tensors that a layer may lack. Without "ffn_norm", feed-forward reads what attention reads;
    # without "attn_norm" too, blocks read the residual stream itself; without "ffn_gate",
    # feed-forward is not gated.
    optional: tuple[str, ...] = ()
    ffn_norm: str = "ffn_norm"  # the tensor that feed-forward's input is normalised with
    router: Router | None = None  # of a mixture of experts, where a model may be one
    scale_embedding: bool = False  # embeddings are multiplied with sqrt(n_embd)
    logit_scale_divides: bool = False
    attention_soft_cap: float = 0.0  # where the file gives none; 0 = none
    logit_soft_cap: float = 0.0
    # Of so many layers the last looks at everything, the others at a window; 0: none is expected.
    window_period: int = 0
    window_rope_theta: float = 0.0  # base of the frequencies in layers with a window; 0: the same
    window_rope_scaled: bool = True  # whether RoPE scaling is for layers with a window too
    rope_in_windows_only: bool = False  # where layers have windows, those without have no RoPE
    nope_period: int = 0  # of so many layers the last has no RoPE; 0: all have it
    rope_finetuned: bool = False  # rope.scaling.finetuned = false means that no layer has RoPE
    # The largest model, which no key tells but this many layers, scales attention by n_embd /
    # n_head instead of its heads' size.
    n_layer_largest: int = 0


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        rope_halves=False, window_period=EVERY_LAYER, router=Router(normalises=True)
    ),
    "smollm3": Architecture(rope_halves=False, nope_period=4),
    "qwen2": Architecture(rope_halves=True),
    "qwen3": Architecture(rope_halves=True),
    "gemma": Architecture(rope_halves=True, activation="gelu", scale_embedding=True),
    "gemma2": Architecture(
        rope_halves=True,
        activation="gelu",
        scale_embedding=True,
        attention_soft_cap=50.0,
        logit_soft_cap=30.0,
        window_period=2,
        n_layer_largest=46,
    ),
    "gemma3": Architecture(
        rope_halves=True,
        activation="gelu",
        scale_embedding=True,
        window_period=6,
        window_rope_theta=10000.0,
        window_rope_scaled=False,
        n_layer_largest=62,
    ),
    "phi2": Architecture(
        rope_halves=True, activation="gelu", layer_norm=True, optional=("ffn_norm", "ffn_gate")
    ),
    "phi3": Architecture(rope_halves=True, window_period=EVERY_LAYER),
    "granite": Architecture(rope_halves=False, logit_scale_divides=True, rope_finetuned=True),
    "olmo2": Architecture(
        rope_halves=True,
        optional=("attn_norm", "ffn_norm"),
        window_period=4,
        window_rope_scaled=False,
    ),
    "starcoder2": Architecture(
        rope_halves=True, activation="gelu", layer_norm=True, optional=("ffn_gate",)
    ),
    "stablelm": Architecture(rope_halves=True, layer_norm=True, optional=("ffn_norm",)),
    "command-r": Architecture(rope_halves=False, layer_norm=True, optional=("ffn_norm",)),
    "cohere2": Architecture(
        rope_halves=False,
        layer_norm=True,
        optional=("ffn_norm",),
        window_period=4,
        rope_in_windows_only=True,
    ),
    "exaone": Architecture(rope_halves=True),
    "exaone4": Architecture(
        rope_halves=True,
        optional=("attn_norm", "ffn_norm"),
        window_period=4,
        rope_in_windows_only=True,
    ),
    "glm4": Architecture(rope_halves=False),
    "arcee": Architecture(rope_halves=False, activation="relu_squared", optional=("ffn_gate",)),
    "chatglm": Architecture(rope_halves=False),
    "ernie4_5": Architecture(rope_halves=False),
    "internlm2": Architecture(rope_halves=False),
    "qwen2moe": Architecture(rope_halves=True, router=Router()),
    "qwen3moe": Architecture(rope_halves=True, router=Router(normalises=True)),
    "olmoe": Architecture(rope_halves=True, router=Router()),
    "granitemoe": Architecture(
        rope_halves=False,
        logit_scale_divides=True,
        rope_finetuned=True,
        router=Router(normalises=True),
    ),
    "gpt-oss": Architecture(
        rope_halves=True,
        activation="swiglu_oai",
        ffn_norm="post_attention_norm",
        router=Router("softmax_of_chosen"),
        window_period=2,
    ),
    "nemotron": Architecture(
        rope_halves=True, activation="relu_squared", layer_norm=True, optional=("ffn_gate",)
    ),
}
