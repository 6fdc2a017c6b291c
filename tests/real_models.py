"""Real models, where they are there, and a server over one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine import Engine, EngineConfig
from tests.server.conftest import Running, start

_FOLDER = Path(__file__).resolve().parents[1] / "models"
SMOLLM2 = _FOLDER / "SmolLM2-135M-Instruct.Q4_1.gguf"  # has to be forced to its calls
QWEN = _FOLDER / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"  # calls tools by itself

# For a fixture's `params`: the second is slow, and few have it.
BOTH = [SMOLLM2, pytest.param(QWEN, marks=pytest.mark.slow)]


@contextmanager
def served(path: Path, **more: Any) -> Iterator[Running]:
    """A server over the model, which answers as it thinks best: temperature 0. Skips without it.

    more: of EngineConfig.
    """
    if not path.exists():
        pytest.skip(f"needs {path.name}")
    config = EngineConfig(str(path), **{"n_ctx": 1024, "disk_bytes": 0, **more})
    running, stop = start(lambda on_load: Engine(config, on_load), sampling={"temperature": 0})
    try:
        assert running.loaded.wait(120), "the engine does not load"
        yield running
    finally:
        stop()
