"""Fill-in-the-middle: which tokens a vocabulary has for it."""

from __future__ import annotations

from pathlib import Path

from engine.files.gguf_file import GGUFFile
from engine.text.infill import InfillTokens
from engine.text.tokenizer import Tokenizer
from tests.model_files import QWEN, SMOLLM2, needs


def find(path: Path) -> InfillTokens | None:
    return InfillTokens.of(Tokenizer.from_gguf(GGUFFile(path)).vocabulary)


@needs(QWEN)
def test_of_qwen_coder() -> None:
    """Ids as in the model's tokenizer_config.json."""
    assert find(QWEN) == InfillTokens(prefix=151659, suffix=151661, middle=151660)


@needs(SMOLLM2)
def test_of_a_model_without_them() -> None:
    assert find(SMOLLM2) is None
