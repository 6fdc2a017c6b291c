"""Model: the plan of a transformer (transformer.py), run over batches.

Knows no chats and no text. One plan serves prefill (many rows) and decode (a row of each chat).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from engine.kernels.kv_page import KV_TYPES
from engine.kernels.op import FEW
from engine.kernels.team import Team
from engine.model.layer_groups import chat_bytes, group_layers
from engine.model.model_config import ModelConfig
from engine.model.pace import Paces
from engine.model.plan import Batch, Part, Plan, Workspace
from engine.model.transformer import Transformer
from engine.model.weights import Weights

# Multiplications up to which a prompt is read in 16 bits instead of 8: the extra time is some
# hundredths of a second then, and the short prompts of small models are where a rounding error
# changes the answer.
_PRECISE_WORK = 8e9

_MANY = 64  # rows of a chunk from which on the time that each takes is about the same


class Cancelled(Exception):
    """The run was stopped by Batch.cancel; what it wrote to the cache is not complete."""


def _context_of_training(model: Model) -> int:
    return model.config.n_ctx_train


class Model:
    """A model ready to run: weights, plan, workspace and thread team.

    max_rows: tokens of one run at most.
    on_layout: called when all sizes are known, before anything is compiled; returns how many
               tokens a chat may have at most, or raises.
    on_compile: called with (done, total) while kernels are compiled or loaded.
    kv_type: of keys and values in the pages: a key of KV_TYPES.
    n_cores: that n_threads share, where fewer threads may be used if that is faster (pace.py); 0 =
             they may not, but for a while when something else needs a core.
    groups, page_bytes: of its layers, and of the pages of each.

    long_rope: keys are turned as for contexts longer than the original one, where that matters.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        max_rows: int,
        n_threads: int,
        on_compile: Callable[[int, int], None] = lambda done, total: None,
        on_layout: Callable[[Model], int] = _context_of_training,
        kv_type: str = "f16",
        n_cores: int = 0,
    ) -> None:
        self.config = config
        self.weights = weights
        self.max_rows = max_rows
        self.n_vocab = weights.token_embd.n_out
        self.n_weights_per_token = sum(m.n_in * m.n_out for w in weights.blk for m in w.matrices())
        self.batch = Batch(max_rows)
        self.workspace = Workspace()
        kv = KV_TYPES[kv_type]
        self.groups = group_layers(config, kv)
        self.page_bytes = tuple(group.page_bytes for group in self.groups)
        self.plan = Plan()
        transformer = Transformer(
            config,
            weights,
            self.plan,
            self.workspace,
            max_rows=max_rows,
            n_threads=n_threads,
            kv_type=kv,
            groups=self.groups,
        )
        self._logits = transformer.logits
        shape = max_rows, config.n_embd
        self._stream = self.workspace.array(transformer.stream, np.float32, shape)
        self.long_rope = transformer.choose_rope(on_layout(self))
        functions = self.plan.functions()
        for done, function in enumerate(functions):
            on_compile(done, len(functions))
            _ = function.address
        on_compile(len(functions), len(functions))
        self.plan.finish()
        self.team = Team(n_threads)
        self._paces = Paces(n_threads, n_cores)

    def forward(self, parts: Sequence[Part], *, precise: bool) -> npt.NDArray[np.float32]:
        """Run the plan over the next tokens of one or several chats, at most max_rows together.

        precise: inputs of products have 16 bits or nearly so, and not 8; few rows are then read as
                 decoding reads. What comes out for one row does not depend on the others.

        Returns logits f32[n, n_vocab] of the rows that the parts name in rows_out, in order,
        overwritten by the next run. Raises Cancelled when the batch was cancelled meanwhile.
        """
        n_rows = sum(len(part.tokens) for part in parts)
        n_out = sum(len(part.rows_out) for part in parts)
        planes = 1 if not precise else 2 if n_rows > FEW else 0
        self.batch.fill(parts, planes)
        pace = self._paces.of_decoding(n_rows) if planes == 0 else self._paces.of_prompts()
        start = time.perf_counter()
        self.team.run(self.plan.address, len(self.plan), self.batch.address, pace.n_threads)
        seconds = time.perf_counter() - start
        if self.batch.cancelled:
            raise Cancelled
        if planes == 0:
            pace.note(seconds)
        elif planes == 1 and n_rows >= _MANY:
            pace.note(seconds / n_rows)
        return self._logits[:n_out, : self.n_vocab]

    def hidden(self, n_rows: int) -> npt.NDArray[np.float32]:
        """f32[n_rows, n_embd]: the first rows of the last run behind the output norm, where the
        logits come from.
        """
        x, norm = self._stream[:n_rows], self.weights.output_norm
        if self.config.layer_norm:
            x = x - x.mean(axis=1, keepdims=True)
        mean_square = np.square(x).mean(axis=1, keepdims=True)
        n = x.shape[1]
        x = x / np.sqrt(mean_square + np.float32(self.config.stream_eps)) * norm.weight[:n]
        normed: npt.NDArray[np.float32] = x if norm.bias is None else x + norm.bias[:n]
        return normed

    def precise_until(self, n_past: int, n_new: int) -> int:
        """Up to which place a prompt's n_new tokens, behind n_past, are to be read precisely.

        All of them if they are few. The first of a chat at any rate: all others look back on it,
        in some models on little else, so that what is rounded there moves every answer. It is asked
        of a whole prompt: how that is cut into chunks must not change what comes out.
        """
        if n_new * self.n_weights_per_token <= _PRECISE_WORK:
            return n_past + n_new
        return max(n_past, 1)

    def chat_bytes(self, n_tokens: int) -> int:
        """Bytes of keys and values that a chat of so many tokens needs."""
        return chat_bytes(self.groups, n_tokens, self.max_rows)

    @property
    def fraction_done(self) -> float:
        """How far the current run is, 0..1, in ops. Any thread."""
        return min(self.batch.n_ops_done / len(self.plan), 1.0)

    def close(self) -> None:
        """End the threads and give the workspace's memory back."""
        self.team.close()
        self.workspace.release()
