"""Files whose tensors are not what the model needs are refused, naming the file and the tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader, GGUFWriter

from engine.errors import GGUFError, UnsupportedModel
from engine.files.gguf_file import GGUFFile
from engine.model.model_config import ModelConfig
from engine.model.weights import FeedForwardWeights, Weights
from engine.model.weights_reader import read_weights
from tests.tiny_gguf import write_tiny_gguf

Tensors = dict[str, npt.NDArray[np.float32]]
Q = "blk.1.attn_q.weight"


def read(path: Path) -> Weights:
    gguf = GGUFFile(path)
    return read_weights(gguf, ModelConfig.from_gguf(gguf))


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., Path]:
    """A tiny model's file with its tensors changed by `change`, one of them perhaps retyped."""
    whole = write_tiny_gguf(tmp_path / "whole.gguf")
    reader = GGUFReader(whole)

    def changed(change: Callable[[Tensors], object], types: dict[str, T] | None = None) -> Path:
        tensors = {t.name: np.array(t.data) for t in reader.tensors}
        change(tensors)
        path = tmp_path / "changed.gguf"
        writer = GGUFWriter(path, "llama")
        for name, field in reader.fields.items():
            if name.startswith("llama."):
                writer.add_key_value(name, field.contents(), field.types[0])
        for name, data in tensors.items():
            raw = (types or {}).get(name)
            writer.add_tensor(name, data, raw_dtype=raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return changed


def test_an_unchanged_file_is_read(changed: Callable[..., Path]) -> None:
    weights = read(changed(lambda tensors: None))
    assert (weights.blk[1].attn_q.name, weights.blk[1].attn_q.n_in) == (Q, 64)
    assert weights.output is weights.token_embd


NEEDED = ("attn_norm", "ffn_norm", "ffn_gate", "attn_output")


@pytest.mark.parametrize("name", [Q, "output_norm.weight", *(f"blk.0.{n}.weight" for n in NEEDED)])
def test_a_missing_tensor(name: str, changed: Callable[..., Path]) -> None:
    path = changed(lambda tensors: tensors.pop(name))
    with pytest.raises(GGUFError) as caught:
        read(path)
    assert caught.value.path == path
    assert name in str(caught.value)


@pytest.mark.parametrize("name", [Q, "blk.0.ffn_norm.weight", "blk.0.ffn_down.weight"])
def test_a_misshapen_tensor(name: str, changed: Callable[..., Path]) -> None:
    def cut(tensors: Tensors) -> None:
        tensors[name] = tensors[name][:32].copy()

    path = changed(cut)
    with pytest.raises(GGUFError, match=r"shape \(.*32.*\) where \(.*\) is expected") as caught:
        read(path)
    assert caught.value.path == path
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["blk.1.attn_other.weight", "blk.2.attn_q.weight", "vision.bias"])
def test_a_tensor_that_nobody_asks_for(name: str, changed: Callable[..., Path]) -> None:
    path = changed(lambda tensors: tensors.update({name: np.zeros(8, np.float32)}))
    with pytest.raises(UnsupportedModel) as caught:
        read(path)
    assert caught.value.name == name
    assert str(path) in str(caught.value)


def test_a_tensor_of_an_unsupported_type(changed: Callable[..., Path]) -> None:
    def as_f64(tensors: Tensors) -> None:
        tensors[Q] = tensors[Q].astype(np.float64)

    with pytest.raises(UnsupportedModel, match=r"'F64'; supported: .*Q4_K") as caught:
        read(changed(as_f64))
    assert Q in str(caught.value)


def test_axes_of_one_at_the_end_do_not_matter(changed: Callable[..., Path]) -> None:
    def lifted(tensors: Tensors) -> None:
        tensors["output_norm.weight"] = tensors["output_norm.weight"].reshape(1, -1)

    assert read(changed(lifted)).output_norm.weight.shape == (64,)


def test_tensors_that_are_several_in_one_become_views_of_their_rows(tmp_path: Path) -> None:
    path = write_tiny_gguf(
        tmp_path / "fused.gguf",
        architecture="phi3",
        type=T.Q8_0,
        fused=("attn_qkv", "ffn_up"),
        biases=("attn_qkv",),
    )
    gguf = GGUFFile(path)
    w = read_weights(gguf, ModelConfig.from_gguf(gguf)).blk[1]
    parts = (w.attn_q, w.attn_k, w.attn_v)
    start, row_bytes = gguf.address("blk.1.attn_qkv.weight"), 64 // 32 * 34
    assert [(m.address - start) // row_bytes for m in parts] == [0, 64, 96]
    assert [m.n_out for m in parts] == [64, 32, 32]
    bias = gguf.bytes_of("blk.1.attn_qkv.bias").view(np.float32)
    np.testing.assert_array_equal(np.concatenate([m.bias for m in parts]), bias)
    assert isinstance(w.ffn, FeedForwardWeights)
    assert w.ffn.ffn_gate is not None
    assert w.ffn.ffn_gate.address == gguf.address("blk.1.ffn_up.weight")
    assert w.ffn.ffn_up.address == w.ffn.ffn_gate.address + 96 * row_bytes
    assert (w.ffn.ffn_gate.n_out, w.ffn.ffn_up.n_out) == (96, 96)


@pytest.mark.parametrize(
    ("kind", "shape"), [("head", (4, 16)), ("each", (4, 16)), ("row", (64,)), (None, None)]
)
def test_norms_of_heads_are_told_by_their_shapes(
    tmp_path: Path, kind: str | None, shape: tuple[int, ...] | None
) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", head_norms=kind)
    norm = read(path).blk[0].attn_q_norm
    assert (None if norm is None else norm.shape) == shape


def test_a_layer_without_a_norm_of_its_own_for_feed_forward_is_parallel(tmp_path: Path) -> None:
    options = {"layer_norm": True, "without": ("ffn_norm",)}
    path = write_tiny_gguf(tmp_path / "a.gguf", architecture="command-r", **options)
    assert read(path).blk[0].is_parallel
    options = {"post_norms": True, "without": ("attn_norm", "ffn_norm")}
    path = write_tiny_gguf(tmp_path / "b.gguf", architecture="olmo2", **options)
    assert not read(path).blk[0].is_parallel


def test_long_rope_needs_its_factors(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", keys={"rope.scaling.type": "longrope"})
    with pytest.raises(GGUFError, match=r"rope_factors_long\.weight' is missing"):
        read(path)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (np.ones(7), r"shape \(7,\) where \(8,\) is expected"),
        (np.ones(16), r"shape \(16,\) where \(8,\) is expected"),
        (np.zeros(8), "above 0"),
        (np.full(8, np.nan), "above 0"),
        (np.full(8, np.inf), "above 0"),
        (-np.ones(8), "above 0"),
    ],
)
def test_rope_factors_that_make_no_frequencies(
    changed: Callable[..., Path], factors: Any, message: str
) -> None:
    name = "rope_freqs.weight"
    path = changed(lambda tensors: tensors.update({name: factors.astype(np.float32)}))
    with pytest.raises(GGUFError, match=f"tensor {name}: .*{message}"):
        read(path)
