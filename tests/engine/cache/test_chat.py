"""Logits do not depend on how a chat came to be: alone or in a batch, by sharing pages, after an
edit, or from pages that were elsewhere meanwhile. On tiny random models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from engine.cache.chat import Chat, next_of
from engine.cache.common_prefix import count_common
from engine.cache.kv_cache import PagePool
from engine.files.gguf_file import GGUFFile
from engine.kernels.kv_page import n_pages
from engine.model.model import Model
from engine.model.model_config import ModelConfig
from engine.model.weights_reader import read_weights
from tests.tiny_gguf import write_tiny_gguf

N_CTX = 256
MODELS: dict[str, dict[str, Any]] = {
    "f32": {"type": T.F32},
    "q4_0": {"type": T.Q4_0},
    "q4_k": {"type": T.Q4_K, "n_embd": 256, "n_ff": 256},
    "window": {
        "architecture": "gemma3",
        "head_norms": "head",
        "post_norms": True,
        "n_layer": 7,
        "window": 40,
        "type": T.F32,
    },
}
NewChat = Callable[[], Chat]


@contextmanager
def chats_of(path: Path) -> Iterator[NewChat]:
    with GGUFFile(path) as gguf:
        config = ModelConfig.from_gguf(gguf)
        model = Model(config, read_weights(gguf, config), max_rows=64, n_threads=2)
        pool = PagePool(model.page_bytes, 8 * n_pages(N_CTX) * sum(model.page_bytes))
        try:
            yield lambda: Chat(model, pool, N_CTX)
        finally:
            model.close()


@pytest.fixture(params=MODELS)
def new_chat(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewChat]:
    with chats_of(write_tiny_gguf(tmp_path / "tiny.gguf", **MODELS[request.param])) as new:
        yield new


def text(n: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 270, n)]


def read(chat: Chat, tokens: list[int]) -> np.ndarray:
    """Logits after the last token."""
    for i in range(0, len(tokens) - 1, chat.max_rows):
        chat.prefill(tokens[:-1][i : i + chat.max_rows], want_logits=False)
    return chat.next(tokens[-1]).copy()


def close_to(found: np.ndarray, expected: np.ndarray) -> bool:
    """Within the noise that rounding to 8 bits in another order makes."""
    return bool(np.sqrt(np.mean((found - expected) ** 2)) < 2e-2 * expected.std())


@pytest.mark.parametrize("n_chats", [2, 3, 4, 7])
def test_a_token_in_a_batch_equals_one_alone(new_chat: NewChat, n_chats: int) -> None:
    """Chats of different lengths, over one and several pages."""
    texts = [text(10 + 35 * i, i) for i in range(n_chats)]
    alone = [read(new_chat(), tokens) for tokens in texts]
    chats = [new_chat() for _ in texts]
    for chat, tokens in zip(chats, texts, strict=True):
        read(chat, tokens[:-1])
    together = next_of(chats, [tokens[-1] for tokens in texts])
    assert [chat.ids for chat in chats] == texts
    for found, expected in zip(together, alone, strict=True):
        assert close_to(found, expected)
        assert found.argmax() == expected.argmax()


@pytest.mark.parametrize("n", [1, 63, 64, 65, 100, 127, 128])
def test_a_shared_beginning_equals_one_of_its_own(new_chat: NewChat, n: int) -> None:
    first, second = text(130), [*text(130)[:n], *text(90, 5)]
    old = new_chat()
    read(old, first)
    fork = old.fork(n)
    assert close_to(read(fork, second[n:]), read(new_chat(), second))
    # Neither has written over the other.
    assert close_to(read(old, [7, 8]), read(new_chat(), [*first, 7, 8]))
    assert close_to(read(fork, [9]), read(new_chat(), [*second, 9]))


def test_an_edit_keeps_what_is_before_it(new_chat: NewChat) -> None:
    before, edited = text(150), [*text(150)[:90], *text(40, 1)]
    chat = new_chat()
    read(chat, before)
    chat.truncate_to(count_common(before, edited))
    assert chat.ids == before[:90]
    assert close_to(read(chat, edited[90:]), read(new_chat(), edited))


def test_pages_that_were_elsewhere(new_chat: NewChat) -> None:
    tokens = text(150)
    chat = new_chat()
    read(chat, tokens)
    pool = chat._pool
    chat_pages = list(chat.pages)
    contents = [bytes(pool.view(page)) for page in chat_pages]
    chat.restart()
    read(new_chat(), text(200, 9))  # somebody else uses those pages
    pages = [pool.take(page % len(pool.page_bytes)) for page in chat_pages]
    for page, content in zip(pages, contents, strict=True):
        pool.view(page)[:] = content
    chat.adopt(tokens, pages)
    assert close_to(read(chat, [5]), read(new_chat(), [*tokens, 5]))
