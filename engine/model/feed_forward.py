"""The feed-forward block: two products, an activation function, and a third.

gated    down (activation(gate x) * up x)
plain    down activation(up x)
"""

from __future__ import annotations

from engine.jit import Native
from engine.kernels.activation import gelu, relu_squared, silu, swiglu_oai
from engine.model.plan_writer import PlanWriter
from engine.model.weights import FeedForwardWeights, Matrix

ACTIVATIONS: dict[str, Native] = {
    "silu": silu,
    "gelu": gelu,
    "relu_squared": relu_squared,
    "swiglu_oai": swiglu_oai,
}


class FeedForward:
    """Writes the block's two halves, between which attention may come (transformer.py)."""

    def __init__(self, writer: PlanWriter, n_ff: int, activation: str) -> None:
        self._writer = writer
        self._activation = ACTIVATIONS[activation]
        self._gate, self._up = writer.floats(n_ff), writer.floats(n_ff)

    def readers(self, w: FeedForwardWeights) -> tuple[Matrix, ...]:
        """The matrices that read the block's input."""
        return (w.ffn_up,) if w.ffn_gate is None else (w.ffn_gate, w.ffn_up)

    def read(self, w: FeedForwardWeights, x: int, *, meet: bool = True) -> None:
        """Products with the block's input, whose floats are at x."""
        if w.ffn_gate is not None:
            self._writer.matmul(w.ffn_gate, x, self._gate, meet=False)
        self._writer.matmul(w.ffn_up, x, self._up, meet=meet)

    def write(self, w: FeedForwardWeights, out: int, *, accumulate: int = 0) -> None:
        """The last product, to f32 rows at `out`, or added to them."""
        is_gated = w.ffn_gate is not None
        x = self._gate if is_gated else self._up
        self._writer.activate(self._activation, x, self._up if is_gated else 0, w.ffn_down)
        self._writer.matmul(w.ffn_down, x, out, accumulate=accumulate)
