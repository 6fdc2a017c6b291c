"""InputForms: room for the input rows of products, in the forms of kernels/activation.py.

Knows which form a matrix wants. Knows no ops.
"""

from __future__ import annotations

from typing import Any

from engine.kernels.activation import LONGEST_LINE, fine8_row_bytes, fine16_row_bytes, q8_row_bytes
from engine.model.plan import Workspace
from engine.model.weights import Matrix
from engine.quants.base import FewInput


class InputForms:
    """Buffers for n_many rows in the form of many rows, or n_few in those of few, of up to `widest`
    values.
    """

    def __init__(self, workspace: Workspace, n_many: int, n_few: int, widest: int) -> None:
        self.q8 = workspace.reserve(2 * n_many * q8_row_bytes(widest))
        self.fine8 = workspace.reserve(n_few * fine8_row_bytes(widest))
        # A line of several rows may be longer than the widest row.
        self.fine16 = workspace.reserve(n_few * fine16_row_bytes(max(widest, LONGEST_LINE)))

    def written_for(self, *readers: Matrix) -> dict[str, Any]:
        """Where an op is to write its result as integers, for the matrices that read it."""
        few = {m.quant.few_input for m in readers}
        return {
            "q8": self.q8 if any(m.quant.group for m in readers) else 0,
            "fine8": self.fine8 if FewInput.FINE8 in few else 0,
            "fine16": self.fine16 if FewInput.FINE16 in few else 0,
        }

    def read_by(self, matrix: Matrix, floats: int) -> dict[str, Any]:
        """Where a product finds its input, whose floats are at `floats`."""
        n_in = matrix.n_in
        x_few, x_few_bytes = {
            FewInput.FLOATS: (floats, 4 * n_in),
            FewInput.FINE8: (self.fine8, fine8_row_bytes(n_in)),
            FewInput.FINE16: (self.fine16, fine16_row_bytes(n_in)),
        }[matrix.quant.few_input]
        x = self.q8 if matrix.quant.group else floats
        return {"x": x, "x_few": x_few, "x_few_bytes": x_few_bytes}
