"""The reference transformer against llama.cpp's weights in f32, and against its own definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from tests.model_files import SMOLLM2, needs
from tests.reference import ROTATE, ReferenceModel
from tests.tiny_gguf import RANDOM_BLOCKS, write_tiny_gguf

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = "golden/smollm2-135m-instruct-q4_1.json"
GOLDEN_FILES = [folder / GOLDEN for folder in (ROOT / "tests", ROOT.parent / "shared")]
IDS = [1, 120, 7, 7, 250, 33, 90, 2, 180, 64, 7, 12]


@pytest.fixture
def tiny(tmp_path: Path) -> Any:
    """A function: options of TinyModel -> ReferenceModel."""
    return lambda **options: ReferenceModel.from_gguf(
        write_tiny_gguf(tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf", **options)
    )


@pytest.mark.model
@needs(SMOLLM2)
@pytest.mark.skipif(not any(map(Path.exists, GOLDEN_FILES)), reason="no golden data")
def test_smollm2_gives_the_likelihoods_of_llama_cpp_in_f32() -> None:
    golden = json.loads(next(filter(Path.exists, GOLDEN_FILES)).read_text())
    expected, ids = golden["reference_f32"], golden["text_ids"]
    model = ReferenceModel.from_gguf(SMOLLM2)
    logits = model.logits(ids)[:-1].astype(np.float64)
    top = logits.max(axis=-1)
    log_sum = top + np.log(np.exp(logits - top[:, None]).sum(axis=-1))
    nll = log_sum - logits[np.arange(len(logits)), ids[1:]]
    np.testing.assert_allclose(nll, expected["text_nll"], atol=1e-3)
    assert np.exp(nll.mean()) == pytest.approx(expected["text_perplexity"], rel=1e-4)
    assert np.mean(logits.argmax(axis=-1) == expected["argmax_ids"]) > 0.995
    chat = golden["cases"][0]
    choices = model.logits(chat["prompt_ids"] + chat["greedy_ids"]).argmax(axis=-1)
    assert list(choices[len(chat["prompt_ids"]) - 1 : -1]) == chat["greedy_ids"]


def test_a_later_token_changes_nothing_before_it(tiny: Any) -> None:
    model = tiny()
    whole, start = model.logits(IDS), model.logits(IDS[:5])
    np.testing.assert_allclose(whole[:5], start, atol=1e-5)
    assert np.abs(whole[5] - start[4]).max() > 0.1


def test_an_output_equal_to_the_embedding_is_a_tied_output(tiny: Any) -> None:
    model = tiny()
    tied = model.logits(IDS)
    model.tensors["output.weight"] = model.tensors["token_embd.weight"]
    np.testing.assert_array_equal(model.logits(IDS), tied)


def test_a_missing_head_count_kv_means_as_many_as_heads(tiny: Any) -> None:
    np.testing.assert_array_equal(tiny(n_head_kv=None).logits(IDS), tiny(n_head_kv=4).logits(IDS))


def test_a_group_of_heads_shares_its_kv_head(tiny: Any) -> None:
    grouped, full = tiny(n_head=4, n_head_kv=2), tiny(n_head=4, n_head_kv=4)
    for name in grouped.tensors:
        weight = grouped.weight(name)
        if name.endswith(("attn_k.weight", "attn_v.weight")):
            weight = weight.reshape(2, 16, 64).repeat(2, axis=0).reshape(64, 64)
        full.weights[name] = weight
    np.testing.assert_allclose(full.logits(IDS), grouped.logits(IDS), atol=1e-5)


def test_rope_turns_consecutive_pairs_as_complex_numbers() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 3, 8)).astype(np.float32)
    angles = rng.uniform(0, 6, (5, 1, 4)).astype(np.float32)
    expected = x.view(np.complex64) * np.exp(1j * angles)
    rotated = ROTATE["neighbours"](x, np.cos(angles), np.sin(angles))
    np.testing.assert_allclose(rotated.view(np.complex64), expected, atol=1e-6)


def test_the_first_rotation_turns_by_one_radian_per_position(tiny: Any) -> None:
    cos, sin = tiny(rope_freq_base=10000.0).angles(4)  # head_dim 16: frequencies 10000 ** (-i / 8)
    np.testing.assert_allclose(cos[:, 0, 0], np.cos([0, 1, 2, 3]), atol=1e-6)
    np.testing.assert_allclose(sin[:, 0, 4], np.sin([0, 0.01, 0.02, 0.03]), atol=1e-6)


def test_linear_scaling_is_a_rope_factor_for_every_frequency(tiny: Any) -> None:
    scaled, factors = tiny(rope_scale=4.0), tiny(rope_freqs=True)
    factors.weights["rope_freqs.weight"] = np.full(8, 4.0, np.float32)
    np.testing.assert_allclose(factors.logits(IDS), scaled.logits(IDS), atol=1e-6)
    assert np.abs(scaled.logits(IDS) - tiny().logits(IDS)).max() > 0.1


def test_an_absent_freq_base_is_10000(tiny: Any) -> None:
    absent, given = tiny(rope_freq_base=None), tiny(rope_freq_base=10000.0)
    np.testing.assert_array_equal(absent.logits(IDS), given.logits(IDS))


@pytest.mark.parametrize(
    "ggml_type",
    [T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.MXFP4, T.TQ2_0, T.TQ1_0, *RANDOM_BLOCKS],
    ids=lambda ggml_type: ggml_type.name,
)
def test_every_tensor_type_gives_reasonable_logits(tiny: Any, ggml_type: T) -> None:
    model = tiny(type=ggml_type, n_embd=256, n_ff=256, tied=False)
    logits = model.logits(IDS)
    assert logits.dtype == np.float32
    assert logits.shape == (len(IDS), 277)
    assert 1 < logits.std() < 4


def test_heads_may_be_wider_than_the_embedding(tiny: Any) -> None:
    model = tiny(n_embd=32, n_head=3, n_head_kv=1, head_dim=20, n_rot=12, n_ff=40, n_vocab=301)
    assert model.weight("blk.0.attn_q.weight").shape == (60, 32)
    assert model.logits(IDS).shape == (len(IDS), 301)


def test_the_same_options_give_the_same_file(tmp_path: Path) -> None:
    files = [
        write_tiny_gguf(tmp_path / name, type=T.Q4_K, n_embd=256, n_ff=256, seed=seed).read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert files[0] == files[1] != files[2]
