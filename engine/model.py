"""The transformer, top to bottom: the plan for a model's weights, run over batches.

Knows no chats and no text. One plan serves prefill (many rows) and decode (a row of each chat).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.kernels import attention as attention_kernel
from engine.kernels.activation import (
    add_rms_norm,
    fine8_row_bytes,
    gelu_mul,
    q8_row_bytes,
    q16_row_bytes,
    quantise_rows,
    rms_norm,
    silu_mul,
)
from engine.kernels.kv_page import KV_TYPES, layer_bytes
from engine.kernels.matmul import embed, matmul
from engine.kernels.op import ARRIVED_BYTES, FEW
from engine.kernels.rope import ROPE_AND_STORE, rope_angles
from engine.kernels.team import Team
from engine.kernels.tile import tile_bytes
from engine.model_config import ModelConfig
from engine.pace import Pace
from engine.plan import Batch, Part, Plan, Workspace
from engine.quants.base import FewInput
from engine.weights import LayerWeights, Matrix, Vector, Weights

# Sizes are asked of kernels' functions by `.py_func`, in Python: a call of the compiled one would
# compile it, as only whole kernels are kept on disk.

_ROW_GROUP = 8  # kernels may touch rows up to the next multiple of this

# Multiplications up to which a prompt is read in two planes, that is in 16 bits instead of 8: the
# extra time is some hundredths of a second then, and the short prompts of small models are where a
# rounding error changes the answer.
_PRECISE_WORK = 8e9


class Cancelled(Exception):
    """The run was stopped by Batch.cancel; what it wrote to the cache is not complete."""


class Model:
    """A model ready to run: weights, plan, workspace and thread team.

    max_rows: tokens of one run at most.
    on_layout: called when all sizes are known, before anything is compiled; may raise.
    on_compile: called with (done, total) while kernels are compiled or loaded.
    kv_type:    of keys and values in the pages: a key of KV_TYPES.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        max_rows: int,
        n_threads: int,
        on_compile: Callable[[int, int], None] = lambda done, total: None,
        on_layout: Callable[[Model], None] = lambda model: None,
        kv_type: str = "f16",
    ) -> None:
        self.config = config
        self.weights = weights
        self.max_rows = max_rows
        self.n_vocab = weights.token_embd.n_out
        self.n_weights_per_token = sum(m.n_in * m.n_out for w in weights.blk for m in w.matrices())
        self.batch = Batch(max_rows)
        self.workspace = Workspace()
        self._kv_type = KV_TYPES[kv_type]
        self._layer_bytes = layer_bytes(self._kv_type, config.n_head_kv, config.head_dim)
        self.page_bytes = config.n_layer * self._layer_bytes
        self.plan = Plan()
        self._n_threads = n_threads
        self._buffer_rows = (max_rows + _ROW_GROUP - 1) // _ROW_GROUP * _ROW_GROUP
        self._frequencies: list[npt.NDArray[np.float64]] = []
        self._logits = self._lay_out()
        on_layout(self)
        functions = self.plan.functions()
        for done, function in enumerate(functions):
            on_compile(done, len(functions))
            _ = function.address
        on_compile(len(functions), len(functions))
        self.plan.finish()
        self.team = Team(n_threads)
        self.pace = Pace(n_threads)

    def forward(self, parts: Sequence[Part]) -> npt.NDArray[np.float32]:
        """Run the plan over the next tokens of one or several chats, at most max_rows together.

        Returns logits f32[n, n_vocab] of the rows that the parts name in rows_out, in order,
        overwritten by the next run. Raises Cancelled when the batch was cancelled meanwhile.
        """
        n_rows = sum(len(part.tokens) for part in parts)
        n_out = sum(len(part.rows_out) for part in parts)
        planes = 2 if n_rows * self.n_weights_per_token <= _PRECISE_WORK else 1
        self.batch.fill(parts, planes)
        if n_rows > 1:
            self.team.run(self.plan.address, len(self.plan), self.batch.address)
        else:
            start = time.perf_counter()
            self.team.run(
                self.plan.address, len(self.plan), self.batch.address, self.pace.n_threads
            )
            self.pace.note(time.perf_counter() - start)
        if self.batch.cancelled:
            raise Cancelled
        return self._logits[:n_out, : self.n_vocab]

    @property
    def fraction_done(self) -> float:
        """How far the current run is, 0..1, in ops. Any thread."""
        return min(self.batch.n_ops_done / len(self.plan), 1.0)

    def close(self) -> None:
        """End the threads and give the workspace's memory back."""
        self.team.close()
        self.workspace.release()

    # --- the plan -------------------------------------------------------------------------------

    def _lay_out(self) -> npt.NDArray[np.float32]:
        """Emit all ops. Returns the logits buffer, f32[max_rows, n_vocab rounded up]."""
        c, w = self.config, self.weights
        n_q, n_kv = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
        scratch_bytes = max(
            tile_bytes(0),
            tile_bytes(16),
            attention_kernel.scratch_bytes(c.n_head, c.n_head_kv, c.head_dim),
            4 * c.n_embd,
        )
        self._scratch: dict[str, Any] = {
            "scratch": self.workspace.reserve(self._n_threads * scratch_bytes),
            "scratch_bytes": scratch_bytes,
        }
        self._parts: dict[str, Any] = {
            "results": self.workspace.reserve(
                attention_kernel.results_bytes(c.n_head, c.n_head_kv, c.head_dim)
            ),
            "arrived": self.workspace.reserve(ARRIVED_BYTES * c.n_head_kv),
        }
        self.x = self._floats(c.n_embd)  # the residual stream
        self.normed = self._floats(c.n_embd)  # as floats, where a weight type wants them
        self.q, self.k, self.v = self._floats(n_q), self._floats(n_kv), self._floats(n_kv)
        self.attended = self._floats(n_q)
        self.gate, self.up = self._floats(c.n_ff), self._floats(c.n_ff)
        widest = max(c.n_embd, n_q, c.n_ff)
        self.q8 = self.workspace.reserve(2 * self._buffer_rows * q8_row_bytes.py_func(widest))
        self.q16 = self.workspace.reserve(FEW * q16_row_bytes.py_func(widest))
        self.fine8 = self.workspace.reserve(FEW * fine8_row_bytes.py_func(widest))
        self.added = self._floats(c.n_embd)  # what a block adds, only where it is normalised first
        self.angles = self._rope_angles(c.rope_theta, c.rope_scale, w.rope_freqs)
        self.window_angles = (
            self._rope_angles(c.window_rope_theta, 1.0, None) if c.window else self.angles
        )
        n_logits = (self.n_vocab + 15) // 16 * 16
        logits = self._floats(n_logits)

        self.plan.emit(embed, **self._matrix(w.token_embd), out=self.x, scale=c.embedding_scale)
        for i, layer in enumerate(w.blk):
            self._attention_block(i, layer)
            self._feed_forward_block(layer)
        # The output is where rounding the input to 8 bits costs most (a quarter of all the
        # divergence from f32), and where two planes cost least: few rows need logits.
        self._norm(w.output_norm, (w.output,), rows_out=1, planes=2)
        self._matmul(w.output, logits, rows_out=1, planes=2)
        return self.workspace.array(logits, np.float32, (self._buffer_rows, n_logits))

    def _attention_block(self, i: int, w: LayerWeights) -> None:
        c = self.config
        has_window = c.has_window(i)
        self._norm(w.attn_norm, (w.attn_q, w.attn_k, w.attn_v))
        self._matmul(w.attn_q, self.q, bias=w.attn_q_bias, meet=False)
        self._matmul(w.attn_k, self.k, bias=w.attn_k_bias, meet=False)
        self._matmul(w.attn_v, self.v, bias=w.attn_v_bias)
        heads: dict[str, Any] = {
            "n_head": c.n_head,
            "n_head_kv": c.n_head_kv,
            "head_dim": c.head_dim,
            "layer_offset": i * self._layer_bytes,
            **self._parts,
        }
        self.plan.emit(
            ROPE_AND_STORE[self._kv_type],
            **heads,
            x=self.q,
            y=self.k,
            z=self.v,
            table=self.window_angles if has_window else self.angles,
            n_rot=c.n_rot,
            rope_halves=int(c.rope_halves),
            q_norm=_address(w.attn_q_norm),
            k_norm=_address(w.attn_k_norm),
            eps=c.rms_eps,
        )
        self.plan.emit(
            attention_kernel.ATTENTION[self._kv_type],
            **heads,
            **self._scratch,
            x=self.q,
            out=self.attended,
            scale=c.attention_scale,
            window=c.window if has_window else attention_kernel.ALL,
        )
        if w.attn_output.quant.group:
            forms = self._integer_forms(w.attn_output)
            self.plan.emit(quantise_rows, **forms, x=self.attended, n_in=w.attn_output.n_in)
        self._add(w.attn_output, w.post_attention_norm, x=self.attended, bias=w.attn_output_bias)

    def _feed_forward_block(self, w: LayerWeights) -> None:
        c = self.config
        self._norm(w.ffn_norm, (w.ffn_gate, w.ffn_up))
        self._matmul(w.ffn_gate, self.gate, meet=False)
        self._matmul(w.ffn_up, self.up)
        forms = self._integer_forms(w.ffn_down)
        self.plan.emit(
            gelu_mul if c.gelu else silu_mul, **forms, x=self.gate, y=self.up, n_in=c.n_ff
        )
        self._add(w.ffn_down, w.post_ffw_norm, x=self.gate)

    def _add(
        self, matrix: Matrix, norm: Vector | None, *, x: int, bias: Vector | None = None
    ) -> None:
        """Add matrix times x to the residual stream; `norm` (None = none) comes before adding."""
        if norm is None:
            self._matmul(matrix, self.x, x=x, bias=bias, accumulate=1)
            return
        self._matmul(matrix, self.added, x=x, bias=bias)
        self.plan.emit(
            add_rms_norm,
            x=self.added,
            out=self.x,
            weight=norm.ctypes.data,
            n_in=self.config.n_embd,
            eps=self.config.rms_eps,
        )

    def _norm(
        self, weight: Vector, readers: tuple[Matrix, ...], rows_out: int = 0, planes: int = 1
    ) -> None:
        """RMS norm of the residual stream, in the forms that the matrices which read it want."""
        as_floats = any(m.quant.group == 0 for m in readers)
        self.plan.emit(
            rms_norm,
            **self._scratch,
            **self._integer_forms(*readers),
            x=self.x,
            weight=weight.ctypes.data,
            out=self.normed if as_floats else 0,
            n_in=self.config.n_embd,
            eps=self.config.rms_eps,
            rows_out=rows_out,
            planes=planes,
        )

    def _matmul(
        self,
        matrix: Matrix,
        out: int,
        *,
        x: int = 0,
        bias: Vector | None = None,
        accumulate: int = 0,
        rows_out: int = 0,
        planes: int = 1,
        meet: bool = True,
    ) -> None:
        """matrix times the quantised rows, or times float rows where the type wants them.

        x: those float rows; 0 = the normed residual stream.
        """
        floats = x or self.normed
        n_in = matrix.n_in
        x_few, x_few_bytes = {
            FewInput.FLOATS: (floats, 4 * n_in),
            FewInput.Q16: (self.q16, q16_row_bytes.py_func(n_in)),
            FewInput.FINE8: (self.fine8, fine8_row_bytes.py_func(n_in)),
        }[matrix.quant.few_input]
        self.plan.emit(
            matmul,
            meet=meet,
            **self._matrix(matrix),
            x=self.q8 if matrix.quant.group else floats,
            x_few=x_few,
            x_few_bytes=x_few_bytes,
            out=out,
            bias=_address(bias),
            accumulate=accumulate,
            rows_out=rows_out,
            planes=planes,
        )

    def _integer_forms(self, *readers: Matrix) -> dict[str, Any]:
        """Where an op is to write its result as integers, for the matrices that read it."""
        few = {m.quant.few_input for m in readers}
        return {
            "q8": self.q8 if any(m.quant.group for m in readers) else 0,
            "q16": self.q16 if FewInput.Q16 in few else 0,
            "fine8": self.fine8 if FewInput.FINE8 in few else 0,
        }

    def _matrix(self, matrix: Matrix) -> dict[str, Any]:
        """The fields that describe a matrix to an op."""
        quant = matrix.quant
        return {
            "weight": matrix.address,
            "row_bytes": matrix.row_bytes,
            "n_in": matrix.n_in,
            "n_out": matrix.n_out,
            "float_x": int(quant.group == 0),
            "group": quant.group,
            "dot": quant.dot,
            "dot4": quant.dot4,
            "unpack": quant.unpack,
            "tile_dot": quant.tile_dot,
            **self._scratch,
        }

    def _floats(self, n: int) -> int:
        """A buffer f32[rows, n]."""
        return self.workspace.reserve(self._buffer_rows * n * 4)

    def _rope_angles(self, theta: float, scale: float, factors: Vector | None) -> int:
        """Emit the op that computes the batch's angles; returns where they will be.

        angle = position * theta^(-2i / n_rot) / scale / factors[i]
        """
        n_rot = self.config.n_rot
        frequencies = theta ** -(np.arange(0, n_rot, 2) / n_rot) / scale
        if factors is not None:
            frequencies /= factors.astype(np.float64)
        self._frequencies.append(frequencies)  # the plan holds their address
        table = self._floats(n_rot)
        self.plan.emit(
            rope_angles, meet=False, weight=frequencies.ctypes.data, table=table, n_rot=n_rot
        )
        return table


def _address(vector: Vector | None) -> int:
    return 0 if vector is None else int(vector.ctypes.data)
