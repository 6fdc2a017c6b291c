"""Rope: what the metadata say, in all their forms, and what it makes of the frequencies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.files.gguf_file import GGUFFile
from engine.model.rope import Rope
from tests.tiny_gguf import write_tiny_gguf

KEY = "llama.rope.scaling"


@pytest.fixture
def rope(tmp_path: Path) -> Callable[..., Rope]:
    """Rope of a tiny model (heads of 16, a context of 256) whose metadata was changed."""

    def read(changes: dict[str, Any]) -> Rope:
        with GGUFFile(write_tiny_gguf(tmp_path / "tiny.gguf")) as gguf:
            gguf.metadata.update(changes)
            return Rope.from_gguf(gguf, "llama", 16, halves=False)

    return read


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({}, 1.0),
        ({f"{KEY}.factor": 4.0}, 4.0),
        ({f"{KEY}.factor": 0.0}, 1.0),
        ({f"{KEY}.type": "linear", f"{KEY}.factor": 4.0}, 4.0),
        ({f"{KEY}.type": "none", f"{KEY}.factor": 4.0}, 1.0),
        ({f"{KEY}.type": "longrope", f"{KEY}.factor": 4.0}, 1.0),
        ({"llama.rope.scale_linear": 2.0}, 2.0),
    ],
)
def test_linear_scaling_slows_all_frequencies(
    rope: Any, changes: dict[str, Any], factor: float
) -> None:
    frequencies = rope(changes).frequencies(None)
    np.testing.assert_allclose(frequencies, 10000.0 ** -(np.arange(8) / 8) / factor)
    assert rope(changes).magnitude == 1.0


def test_a_tensor_of_factors_divides_frequencies(rope: Any) -> None:
    factors = np.arange(1, 9, dtype=np.float32)
    expected = 10000.0 ** -(np.arange(8) / 8) / np.arange(1, 9)
    np.testing.assert_allclose(rope({}).frequencies(factors), expected)


def test_factors_of_one_change_nothing_and_equal_ones_are_linear_scaling(rope: Any) -> None:
    plain = rope({}).frequencies(None)
    np.testing.assert_array_equal(rope({}).frequencies(np.ones(8, np.float32)), plain)
    scaled = rope({f"{KEY}.type": "linear", f"{KEY}.factor": 8.0}).frequencies(None)
    np.testing.assert_allclose(rope({}).frequencies(np.full(8, 8, np.float32)), scaled)
    far = np.ones(8, np.float32)
    far[3] = 1e9
    assert np.all(np.isfinite(rope({}).frequencies(far)))
    assert np.flatnonzero(rope({}).frequencies(far) != plain).tolist() == [3]


def test_yarn_keeps_what_turns_fast_and_slows_what_turns_slowly(rope: Any) -> None:
    scaled = rope({f"{KEY}.type": "yarn", f"{KEY}.factor": 4.0, f"{KEY}.yarn_beta_fast": 8.0})
    ratio = scaled.frequencies(None) / rope({}).frequencies(None)
    turns = 256 * rope({}).frequencies(None) / (2 * np.pi)
    np.testing.assert_allclose(ratio[turns > 8], 1.0)
    np.testing.assert_allclose(ratio[turns < 1][1:], 0.25)  # the first of them is rounded to
    assert (np.diff(ratio) <= 0).all()
    # The paper's temperature: sqrt(1/t) = 0.1 ln(s) + 1.
    assert scaled.magnitude == pytest.approx(0.1 * np.log(4) + 1)


def test_attn_factor_is_for_every_kind(rope: Any) -> None:
    assert rope({f"{KEY}.attn_factor": 1.19}).magnitude == 1.19
    yarn = rope({f"{KEY}.type": "yarn", f"{KEY}.factor": 4.0, f"{KEY}.attn_factor": 0.5})
    assert yarn.magnitude == pytest.approx(0.5 * (0.1 * np.log(4) + 1))


def test_the_original_context_is_the_models_own_where_none_is_given(rope: Any) -> None:
    assert rope({}).n_ctx_orig == 256
    assert rope({f"{KEY}.original_context_length": 64}).n_ctx_orig == 64
