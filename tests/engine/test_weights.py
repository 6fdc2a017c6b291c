"""Files whose tensors are not what the model needs are refused, naming the file and the tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader, GGUFWriter

from engine.errors import GGUFError, UnsupportedModel
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.weights import Weights
from tests.tiny_gguf import write_tiny_gguf

Tensors = dict[str, npt.NDArray[np.float32]]
Q = "blk.1.attn_q.weight"


def read(path: Path) -> Weights:
    gguf = GGUFFile(path)
    return Weights.from_gguf(gguf, ModelConfig.from_gguf(gguf))


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


@pytest.mark.parametrize("name", [Q, "blk.0.attn_norm.weight", "output_norm.weight"])
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


@pytest.mark.parametrize("name", ["blk.1.attn_sinks.weight", "blk.2.attn_q.weight", "vision.bias"])
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

    assert read(changed(lifted)).output_norm.shape == (64,)
