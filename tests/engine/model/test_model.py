"""The whole transformer against the NumPy reference, on tiny models of every tensor type and
option.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from engine.model.model import Cancelled
from engine.quants import QUANTS
from engine.quants.base import FewInput
from tests.reference import ReferenceModel
from tests.tiny_chat import chat_of, relative_rms, score
from tests.tiny_gguf import write_tiny_gguf


def ids(n: int, n_vocab: int = 270) -> list[int]:
    return [int(i) for i in np.random.default_rng(3).integers(0, n_vocab, n)]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied output": {"tied": False},
    "one kv head": {"n_head_kv": 1},
    "as many kv heads": {"n_head_kv": 4},
    "no head_count_kv": {"n_head_kv": None},
    "three to a kv head": {"n_embd": 96, "n_head": 6, "n_head_kv": 2},
    "heads wider than n_embd": {"head_dim": 48},
    "rope of a part": {"n_rot": 8},
    "rope_freqs": {"rope_freqs": True},
    "linear rope": {"rope_scale": 4.0},
    "odd vocabulary": {"n_vocab": 281},
    "alignment": {"alignment": 64},
    "qwen2": {"architecture": "qwen2", "biases": ("attn_q", "attn_k", "attn_v")},
    "gemma3": {
        "architecture": "gemma3",
        "head_norms": "head",
        "post_norms": True,
        "n_layer": 7,
        "window": 40,
    },
    "gemma2": {
        "architecture": "gemma2",
        "post_norms": True,
        "n_layer": 4,
        "window": 40,
        "keys": {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    },
    "a window in all layers": {"window": 40},
    "far beyond yarn's context": {
        "keys": {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 32,
        }
    },
    "long rope": {
        "architecture": "phi3",
        "fused": ("attn_qkv", "ffn_up"),
        "long_rope": True,
        "keys": {
            "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": 1.19,
        },
    },
    "gemma3 of one page": {
        "architecture": "gemma3",
        "head_norms": "head",
        "post_norms": True,
        "n_layer": 7,
        "window": 64,
    },
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_float_weights_equal_the_reference(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=T.F32, **options)
    tokens = ids(150)
    expected = ReferenceModel.from_gguf(path).logits(tokens)
    with chat_of(path) as chat:
        found = score(chat, tokens, chunk=64)
    assert relative_rms(found, expected) < 2e-3  # the cache is f16
    assert np.mean(found.argmax(-1) == expected.argmax(-1)) > 0.98


# What rounding the inputs costs a tiny model's logits, relative to their spread: a few times what
# was seen, so that a lost plane, scale or offset shows.
ROUNDING = {FewInput.FLOATS: 2e-3, FewInput.FINE8: 3.5e-2, FewInput.FINE16: 3e-3}
ONE_PLANE, TWO_PLANES = 8e-2, 3e-3


@pytest.mark.parametrize("quant", QUANTS.values(), ids=lambda q: q.name)
def test_each_tensor_type_is_close_to_the_reference(
    tmp_path: Path, quant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=T(quant.ggml_type), n_embd=256, n_ff=256)
    tokens = ids(40)
    expected = ReferenceModel.from_gguf(path).logits(tokens)
    with chat_of(path) as chat:
        two_planes = score(chat, tokens, chunk=40)
        one_by_one = score(chat, tokens, chunk=1)
        # As for the long prompts of real models.
        monkeypatch.setattr("engine.model.model._PRECISE_WORK", 0)
        one_plane = score(chat, tokens, chunk=40)
    assert relative_rms(one_by_one, expected) < ROUNDING[quant.few_input]
    assert relative_rms(two_planes, expected) < TWO_PLANES
    assert relative_rms(one_plane, expected) < (ONE_PLANE if quant.group else TWO_PLANES)


@pytest.mark.parametrize("type", [T.F16, T.Q4_0, T.Q6_K], ids=lambda t: t.name)
@pytest.mark.parametrize("wanted", [[39], [3, 17, 39]], ids=len)
def test_logits_of_a_few_of_many_rows_are_close_to_the_reference(
    tmp_path: Path, type: T, wanted: list[int]
) -> None:
    """The output matrix is read as in decoding then, the others as for many rows."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=type, n_embd=256, n_ff=256)
    tokens = ids(40)
    expected = ReferenceModel.from_gguf(path).logits(tokens)[wanted]
    with chat_of(path) as chat:
        found = chat._read(tokens, wanted, precise=True)
        assert relative_rms(found, expected) < ROUNDING[QUANTS[type].few_input]


# Widths that are not whole runs of 256, of which two, four or eight rows are read in a line, or one
# alone. Rows of 480 and 544 values would make too long a line.
UNEVEN: dict[str, dict[str, Any]] = {
    "8 and 4 in a line": {"n_embd": 288, "n_head": 9, "n_head_kv": 3, "n_ff": 320, "tied": False},
    "4 and 2 in a line": {"n_embd": 320, "n_head": 5, "n_head_kv": 1, "n_ff": 384},
    "one alone": {"n_embd": 480, "n_head": 5, "n_head_kv": 5, "n_ff": 544},
    "experts": {
        "architecture": "qwen3moe",
        "head_norms": "head",
        "n_embd": 320,
        "n_ff_expert": 288,
        "n_expert": 5,
        "types": {"ffn_gate_inp": T.F32},
    },
}


@pytest.mark.parametrize(
    "quant", [q for q in QUANTS.values() if q.block_size == 32], ids=lambda q: q.name
)
@pytest.mark.parametrize("options", UNEVEN.values(), ids=UNEVEN)
def test_rows_that_are_not_whole_runs_are_close_to_the_reference(
    tmp_path: Path, options: dict[str, Any], quant: Any
) -> None:
    """Kernels write the lines that products read. Prompts at once and in chunks, and decoding."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=T(quant.ggml_type), n_vocab=281, **options)
    tokens = ids(40)
    expected = ReferenceModel.from_gguf(path).logits(tokens)
    with chat_of(path, n_threads=3) as chat:
        for chunk in (40, 33, 7):
            assert relative_rms(score(chat, tokens, chunk), expected) < TWO_PLANES, chunk
        one_by_one = score(chat, tokens, chunk=1)
        np.testing.assert_array_equal(score(chat, tokens, chunk=7), one_by_one)


def test_mixed_types_read_the_same_input(tmp_path: Path) -> None:
    types = {"attn_q": T.Q4_K, "attn_v": T.Q6_K, "attn_k": T.F16, "ffn_up": T.Q8_0}
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=T.Q4_0, types=types, n_embd=256, n_ff=256)
    tokens = ids(40)
    expected = ReferenceModel.from_gguf(path).logits(tokens)
    with chat_of(path) as chat:
        assert relative_rms(score(chat, tokens, chunk=40), expected) < TWO_PLANES


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16, 64])
def test_chunks_make_no_difference(tmp_path: Path, chunk: int, n_threads: int) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=T.F32)
    tokens = ids(130)
    with chat_of(path, n_threads=n_threads) as chat:
        at_once, in_chunks = score(chat, tokens, chunk=64), score(chat, tokens, chunk)
    # Sums in another order may round a key or value to the neighbouring f16.
    np.testing.assert_allclose(in_chunks, at_once, atol=2e-3 * float(at_once.std()))


def test_a_number_of_threads_that_changes_makes_none_either(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=T.Q4_0)
    tokens = ids(150)
    with chat_of(path, n_threads=3) as chat:
        expected = score(chat, tokens, chunk=1)
        run, numbers, used = chat._model.team.run, itertools.cycle((3, 1, 2, 2, 1)), set()

        def run_on_others(plan: int, n_ops: int, batch: int, n_threads: int) -> None:
            n_threads = next(numbers)
            used.add(n_threads)
            run(plan, n_ops, batch, n_threads)

        chat._model.team.run = run_on_others  # type: ignore[method-assign, assignment]
        np.testing.assert_array_equal(score(chat, tokens, chunk=1), expected)
        assert used == {1, 2, 3}


def test_a_reused_prefix_is_as_good_as_a_fresh_one(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=T.Q4_1)
    first, second = ids(120), ids(120)
    second[70:] = second[70:][::-1]
    with chat_of(path) as chat:
        fresh = score(chat, second, chunk=64)[-1]
        score(chat, first, chunk=64)
        chat.truncate_to(70)
        reused = chat.prefill(second[70:])
        assert chat.ids == second
        # Read in chunks of other sizes: in two planes of q8, or in those of fine16 (14 bits).
        np.testing.assert_allclose(reused, fresh, atol=2e-3 * float(fresh.std()))


def test_pages_are_taken_as_needed_and_given_back(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    with chat_of(path) as chat:
        pool = chat._pool
        used = []
        for n in (64, 1, 64):
            chat.prefill(ids(n))
            used.append(pool.used_bytes // pool.page_bytes[0])
        assert used == [1, 2, 3]
        chat.truncate_to(65)
        assert pool.used_bytes == 2 * pool.page_bytes[0]
        chat.restart()
        assert pool.free_bytes == pool.n_bytes


def test_a_cancelled_run_leaves_the_chat_as_it_was(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    with chat_of(path) as chat:
        expected = score(chat, ids(30), chunk=15)[-1]
        chat.truncate_to(15)
        chat._model.batch.cancel()
        with pytest.raises(Cancelled):
            chat.prefill(ids(30)[15:])
        assert len(chat.ids) == 15
        chat._model.batch.allow()
        again = chat.prefill(ids(30)[15:])
        np.testing.assert_allclose(again, expected, atol=1e-3 * float(expected.std()))
