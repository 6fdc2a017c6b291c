"""An engine over a tiny random model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Engine, EngineConfig
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_requests import N_CTX


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def engine(model_path: Path) -> Iterator[Engine]:
    with Engine(
        EngineConfig(model_path, disk_bytes=0, n_ctx=N_CTX, prefill_chunk=64, max_waiting=2)
    ) as engine:
        yield engine
