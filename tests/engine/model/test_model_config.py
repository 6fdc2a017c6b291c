"""ModelConfig: what is refused by name, and the forms in which files give one number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import GGUFError, UnsupportedModel
from engine.files.gguf_file import GGUFFile
from engine.kernels.rope import MAX_HEAD_DIM as ROOM_OF_THE_KERNEL
from engine.model.model_config import MAX_HEAD_DIM, ModelConfig
from tests.tiny_gguf import write_tiny_gguf

ABSENT = object()


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., ModelConfig]:
    """ModelConfig of a tiny model (4 heads of 16, 2 KV heads) whose metadata was changed."""

    def read(changes: dict[str, Any]) -> ModelConfig:
        with GGUFFile(write_tiny_gguf(tmp_path / "tiny.gguf")) as gguf:
            for key, value in changes.items():
                gguf.metadata[key] = value
                if value is ABSENT:
                    del gguf.metadata[key]
            return ModelConfig.from_gguf(gguf)

    return read


def test_the_largest_head_is_what_the_kernel_has_room_for() -> None:
    assert MAX_HEAD_DIM == ROOM_OF_THE_KERNEL


@pytest.mark.parametrize(
    ("value", "n_head_kv"), [(2, 2), (ABSENT, 4), (np.array([2, 2], np.int32), 2)]
)
def test_kv_heads_may_be_absent_or_one_number_per_layer(
    config: Any, value: object, n_head_kv: int
) -> None:
    assert config({"llama.attention.head_count_kv": value}).n_head_kv == n_head_kv


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "oddly"}, "unsupported architecture 'oddly'; supported: llama"),
        ({"llama.rope.dimension_sections": np.array([8, 8, 0, 0])}, "rope.dimension_sections"),
        ({"llama.attention.causal": False}, "model option 'llama.attention.causal = false'"),
        ({"llama.attention.clamp_kqv": 8.0}, "model option 'llama.attention.clamp_kqv'"),
        ({"llama.attention.head_count_kv": np.array([2, 4], np.int32)}, "differs between layers"),
        ({"llama.attention.value_length": 32}, "value_length"),
        ({"llama.attention.key_length": 24, "llama.attention.value_length": 24}, "head size '24"),
        (
            {"llama.attention.key_length": 1024, "llama.attention.value_length": 1024},
            "head size '1024",
        ),
        ({"llama.rope.scaling.type": "ntk"}, "RoPE scaling 'ntk'; supported: none, linear, yarn"),
        ({"llama.feed_forward_length": 100}, "n_ff = 100"),
    ],
)
def test_what_this_engine_cannot_run_is_refused_by_name(
    config: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        config(changes)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.embedding_length", ABSENT),
        ("llama.block_count", 0),
        ("llama.context_length", -1),
        ("llama.attention.head_count_kv", 3),
        ("llama.rope.dimension_count", 17),
        ("llama.rope.dimension_count", 32),
        ("llama.rope.freq_base", 0.0),
        ("llama.attention.layer_norm_rms_epsilon", "1e-5"),
        ("llama.attention.layer_norm_rms_epsilon", 0.0),
        ("llama.attention.layer_norm_rms_epsilon", -1.0),
        ("llama.rope.scaling.factor", -4.0),
        ("llama.rope.scaling.attn_factor", 0.0),
        ("llama.rope.scaling.original_context_length", 0),
        ("llama.final_logit_softcapping", -30.0),
        ("llama.attention.sliding_window", -1),
        ("llama.attention.sliding_window", 1 << 63),
        ("llama.attention.head_count_kv", np.array([2.5, 2.5])),
        ("llama.attention.head_count_kv", np.array([], np.int32)),
    ],
)
def test_numbers_that_make_no_sense_are_refused_by_key(config: Any, key: str, value: Any) -> None:
    with pytest.raises(GGUFError, match=key):
        config({key: value})


def test_a_window_that_an_architecture_does_not_have_is_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", architecture="qwen3", window=32)
    with GGUFFile(path) as gguf, pytest.raises(UnsupportedModel, match=r"qwen3\..*sliding_window"):
        ModelConfig.from_gguf(gguf)


@pytest.mark.parametrize(
    ("pattern", "windowed"),
    [
        (ABSENT, [True, True, True]),
        (2, [True, False, True]),
        (np.array([False, True, False]), [False, True, False]),
    ],
)
def test_layers_with_a_window_are_those_of_the_pattern(
    tmp_path: Path, pattern: Any, windowed: list[bool]
) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", window=32, n_layer=3)
    with GGUFFile(path) as gguf:
        if pattern is not ABSENT:
            gguf.metadata["llama.attention.sliding_window_pattern"] = pattern
        config = ModelConfig.from_gguf(gguf)
    assert [config.has_window(i) for i in range(3)] == windowed


def test_a_pattern_for_another_number_of_layers_is_refused(config: Any) -> None:
    pattern = np.array([True, False, True])
    changes = {
        "llama.attention.sliding_window": 8,
        "llama.attention.sliding_window_pattern": pattern,
    }
    with pytest.raises(GGUFError, match="sliding_window_pattern: not one yes or no for each of 2"):
        config(changes)
