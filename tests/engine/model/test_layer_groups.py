"""Which layers share pages, which pages a window needs, and from where a chat can go on."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.files.gguf_file import GGUFFile
from engine.kernels.attention import ALL
from engine.kernels.kv_page import F16, PAGE, Q8_0, n_pages
from engine.model.layer_groups import LayerGroup, chat_bytes, group_layers, restart_at
from engine.model.model_config import ModelConfig
from tests.tiny_gguf import write_tiny_gguf

FULL = LayerGroup((0, 1), ALL, 8192)


def windowed(window: int) -> LayerGroup:
    return LayerGroup((2, 3), window, 4096)


def config_of(path: Path, **settings: object) -> ModelConfig:
    with GGUFFile(write_tiny_gguf(path / "m.gguf", **settings)) as gguf:  # type: ignore[arg-type]
        return ModelConfig.from_gguf(gguf)


def test_a_model_without_windows_has_one_group(tmp_path: Path) -> None:
    config = config_of(tmp_path, n_layer=3)
    [group] = group_layers(config, F16)
    assert (group.layers, group.has_window) == ((0, 1, 2), False)
    assert group.page_bytes == 3 * 2 * config.n_head_kv * config.head_dim * PAGE * 2


@pytest.mark.parametrize("kv_type", [F16, Q8_0])
def test_gemma_3_looks_back_on_everything_in_every_sixth_layer(
    tmp_path: Path, kv_type: int
) -> None:
    settings = {"head_norms": "head", "post_norms": True, "n_layer": 7, "window": 40}
    full, local = group_layers(config_of(tmp_path, architecture="gemma3", **settings), kv_type)
    assert (full.layers, full.has_window) == ((5,), False)
    assert (local.layers, local.window) == ((0, 1, 2, 3, 4, 6), 40)
    assert full.page_bytes % mmap.PAGESIZE == local.page_bytes % mmap.PAGESIZE == 0


def test_where_all_layers_have_a_window_there_is_one_group(tmp_path: Path) -> None:
    [group] = group_layers(config_of(tmp_path, architecture="llama", window=100), F16)
    assert (group.layers, group.window) == ((0, 1), 100)


def test_what_a_chat_needs_stops_growing_with_the_window() -> None:
    groups = (FULL, windowed(512))
    assert chat_bytes(groups, 64, 256) == 8192 + 4096
    # 32,768 tokens: 512 pages of the first group; of the second those of 512 and 256 tokens, and
    # one more as a window may begin anywhere in a page.
    assert chat_bytes(groups, 32768, 256) == 512 * 8192 + 13 * 4096
    assert chat_bytes((FULL,), 32768, 256) == 512 * 8192


@given(
    window=st.integers(1, 300),
    held=st.lists(st.booleans(), min_size=1, max_size=12),
    data=st.data(),
)
def test_it_goes_on_from_the_last_place_whose_window_is_there(
    window: int, held: list[bool], data: st.DataObject
) -> None:
    """Against a search token by token."""
    place = data.draw(st.integers(0, len(held) * PAGE))

    def can_go_on(n: int) -> bool:
        """Whether all that a token at place n looks at is there, and the page it is written to."""
        seen = {i // PAGE for i in range(max(n + 1 - window, 0), n)}
        written = {n // PAGE} if n % PAGE else set()
        return all(held[i] for i in seen | written)

    found = windowed(window).restart(held, place)
    assert can_go_on(found)
    if window > 1:  # else nothing of the past is needed, and the start of any page would do
        assert found == max(n for n in range(place + 1) if can_go_on(n))


def test_all_groups_must_be_able_to() -> None:
    groups = (FULL, windowed(70), windowed(200))
    one, other = [1, 1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 0, 1, 1]
    held = [bool(x) for pages in zip([1] * 7, one, other, strict=True) for x in pages]
    assert n_pages(430) == 7
    assert restart_at(groups, held, 430) == 3 * PAGE  # both hold the first three
    assert restart_at(groups[:2], [x for i, x in enumerate(held) if i % 3 < 2], 430) == 430
    assert restart_at((FULL,), [True] * 7, 430) == 430
