"""Real models, where somebody has put them into `models/`."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "models"
SMOLLM2 = FOLDER / "SmolLM2-135M-Instruct.Q4_1.gguf"  # the demo model; has to be forced to calls
QWEN = FOLDER / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"  # calls tools by itself
GEMMA = FOLDER / "gemma-3-270m-q4_k_m.gguf"  # no chat model


def needs(path: Path) -> pytest.MarkDecorator:
    """Skips where the file is not there; beside the mark `model`."""
    how = ": `rushlight fetch` brings it" if path == SMOLLM2 else ""
    return pytest.mark.skipif(not path.exists(), reason=f"needs models/{path.name}{how}")
