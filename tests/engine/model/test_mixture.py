"""Mixtures of experts: impossible numbers, tensors of the wrong shape, experts that nobody knows to
route, and rows that do not depend on each other. Logits are test_architectures' business.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import GGUFError, UnsupportedModel
from engine.files.gguf_file import GGUFFile
from engine.model.model_config import ModelConfig
from engine.model.weights import MixtureWeights
from engine.model.weights_reader import read_weights
from tests.golden_cases import IDS
from tests.tiny_chat import chat_of, score
from tests.tiny_gguf import T, write_tiny_gguf

MIXTURE: dict[str, Any] = {
    "architecture": "qwen3moe",
    "n_embd": 256,
    "n_ff_expert": 256,
    "n_expert": 6,
    "types": dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), T.Q4_K),
}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_expert_used": 7}, GGUFError, "expert_used_count: 7 of 6 experts"),
        ({"n_expert_used": 0}, GGUFError, "expert_used_count: 0 of 6 experts"),
        ({"n_ff_expert": 48, "types": {}}, UnsupportedModel, "48 of an expert"),
        ({"architecture": "qwen3"}, UnsupportedModel, "qwen3.expert_count"),
    ],
)
def test_impossible_mixtures_are_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", **{**MIXTURE, **options})
    with GGUFFile(path) as gguf, pytest.raises(error, match=message):
        ModelConfig.from_gguf(gguf)


def test_experts_must_be_as_many_as_the_file_says(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", **MIXTURE)
    with GGUFFile(path) as gguf:
        gguf.metadata["qwen3moe.expert_count"] = 5
        config = ModelConfig.from_gguf(gguf)
        with pytest.raises(GGUFError, match=r"ffn_gate_inp.weight: shape \(256, 6\)"):
            read_weights(gguf, config)


def test_a_token_reads_the_router_and_the_experts_it_takes(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", **MIXTURE)
    with GGUFFile(path) as gguf:
        ffn = read_weights(gguf, ModelConfig.from_gguf(gguf)).blk[0].ffn
        assert isinstance(ffn, MixtureWeights)
        router, expert = 6 * 256 * 4, 256 * 144  # bytes: f32; 144 to a row of Q4_K
        assert sum(m.n_bytes for m in ffn.matrices()) == router + 2 * 3 * expert


@pytest.mark.parametrize("chunk", [3, 8])
def test_a_few_rows_give_what_each_gives_alone(tmp_path: Path, chunk: int) -> None:
    """To the last bit: a chat says the same alone and beside others."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", **MIXTURE)
    with chat_of(path) as chat:
        np.testing.assert_array_equal(score(chat, IDS, chunk), score(chat, IDS, 1))


@pytest.mark.parametrize("n_threads", [1, 3])
def test_threads_make_no_difference(tmp_path: Path, n_threads: int) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", **MIXTURE)
    with chat_of(path) as chat, chat_of(path, n_threads=n_threads) as other:
        for chunk in (1, len(IDS)):
            np.testing.assert_array_equal(score(chat, IDS, chunk), score(other, IDS, chunk))
