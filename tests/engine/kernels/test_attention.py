"""Attention over long contexts, in parts, for every type of page: whole models against the NumPy
reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as T

from engine.cache.chat import Chat
from engine.cache.kv_cache import PagePool
from engine.files.gguf_file import GGUFFile
from engine.kernels.attention import MAX_PARTS, PART
from engine.kernels.kv_page import KV_TYPES, PAGE, n_pages
from engine.model.model import Model
from engine.model.model_config import ModelConfig
from engine.model.plan import Part
from engine.model.weights_reader import read_weights
from tests.reference import ReferenceModel
from tests.tiny_gguf import write_tiny_gguf

N_CTX = 2500
# What the type costs the logits, relative to their spread: a few times what was seen.
ROUNDING = {"f32": 2e-5, "f16": 2e-3, "q8_0": 4e-2}

MODELS: dict[str, dict[str, Any]] = {
    "one kv head": {"n_head_kv": 1},
    "three to a kv head": {"n_embd": 96, "n_head": 6, "n_head_kv": 2},
    "a kv head each": {"n_head_kv": 4},
    "heads of 80": {"head_dim": 80, "n_head_kv": 1},
    "windows": {
        "architecture": "gemma3",
        "head_norms": "head",
        "post_norms": True,
        "n_layer": 7,
        "window": 300,
    },
}


@contextmanager
def model_of(path: Path, kv_type: str, n_threads: int = 2) -> Iterator[Model]:
    with GGUFFile(path) as gguf:
        config = ModelConfig.from_gguf(gguf)
        weights = read_weights(gguf, config)
        model = Model(config, weights, 64, n_threads, kv_type=kv_type)
        try:
            yield model
        finally:
            model.close()


def chat_with(model: Model) -> Chat:
    return Chat(model, PagePool(model.page_bytes, n_pages(N_CTX) * sum(model.page_bytes)), N_CTX)


def ids(n: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(5).integers(0, 270, n)]


def score(chat: Chat, tokens: list[int], chunk: int) -> npt.NDArray[np.float32]:
    parts = [chat.score(tokens[i : i + chunk]).copy() for i in range(0, len(tokens), chunk)]
    return np.concatenate(parts)


def relative_rms(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std())


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_long_contexts_equal_the_reference(
    tmp_path: Path, options: dict[str, Any], kv_type: str
) -> None:
    """Read 64 at a time, which is not divided into parts, and then a few at a time, which is."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=T.F32, **options)
    tokens = ids(1000)
    expected = ReferenceModel.from_gguf(path).logits(tokens)
    with model_of(path, kv_type) as model:
        chat = chat_with(model)
        found = score(chat, tokens, chunk=64)
        assert relative_rms(found, expected) < ROUNDING[kv_type]
        for chunk in (1, 3, 8):
            chat.truncate_to(897)
            found = score(chat, tokens[897:], chunk)
            assert relative_rms(found, expected[897:]) < ROUNDING[kv_type]


@pytest.mark.parametrize("n_threads", [1, 3])
def test_more_pages_than_parts_twice_over(tmp_path: Path, n_threads: int) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=T.F32, n_head_kv=1, n_layer=1)
    n = MAX_PARTS * PART * PAGE + 3 * PAGE + 5
    tokens = ids(n)
    expected = ReferenceModel.from_gguf(path).logits(tokens)
    with model_of(path, "f32", n_threads) as model:
        chat = chat_with(model)
        score(chat, tokens[:-5], chunk=64)
        found = score(chat, tokens[-5:], chunk=1)
    assert relative_rms(found, expected[-5:]) < ROUNDING["f32"]


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_rows_of_several_chats_in_one_batch(tmp_path: Path, kv_type: str) -> None:
    """Of different lengths, so that some have no positions in most of the parts."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=T.F32, n_head=3, n_head_kv=1, n_embd=96)
    tokens = ids(900)
    rows = [(0, 899), (1, 0), (2, 70), (2, 71), (2, 72), (3, 400)]  # chat, position
    expected = ReferenceModel.from_gguf(path).logits(tokens)
    with model_of(path, kv_type) as model:
        chats = [chat_with(model) for _ in range(4)]
        for (chat, pos), next_row in zip(rows, [*rows[1:], (None, 0)], strict=True):
            if next_row[0] != chat:
                score(chats[chat], tokens[: pos + 1], chunk=64)
        parts = [Part([tokens[p]], p, chats[c]._table.ctypes.data, [0]) for c, p in rows]
        found = model.forward(parts, precise=True)
        assert relative_rms(found, expected[[pos for _, pos in rows]]) < ROUNDING[kv_type]


def test_a_run_that_was_cancelled_leaves_nothing_half_merged(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=T.F32, n_head_kv=1)
    with model_of(path, "f16") as model:
        chat = chat_with(model)
        score(chat, ids(600), chunk=64)
        expected = chat.next(7).copy()
        arrived = int(model.plan.records["arrived"].max())
        model.workspace.array(arrived, np.int64, (1,))[0] = 3  # as a stop in mid-op leaves it
        chat.truncate_to(600)
        np.testing.assert_array_equal(chat.next(7), expected)
