"""PlanWriter: buffers of a plan, and the verbs in which a transformer is written down.

Knows in which forms a matrix wants its input, and who writes them. Knows no blocks and no layers.
"""

from __future__ import annotations

from typing import Any

from engine.jit import Native
from engine.kernels.activation import (
    fine8_row_bytes,
    q8_row_bytes,
    q16_row_bytes,
    quantise_rows,
)
from engine.kernels.matmul import matmul
from engine.kernels.norm import norm
from engine.kernels.op import FEW
from engine.kernels.tile import tile_bytes
from engine.plan import Plan, Workspace
from engine.quants.base import FewInput
from engine.weights import Matrix, Norm

# Sizes are asked of kernels' functions by `.py_func`, in Python: a call of the compiled one would
# compile it, as only whole kernels are kept on disk.

_ROW_GROUP = 8  # kernels may touch rows up to the next multiple of this


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
        self.n_rows = (max_rows + _ROW_GROUP - 1) // _ROW_GROUP * _ROW_GROUP  # of each buffer
        scratch_bytes = max(scratch_bytes, tile_bytes(0), tile_bytes(16), 4 * widest)
        self.scratch: dict[str, Any] = {
            "scratch": workspace.reserve(n_threads * scratch_bytes),
            "scratch_bytes": scratch_bytes,
        }
        # The input of the next products, in the forms of activation.py.
        self.q8 = workspace.reserve(2 * self.n_rows * q8_row_bytes.py_func(widest))
        self.q16 = workspace.reserve(FEW * q16_row_bytes.py_func(widest))
        self.fine8 = workspace.reserve(FEW * fine8_row_bytes.py_func(widest))

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
            **self._integer_forms(*readers),
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
                quantise_rows, **self._integer_forms(*readers), x=x, n_in=readers[0].n_in
            )

    def activate(self, kernel: Native, x: int, gated: int, reader: Matrix) -> None:
        """x = kernel(x), times the rows `gated` unless 0, in the forms that the reader wants."""
        forms = self._integer_forms(reader)
        self.plan.emit(kernel, **forms, x=x, y=gated, n_in=reader.n_in)

    def matmul(self, matrix: Matrix, x: int, out: int, *, meet: bool = True, **fields: Any) -> None:
        """out = matrix times the input of these products, whose floats are at x."""
        n_in = matrix.n_in
        x_few, x_few_bytes = {
            FewInput.FLOATS: (x, 4 * n_in),
            FewInput.Q16: (self.q16, q16_row_bytes.py_func(n_in)),
            FewInput.FINE8: (self.fine8, fine8_row_bytes.py_func(n_in)),
        }[matrix.quant.few_input]
        self.plan.emit(
            matmul,
            meet=meet,
            **self.matrix(matrix),
            x=self.q8 if matrix.quant.group else x,
            x_few=x_few,
            x_few_bytes=x_few_bytes,
            out=out,
            bias=matrix.bias,
            **fields,
        )

    def matrix(self, matrix: Matrix) -> dict[str, Any]:
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
            **self.scratch,
        }

    def _integer_forms(self, *readers: Matrix) -> dict[str, Any]:
        """Where an op is to write its result as integers, for the matrices that read it."""
        few = {m.quant.few_input for m in readers}
        return {
            "q8": self.q8 if any(m.quant.group for m in readers) else 0,
            "q16": self.q16 if FewInput.Q16 in few else 0,
            "fine8": self.fine8 if FewInput.FINE8 in few else 0,
        }


def _want_floats(readers: tuple[Matrix, ...]) -> bool:
    return any(m.quant.group == 0 for m in readers)
