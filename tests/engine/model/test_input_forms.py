"""InputForms: room for every row that is no longer than the widest, in the form its readers want.

What a form takes is counted on rows that NumPy made.
"""

from __future__ import annotations

import numpy as np
import pytest

from engine.model.input_forms import InputForms
from engine.model.plan import Workspace
from engine.model.weights import Matrix
from engine.quants import QUANTS
from tests.input_forms import input_rows

N_MANY, N_FEW = 5, 3


class Sizes(Workspace):
    """Knows how large each buffer is."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[int, int] = {}

    def reserve(self, n_bytes: int) -> int:
        address = super().reserve(n_bytes)
        self.of[address] = n_bytes
        return address


def matrix(type_name: str, n_in: int) -> Matrix:
    quant = next(q for q in QUANTS.values() if q.name == type_name)
    return Matrix("w", quant.ggml_type, address=0, n_in=n_in, n_out=1)


# A fine16 row of 288 values is eight times there, and longer than one of 512; one of 480 would be
# too long so, and is there once.
@pytest.mark.parametrize("widest", [64, 288, 512, 1056, 3104, 4096])
@pytest.mark.parametrize("type_name, step", [("Q4_0", 32), ("Q4_K", 256)])
def test_rows_of_every_width_fit(widest: int, type_name: str, step: int) -> None:
    sizes = Sizes()
    forms = InputForms(sizes, N_MANY, N_FEW, widest)
    for n in range(step, widest + 1, step):
        reader = matrix(type_name, n)
        found, one = forms.read_by(reader, floats=0), np.zeros((1, n), np.float32)
        few, many = (input_rows(f, one)[0].nbytes for f in (reader.quant.few_input, None))
        stride = found["x_few_bytes"]
        assert stride >= few, f"{n} values"
        assert (N_FEW - 1) * stride + few <= sizes.of[found["x_few"]], f"{n} values"
        assert 2 * N_MANY * many <= sizes.of[found["x"]], f"{n} values"


def test_a_form_is_written_where_it_is_read() -> None:
    forms = InputForms(Workspace(), N_MANY, N_FEW, 512)
    readers = {name: matrix(name, 512) for name in ("Q4_0", "Q4_K", "F16")}
    wanted = {"Q4_0": {"q8", "fine16"}, "Q4_K": {"q8", "fine8"}, "F16": set()}
    for name, reader in readers.items():
        written = forms.written_for(reader)
        assert {form for form, address in written.items() if address} == wanted[name]
        found = forms.read_by(reader, floats=7)
        if name == "F16":
            assert found == {"x": 7, "x_few": 7, "x_few_bytes": 4 * 512}
        else:
            assert {found["x"], found["x_few"]} == {a for a in written.values() if a}
    assert all(forms.written_for(*readers.values()).values())
