"""PlanWriter: buffers of a plan, and the verbs in which a transformer is written down.

Knows in which forms a matrix wants its input, and who writes them. Knows no blocks and no layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.jit import Native
from engine.kernels.activation import quantise_rows
from engine.kernels.matmul import embed, matmul
from engine.kernels.norm import norm
from engine.kernels.op import FEW, ROW_GROUP
from engine.kernels.tile import tile_bytes
from engine.model.input_forms import InputForms
from engine.model.plan import Plan, Workspace
from engine.model.weights import Matrix, Norm
from engine.quants.f32 import QUANT as F32


class PlanWriter:
    """Emits ops over buffers for up to max_rows rows.

    widest:        values of the longest row that a matrix reads.
    scratch_bytes: what one thread needs in ops of the caller's own.
    centred:       norms subtract the mean.
    """

    def __init__(
        self,
        plan: Plan,
        workspace: Workspace,
        *,
        max_rows: int,
        widest: int,
        n_threads: int,
        scratch_bytes: int,
        centred: bool,
    ) -> None:
        self.plan, self.workspace, self.centred = plan, workspace, centred
        self._n_threads = n_threads
        self.n_rows = (max_rows + ROW_GROUP - 1) // ROW_GROUP * ROW_GROUP  # of each buffer
        scratch_bytes = max(scratch_bytes, tile_bytes(0), tile_bytes(16), 4 * widest)
        self.scratch: dict[str, Any] = {
            "scratch": workspace.reserve(n_threads * scratch_bytes),
            "scratch_bytes": scratch_bytes,
        }
        # The input of the next products.
        self.forms = InputForms(workspace, self.n_rows, FEW, widest)
        self._ranks: dict[tuple[int, int], int] = {}  # what adapters have in between, in turns
        self._turn = 0

    def floats(self, n: int) -> int:
        """Address of a new buffer f32[rows, n]."""
        return self.workspace.reserve(self.n_rows * n * 4)

    def norm(
        self,
        weights: Norm,
        x: int,
        readers: tuple[Matrix, ...] = (),
        *,
        eps: float,
        out: int = 0,
        **fields: Any,
    ) -> None:
        """The norm of f32 rows x: as integers, in the forms that the readers want, and as floats
        to `out`, where one wants them or nobody else reads it.
        """
        n = len(weights.weight)
        self.plan.emit(
            norm,
            **self.scratch,
            **self.forms.written_for(*readers),
            x=x,
            weight=weights.weight,
            bias=weights.bias,
            out=out if not readers or _want_floats(readers) else 0,
            n_in=n,
            centred=int(self.centred),
            eps=eps,
            **fields,
        )

    def quantise(self, x: int, *readers: Matrix) -> None:
        """f32 rows x as integers, in the forms that the readers want."""
        if any(m.quant.group for m in readers):
            self.plan.emit(
                quantise_rows, **self.forms.written_for(*readers), x=x, n_in=readers[0].n_in
            )

    def activate(self, kernel: Native, x: int, gated: int, reader: Matrix) -> None:
        """x = kernel(x), times the rows `gated` unless 0, in the forms that the reader wants."""
        forms = self.forms.written_for(reader)
        self.plan.emit(kernel, **forms, x=x, y=gated, n_in=reader.n_in)

    def embed(self, matrix: Matrix, out: int, scale: float) -> None:
        """out = the rows of the batch's tokens, scaled."""
        added = matrix.low_rank
        self.plan.emit(embed, meet=added is None, **self.matrix(matrix), out=out, scale=scale)
        if added is not None:
            ranks = self._next_ranks(added.rank)
            self.plan.emit(embed, **self.matrix(_matrix_of(added.a)), out=ranks, scale=scale)
            self._product(_matrix_of(added.b), ranks, out, accumulate=1)

    def matmul(
        self,
        matrix: Matrix,
        x: int,
        out: int,
        *,
        meet: bool = True,
        accumulate: int = 0,
        **fields: Any,
    ) -> None:
        """out = matrix times the input of these products, whose floats are at x."""
        added = matrix.low_rank
        alone = meet and added is None
        self._product(matrix, x, out, meet=alone, accumulate=accumulate, **fields)
        if added is not None:  # the threads meet once, when both the sum and the ranks are there
            ranks = self._next_ranks(added.rank)
            self._product(_matrix_of(added.a), x, ranks, **fields)
            self._product(_matrix_of(added.b), ranks, out, meet=meet, accumulate=1, **fields)

    def _next_ranks(self, rank: int) -> int:
        """A buffer f32[rows, rank], which is not the one before: a thread may still read that."""
        self._turn = 1 - self._turn
        if (rank, self._turn) not in self._ranks:
            self._ranks[rank, self._turn] = self.floats(rank)
        return self._ranks[rank, self._turn]

    def _product(
        self, matrix: Matrix, x: int, out: int, *, meet: bool = True, **fields: Any
    ) -> None:
        """out = matrix times x, without what is added to the matrix."""
        self.plan.emit(
            matmul,
            meet=meet,
            **self.matrix(matrix),
            **self.forms.read_by(matrix, x),
            out=out,
            bias=matrix.bias,
            **fields,
        )

    def matrix(self, matrix: Matrix) -> dict[str, Any]:
        """The fields that describe a matrix to an op that reads it, and what its threads need."""
        taken = np.zeros(self._n_threads, np.int64)
        return {**matrix.op_fields, **self.scratch, "taken": taken}


def _want_floats(readers: tuple[Matrix, ...]) -> bool:
    return any(m.quant.group == 0 or m.low_rank is not None for m in readers)


def _matrix_of(floats: npt.NDArray[np.float32]) -> Matrix:
    """A matrix in memory; whoever plans with it keeps that."""
    n_out, n_in = floats.shape
    return Matrix("", F32.ggml_type, int(floats.ctypes.data), n_in, n_out)
