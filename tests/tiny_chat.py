"""A chat over a model's file, without an engine around it, and how its logits are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.cache.chat import Chat
from engine.cache.kv_cache import PagePool
from engine.config import LoraFile
from engine.files.gguf_file import GGUFFile
from engine.kernels.kv_page import n_pages
from engine.model.lora import Adapters
from engine.model.model import Model
from engine.model.model_config import ModelConfig
from engine.model.weights_reader import read_weights

N_CTX = 200
Logits = npt.NDArray[np.float32]


@contextmanager
def chat_of(
    path: Path,
    max_rows: int = 64,
    n_threads: int = 2,
    n_ctx: int = N_CTX,
    lora: Sequence[LoraFile] = (),
) -> Iterator[Chat]:
    with GGUFFile(path) as gguf:
        config = ModelConfig.from_gguf(gguf)
        with Adapters(lora, gguf) as adapters:
            weights = read_weights(gguf, config, adapters)
        model = Model(config, weights, max_rows, n_threads, on_layout=lambda model: n_ctx)
        try:
            # Nothing leaves it: there is no cache around it that would see to that.
            pool = PagePool(model.page_bytes, n_pages(n_ctx) * sum(model.page_bytes))
            yield Chat(model, pool, n_ctx)
        finally:
            model.close()


def score(chat: Chat, tokens: list[int], chunk: int) -> Logits:
    """Logits after each token, read anew, a chunk at a time."""
    chat.restart()
    parts = [chat.score(tokens[i : i + chunk]).copy() for i in range(0, len(tokens), chunk)]
    return np.concatenate(parts)


def relative_rms(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """Root mean square of the difference, relative to the spread of what is expected."""
    return float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std())
