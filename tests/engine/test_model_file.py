"""What a user names, opened and checked without an engine. What is refused: test_bad_models.py."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from engine import EngineConfig, EngineError, LoraFile, ModelFile
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_lora import write_tiny_lora


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf", split=4).with_name("tiny-00002-of-00005.gguf")


def mapped(folder: Path) -> list[str]:
    gc.collect()
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.rsplit("/", 1)[1] for line in lines if str(folder) in line})


def test_it_tells_of_the_whole_model(path: Path) -> None:
    with ModelFile(EngineConfig(path)) as file:
        info = file.info(n_ctx=100, n_vocab=300)
        assert (info.name, info.architecture, info.n_ctx, info.n_vocab) == (
            "tiny",
            "llama",
            100,
            300,
        )
        assert info.n_layer == file.config.n_layer
        assert info.n_bytes == sum(part.stat().st_size for part in path.parent.glob("tiny-*.gguf"))
        assert info.n_params == sum(t.n_weights for t in file.gguf.tensors.values())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc here")
def test_closed_or_refused_it_leaves_nothing_open(path: Path, tmp_path: Path) -> None:
    adapter = write_tiny_lora(tmp_path / "fits.gguf", write_tiny_gguf(tmp_path / "one.gguf"))
    with ModelFile(EngineConfig(path, lora=(LoraFile(adapter),))) as file:
        assert any(matrix.low_rank for matrix in file.weights.blk[0].matrices())
        assert "tiny-00005-of-00005.gguf" in mapped(tmp_path)
        assert file.cached_bytes() in (None, file.gguf.n_bytes)  # just written
        assert file.resident_bytes() > 0
        del file
    assert mapped(tmp_path) == []
    for wrong in (LoraFile(tmp_path / "missing.gguf"), LoraFile(tmp_path / "one.gguf")):
        with pytest.raises(EngineError):
            ModelFile(EngineConfig(path, lora=(LoraFile(adapter), wrong)))
        assert mapped(tmp_path) == []
