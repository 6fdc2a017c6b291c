"""The feed-forward block of a mixture of experts: a router chooses a few experts for each row, and
what they make of it is added up.

    sum over the chosen experts e of  factor[e] * down[e] (activation(gate[e] x) * up[e] x)
    + sigmoid(share x) * what the shared expert makes of x, where there is one
"""

from __future__ import annotations

from typing import Any

from engine.kernels.experts import combine, expert_matmul, gather
from engine.kernels.op import FEW, ROW_GROUP
from engine.kernels.routing import SIGMOID, SOFTMAX, SOFTMAX_OF_CHOSEN, route, sort_pairs
from engine.model.feed_forward import ACTIVATIONS, FeedForward
from engine.model.input_forms import InputForms
from engine.model.mixture import Mixture
from engine.model.plan_writer import PlanWriter
from engine.model.weights import Matrix, MixtureWeights

_GATINGS = {"softmax": SOFTMAX, "sigmoid": SIGMOID, "softmax_of_chosen": SOFTMAX_OF_CHOSEN}


class MixtureOfExperts:
    """Writes the block's two halves, as FeedForward does.

    Its own buffers hold a row for each pair of a row and an expert, by place (kernels/routing.py).
    """

    def __init__(self, writer: PlanWriter, config: Mixture, n_embd: int, activation: str) -> None:
        self._writer, self._config, self._n_embd = writer, config, n_embd
        self._activation = ACTIVATIONS[activation]
        n = config.n_expert
        n_pairs = writer.n_rows * config.n_used
        self._n_places = n_places = n_pairs + n * (ROW_GROUP - 1)
        reserve = writer.workspace.reserve
        self._logits = writer.floats((n + 15) // 16 * 16)
        self._routing: dict[str, Any] = {
            "n_expert": n,
            "n_used": config.n_used,
            "chosen": reserve(4 * n_pairs),
            "factor": reserve(4 * n_pairs),
            "place": reserve(4 * n_pairs),
            "source": reserve(4 * n_places),
            "first": reserve(4 * (n + 1)),
            "present": reserve(4 * (n + 1)),
        }
        self._gathered = InputForms(writer.workspace, n_places, 0, n_embd)
        self._gathered_floats = 0  # f32 by place, for experts of floats
        self._activated = InputForms(writer.workspace, n_places, FEW * config.n_used, config.n_ff)
        self._gate = reserve(4 * n_places * config.n_ff)
        self._up = reserve(4 * n_places * config.n_ff)
        self._results = reserve(4 * n_places * n_embd)
        self._shared = FeedForward(writer, config.n_ff_shared, activation)
        self._shared_result = writer.floats(n_embd if config.n_ff_shared else 0)
        self._share = writer.floats(16)

    def readers(self, w: MixtureWeights) -> tuple[Matrix, ...]:
        """The matrices that read the block's input."""
        shared = () if w.shared is None else self._shared.readers(w.shared)
        share = () if w.ffn_gate_inp_shexp is None else (w.ffn_gate_inp_shexp,)
        return (w.ffn_gate_inp, w.ffn_gate_exps, w.ffn_up_exps, *shared, *share)

    def read(self, w: MixtureWeights, x: int) -> None:
        """Products with the block's input, whose floats are at x."""
        if w.ffn_gate_inp_shexp is not None:
            self._writer.matmul(w.ffn_gate_inp_shexp, x, self._share, meet=False)
        if w.shared is not None:
            self._shared.read(w.shared, x, meet=False)
        self._writer.matmul(w.ffn_gate_inp, x, self._logits)
        self._route(w)
        self._gather(w, x)
        self._matmul(w.ffn_gate_exps, self._input_of(w.ffn_gate_exps, x), self._gate, meet=False)
        self._matmul(w.ffn_up_exps, self._input_of(w.ffn_up_exps, x), self._up)

    def write(self, w: MixtureWeights, out: int, *, accumulate: int = 0) -> None:
        """The sum of the results, to f32 rows at `out`, or added to them."""
        self._writer.plan.emit(
            self._activation,
            **self._routing,
            **self._activated.written_for(w.ffn_down_exps),
            x=self._gate,
            y=self._up,
            n_in=self._config.n_ff,
        )
        if w.shared is not None:
            self._shared.write(w.shared, self._shared_result)
        activated = self._activated.read_by(w.ffn_down_exps, self._gate)
        self._matmul(w.ffn_down_exps, activated, self._results, by_place=1)
        self._writer.plan.emit(
            combine,
            **self._routing,
            x=self._results,
            y=0 if w.shared is None else self._shared_result,
            z=0 if w.ffn_gate_inp_shexp is None else self._share,
            out=out,
            n_out=self._n_embd,
            accumulate=accumulate,
        )

    def _route(self, w: MixtureWeights) -> None:
        router = self._config.router
        self._writer.plan.emit(
            route,
            **self._writer.scratch,
            **self._routing,
            x=self._logits,
            bias=w.exp_probs_b,
            gating=_GATINGS[router.gating],
            normalise=int(router.normalises),
            scale=self._config.scale,
        )
        self._writer.plan.emit(sort_pairs, **self._writer.scratch, **self._routing)

    def _gather(self, w: MixtureWeights, x: int) -> None:
        """Input rows by place, in the forms that tiles are multiplied with."""
        for is_float in {m.quant.group == 0 for m in (w.ffn_gate_exps, w.ffn_up_exps)}:
            if is_float and not self._gathered_floats:
                n_bytes = 4 * self._n_places * self._n_embd
                self._gathered_floats = self._writer.workspace.reserve(n_bytes)
            self._writer.plan.emit(
                gather,
                **self._routing,
                x=x if is_float else self._writer.forms.q8,
                out=self._gathered_floats if is_float else self._gathered.q8,
                n_in=self._n_embd,
                float_x=int(is_float),
            )

    def _input_of(self, matrix: Matrix, x: int) -> dict[str, Any]:
        """Where the first products find their input: many rows by place, a few by row."""
        by_place = self._gathered.read_by(matrix, self._gathered_floats)
        return {**self._writer.forms.read_by(matrix, x), "x": by_place["x"]}

    def _matmul(self, matrix: Matrix, x: dict[str, Any], out: int, **fields: Any) -> None:
        self._writer.plan.emit(
            expert_matmul,
            **self._writer.matrix(matrix),
            **self._routing,
            **x,
            expert_bytes=matrix.n_bytes,
            bias=matrix.bias,
            out=out,
            **fields,
        )
