"""Fill-in-the-middle: which tokens a vocabulary has for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.files.gguf_file import GGUFFile
from engine.text.infill import InfillTokens
from engine.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[3]


def find(path: Path) -> InfillTokens | None:
    if not path.exists():
        pytest.skip(f"needs {path.name}")
    gguf = GGUFFile(path)
    return InfillTokens.of(Tokenizer.from_gguf(gguf).vocabulary)


def test_of_qwen_coder() -> None:
    """Ids as in the model's tokenizer_config.json."""
    found = find(ROOT / "models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")
    assert found == InfillTokens(prefix=151659, suffix=151661, middle=151660)


def test_of_a_model_without_them() -> None:
    assert find(ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf") is None
