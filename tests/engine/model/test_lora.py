"""Adapters that do not fit are refused by name; those that do keep chats apart in the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader, GGUFWriter

from engine import Engine, EngineConfig, Finished, Token
from engine.config import LoraFile
from engine.errors import ConfigError, GGUFError, UnsupportedModel
from engine.files.gguf_file import GGUFFile
from engine.model.lora import Adapters
from engine.model.model_config import ModelConfig
from engine.model.weights import Weights
from engine.model.weights_reader import read_weights
from engine.sampling.sampling_params import SamplingParams
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_lora import write_tiny_lora

Q = "blk.0.attn_q.weight"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf")


def open_with(model: Path, *loras: Path) -> Weights:
    with GGUFFile(model) as gguf, Adapters([LoraFile(lora) for lora in loras], gguf) as adapters:
        return read_weights(gguf, ModelConfig.from_gguf(gguf), adapters)


@pytest.fixture
def lora_of(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes an adapter of tensors name -> shape in NumPy's order, and metadata."""

    def write(
        tensors: dict[str, tuple[int, ...]],
        architecture: str = "llama",
        kind: str | None = "adapter",
        adapter_type: str | None = "lora",
        alpha: float = 4.0,
        invocation: bool = False,
    ) -> Path:
        path = tmp_path / "lora.gguf"
        writer = GGUFWriter(path, architecture)
        if kind is not None:
            writer.add_type(kind)
        if adapter_type is not None:
            writer.add_string("adapter.type", adapter_type)
        writer.add_float32("adapter.lora.alpha", alpha)
        if invocation:
            writer.add_array("adapter.alora.invocation_tokens", [1, 2])
        for name, shape in tensors.items():
            writer.add_tensor(name, np.ones(shape, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


PAIR = {f"{Q}.lora_a": (4, 64), f"{Q}.lora_b": (64, 4)}


def test_a_sound_adapter_is_added_to_its_tensor_alone(
    model: Path, lora_of: Callable[..., Path]
) -> None:
    layers = open_with(model, lora_of(PAIR)).blk
    assert layers[0].attn_q.low_rank is not None
    others = [*layers[0].matrices()[1:], *layers[1].matrices()]
    assert [m.name for m in others if m.low_rank] == []


def test_an_adapter_may_be_one_of_several_files(model: Path, tmp_path: Path) -> None:
    lora = write_tiny_lora(tmp_path / "whole.gguf", model)
    writer = GGUFWriter(tmp_path / "lora.gguf", "llama", split_max_tensors=5)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    for tensor in GGUFReader(lora).tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = open_with(model, tmp_path / "lora-00002-of-00006.gguf")
    assert all(m.low_rank for layer in weights.blk for m in layer.matrices())


def test_a_tied_output_is_left_as_it_is(model: Path, lora_of: Callable[..., Path]) -> None:
    name = "token_embd.weight"
    weights = open_with(model, lora_of({f"{name}.lora_a": (277, 4), f"{name}.lora_b": (64, 4)}))
    assert weights.token_embd.low_rank is not None
    assert weights.output.low_rank is None
    assert weights.output.address == weights.token_embd.address


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "an adapter without tensors"),
        ({f"{Q}.lora_a": (4, 64)}, f"tensor '{Q}.lora_b' is missing"),
        ({f"{Q}.lora_b": (64, 4)}, f"tensor '{Q}.lora_a' is missing"),
        (
            {f"{Q}.lora_a": (4, 96), f"{Q}.lora_b": (64, 4)},
            r"shapes \(96, 4\) and \(4, 64\), where \(64, 4\) and \(4, 64\) fit the model's",
        ),
        ({f"{Q}.lora_a": (4, 64), f"{Q}.lora_b": (96, 4)}, "the adapter is for another one"),
        ({f"{Q}.lora_a": (4, 64), f"{Q}.lora_b": (64, 5)}, r"where \(64, 5\) and \(5, 64\) fit"),
        ({f"{Q}.lora_a": (64, 4), f"{Q}.lora_b": (4, 64)}, "the adapter is for another one"),
        (
            {"blk.2.attn_q.weight.lora_a": (4, 64), "blk.2.attn_q.weight.lora_b": (64, 4)},
            "the model has no tensor 'blk.2.attn_q.weight'; the adapter is for another one",
        ),
        (
            {"output.weight.lora_a": (4, 64), "output.weight.lora_b": (277, 4)},
            "the model has no tensor 'output.weight'",  # it is tied
        ),
        (
            {"token_embd.weight.lora_a": (4, 64), "token_embd.weight.lora_b": (277, 4)},
            r"where \(4, 277\) and \(4, 64\) fit",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tensors: dict[str, tuple[int, ...]],
    message: str,
    model: Path,
    lora_of: Callable[..., Path],
) -> None:
    path = lora_of(tensors)
    with pytest.raises(GGUFError, match=message) as error:
        open_with(model, path)
    assert error.value.path == path


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        (PAIR, {"kind": None}, "its general.type is 'model'"),
        (PAIR, {"kind": "vocab"}, "its general.type is 'vocab'"),
        (PAIR, {"adapter_type": "control"}, "unsupported adapter type 'control'; supported: lora"),
        (PAIR, {"invocation": True}, "adapter.alora.invocation_tokens"),
        ({"blk.0.attn_norm.weight": (64,)}, {}, "'blk.0.attn_norm.weight'; .* not to experts or"),
        (
            {"output_norm.weight.lora_a": (4, 64), "output_norm.weight.lora_b": (64, 4)},
            {},
            "'output_norm.weight.lora_a'",
        ),
    ],
)
def test_what_cannot_be_added_is_named(
    tensors: dict[str, tuple[int, ...]],
    options: dict[str, object],
    message: str,
    model: Path,
    lora_of: Callable[..., Path],
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        open_with(model, lora_of(tensors, **options))


def test_a_matrix_that_nobody_multiplies_with_is_refused(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "qwen3.gguf", architecture="qwen3", head_norms="each")
    with GGUFFile(model) as gguf:
        shape = gguf.tensor("blk.0.attn_q_norm.weight").shape
    assert len(shape) == 2
    lora = tmp_path / "lora.gguf"
    write_tiny_lora(lora, model, tensors=("attn_q_norm",))
    with pytest.raises(UnsupportedModel, match=r"'blk\.0\.attn_q_norm\.weight\.lora_a'"):
        open_with(model, lora)


def test_an_adapter_of_another_architecture(model: Path, lora_of: Callable[..., Path]) -> None:
    lora = lora_of(PAIR, architecture="qwen2")
    with pytest.raises(GGUFError, match=r"an adapter for 'qwen2'; .*tiny\.gguf is 'llama'"):
        open_with(model, lora)


def test_a_missing_adapter_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"none\.gguf: cannot be opened"):
        open_with(model, tmp_path / "none.gguf")
    with pytest.raises(UnsupportedModel, match=r"its general\.type is 'model'"):
        open_with(model, model)


def test_an_unknown_tensor_type_is_named(model: Path, tmp_path: Path) -> None:
    lora = write_tiny_lora(tmp_path / "lora.gguf", model, tensors=("attn_q",))
    data = bytearray(lora.read_bytes())
    at = data.index(b"blk.1.attn_q.weight.lora_b") + len(b"blk.1.attn_q.weight.lora_b") + 4 + 16
    assert data[at : at + 4] == bytes(4)  # F32
    data[at : at + 4] = int(T.I32).to_bytes(4, "little")
    lora.write_bytes(data)
    with pytest.raises(UnsupportedModel, match=r"tensor type of blk\.1\.attn_q\.weight\.lora_b"):
        open_with(model, lora)


@pytest.mark.parametrize(
    ("text", "path", "scale"),
    [
        ("a.gguf", "a.gguf", 1.0),
        ("a.gguf:0.5", "a.gguf", 0.5),
        ("dir:x/a.gguf", "dir:x/a.gguf", 1.0),
        ("dir:x/a.gguf:-2e-1", "dir:x/a.gguf", -0.2),
        ("a:b", "a:b", 1.0),
    ],
)
def test_a_scale_stands_behind_a_colon(text: str, path: str, scale: float) -> None:
    assert LoraFile.parse(text) == LoraFile(Path(path), scale)


@pytest.mark.parametrize("text", ["", "a.gguf:nan", "a.gguf:inf"])
def test_impossible_scales(text: str) -> None:
    with pytest.raises(ConfigError, match="neither FILE nor FILE:SCALE"):
        LoraFile.parse(text)


def test_an_engine_answers_with_its_adapters_and_knows_its_chats(
    model: Path, tmp_path: Path
) -> None:
    lora = write_tiny_lora(tmp_path / "lora.gguf", model)
    prompt = [7 * i % 270 for i in range(100)]
    params = SamplingParams(temperature=0, max_tokens=8)

    def ask(*loras: LoraFile) -> tuple[list[int], int]:
        """(ids of the reply, tokens of the prompt that were in the cache)"""
        config = EngineConfig(
            model, lora=loras, n_ctx=256, n_threads=1, disk_folder=tmp_path / "chats"
        )
        with Engine(config) as engine:
            events = list(engine.generate(prompt, params))
        ids = [event.token_id for event in events if isinstance(event, Token)]
        assert isinstance(events[-1], Finished)
        return ids, events[-1].n_cached

    plain, _ = ask()
    adapted, n_cached = ask(LoraFile(lora))
    assert n_cached == 0  # not of the chat without the adapter
    assert adapted != plain
    again, n_cached = ask(LoraFile(lora))
    assert (again, n_cached > 0) == (adapted, True)
    assert ask(LoraFile(lora, 0.5))[1] == 0
    assert ask() == (plain, n_cached)
