"""The transformer, top to bottom: writes the plan for a model's weights.

Knows no batches and no text, and runs nothing. One plan serves prefill (many rows) and decode (one
row). Which parts a layer has, its weights say; how they are computed, the config.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.kernels import attention as attention_kernel
from engine.kernels.activation import soft_cap
from engine.kernels.kv_page import layer_bytes
from engine.kernels.op import ARRIVED_BYTES
from engine.kernels.rope import ROPE_AND_STORE, rope_angles
from engine.model.feed_forward import FeedForward
from engine.model.layer_groups import Groups
from engine.model.mixture_of_experts import MixtureOfExperts
from engine.model.model_config import ModelConfig
from engine.model.plan import Plan, Workspace
from engine.model.plan_writer import PlanWriter
from engine.model.rope import Rope
from engine.model.weights import LayerWeights, Matrix, Norm, Vector, Weights


class Transformer:
    """Emits all ops of a model at once.

    kv_type: of keys and values in the pages (kernels/kv_page.py); groups: which layers share pages.
    logits: f32[max_rows, n_vocab rounded up], written by each run.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        plan: Plan,
        workspace: Workspace,
        *,
        max_rows: int,
        n_threads: int,
        kv_type: int,
        groups: Groups,
    ) -> None:
        c, w = config, weights
        n_q, n_kv = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
        self.config, self.plan, self.kv_type, self.groups = c, plan, kv_type, groups
        self.writer = PlanWriter(
            plan,
            workspace,
            max_rows=max_rows,
            widest=max(c.n_embd, n_q, c.n_ff if c.mixture is None else c.mixture.n_ff_shared),
            n_threads=n_threads,
            scratch_bytes=attention_kernel.scratch_bytes(c.n_head, c.n_head_kv, c.head_dim),
            centred=c.layer_norm,
        )
        floats = self.writer.floats
        self.stream = floats(c.n_embd)  # the residual stream
        self.normed = floats(c.n_embd)  # as floats, where a weight type wants them
        self.q, self.k, self.v = floats(n_q), floats(n_kv), floats(n_kv)
        self.attended = floats(n_q)
        self.parts: dict[str, Any] = {  # of one row's attention, taken by several threads
            "results": workspace.reserve(
                attention_kernel.results_bytes(c.n_head, c.n_head_kv, c.head_dim)
            ),
            "arrived": workspace.reserve(ARRIVED_BYTES * c.n_head_kv),
        }
        self.added = floats(c.n_embd)  # what a block adds, only where it is normalised first
        self.feed_forward: Any = (
            FeedForward(self.writer, c.n_ff, c.activation)
            if c.mixture is None
            else MixtureOfExperts(self.writer, c.mixture, c.n_embd, c.activation)
        )

        self.weights, self.frequencies = w, c.rope.frequencies(w.rope_factors(long=False))
        self.angles = self._rope_angles(c.rope, self.frequencies)
        self.window_angles = (
            self.angles
            if c.window_rope == c.rope
            else self._rope_angles(c.window_rope, c.window_rope.frequencies(None))
        )
        self.writer.embed(w.token_embd, self.stream, c.embedding_scale)
        for i, layer in enumerate(w.blk):
            self._layer(i, layer)
        self.logits = self._output(w.output_norm, w.output)

    def choose_rope(self, n_ctx: int) -> bool:
        """Turn keys as for chats of up to n_ctx tokens. Returns whether these are long contexts, to
        which the model has RoPE factors of their own.
        """
        rope, w = self.config.rope, self.weights
        long = w.rope_factors_long is not None and n_ctx > rope.n_ctx_orig
        self.frequencies[:] = rope.frequencies(w.rope_factors(long))
        return long

    def _layer(self, i: int, w: LayerWeights) -> None:
        attention, feed_forward = (w.attn_q, w.attn_k, w.attn_v), self.feed_forward.readers(w.ffn)
        if w.is_parallel:
            x = self._read_stream(w.attn_norm, (*attention, *feed_forward))
            self._queries_keys_values(w, x)
            self.feed_forward.read(w.ffn, x)
            self._attend(i, w)
        else:
            x = self._read_stream(w.attn_norm, attention)
            self._queries_keys_values(w, x)
            self._attend(i, w)
            x = self._read_stream(w.ffn_norm, feed_forward)
            self.feed_forward.read(w.ffn, x)
        self._add(partial(self.feed_forward.write, w.ffn), w.post_ffw_norm)

    def _queries_keys_values(self, w: LayerWeights, x: int) -> None:
        self.writer.matmul(w.attn_q, x, self.q, meet=False)
        self.writer.matmul(w.attn_k, x, self.k, meet=False)
        self.writer.matmul(w.attn_v, x, self.v)
        for norm, rows in ((w.attn_q_norm, self.q), (w.attn_k_norm, self.k)):
            if norm is not None and not _is_of_heads(norm):
                self.writer.norm(Norm(norm), rows, out=rows, eps=self.config.norm_eps)

    def _attend(self, i: int, w: LayerWeights) -> None:
        c = self.config
        heads: dict[str, Any] = {
            "n_head": c.n_head,
            "n_head_kv": c.n_head_kv,
            "head_dim": c.head_dim,
            **self._place_in_pages(i),
            **self.parts,
        }
        self.plan.emit(
            ROPE_AND_STORE[self.kv_type],
            **heads,
            x=self.q,
            y=self.k,
            z=self.v,
            table=self.window_angles if c.has_window(i) else self.angles,
            n_rot=c.rope.n_rot if c.roped[i] else 0,
            rope_halves=int(c.rope.halves),
            q_norm=w.attn_q_norm if _is_of_heads(w.attn_q_norm) else None,
            k_norm=w.attn_k_norm if _is_of_heads(w.attn_k_norm) else None,
            centred=int(c.layer_norm),
            eps=c.norm_eps,
        )
        self.plan.emit(
            attention_kernel.ATTENTION[self.kv_type],
            **heads,
            **self.writer.scratch,
            x=self.q,
            out=self.attended,
            scale=c.attention_scale,
            soft_cap=c.attention_soft_cap,
            window=c.window if c.has_window(i) else attention_kernel.ALL,
            sinks=w.attn_sinks,
        )
        self.writer.quantise(self.attended, w.attn_output)
        product = partial(self.writer.matmul, w.attn_output, self.attended)
        self._add(product, w.post_attention_norm)

    def _place_in_pages(self, i: int) -> dict[str, int]:
        """The fields that say where a layer's keys and values are."""
        c, entry_bytes = self.config, 8
        g = next(g for g, group in enumerate(self.groups) if i in group.layers)
        n_before = self.groups[g].layers.index(i)
        return {
            "layer_offset": n_before * layer_bytes(self.kv_type, c.n_head_kv, c.head_dim),
            "table_offset": g * entry_bytes,
            "table_step": len(self.groups) * entry_bytes,
        }

    def _read_stream(self, norm: Norm | None, readers: tuple[Matrix, ...]) -> int:
        """The input of a block's products, normalised if there is a norm. Returns its floats."""
        if norm is None:
            self.writer.quantise(self.stream, *readers)
            return self.stream
        self.writer.norm(norm, self.stream, readers, eps=self.config.stream_eps, out=self.normed)
        return self.normed

    def _add(self, write: Callable[..., None], norm: Norm | None) -> None:
        """Add to the residual stream what `write` emits the ops for, given where to write it;
        `norm` (None = none) comes before adding.
        """
        if norm is None:
            write(self.stream, accumulate=1)
            return
        write(self.added)
        eps = self.config.norm_eps
        self.writer.norm(norm, self.added, out=self.stream, eps=eps, accumulate=1)

    def _output(self, norm: Norm, output: Matrix) -> npt.NDArray[np.float32]:
        c = self.config
        n_vocab = (output.n_out + 15) // 16 * 16
        logits = self.writer.floats(n_vocab)
        # The output is where rounding the input to 8 bits costs most: a quarter of all the
        # divergence from f32. A few rows are read as in decoding, more in two planes.
        rows: dict[str, Any] = {"rows_out": 1, "planes": 2}
        scaled = norm.scaled(c.logit_scale) if c.logit_scale != 1.0 else norm
        self.writer.norm(scaled, self.stream, (output,), eps=c.stream_eps, out=self.normed, **rows)
        self.writer.matmul(output, self.normed, logits, **rows)
        if c.logit_soft_cap:
            self.plan.emit(soft_cap, x=logits, n_in=n_vocab, soft_cap=c.logit_soft_cap, rows_out=1)
        return self.writer.workspace.array(logits, np.float32, (self.writer.n_rows, n_vocab))

    def _rope_angles(self, rope: Rope, frequencies: npt.NDArray[np.float64]) -> int:
        """Emit the op that computes the batch's angles; returns where they will be."""
        table = self.writer.floats(rope.n_rot)
        self.plan.emit(
            rope_angles,
            meet=False,
            weight=frequencies,
            table=table,
            n_rot=rope.n_rot,
            scale=rope.magnitude,
        )
        return table


def _is_of_heads(norm: Vector | None) -> bool:
    """Whether a norm is of each head, not of the whole row; False for None."""
    return norm is not None and norm.ndim == 2
