"""A chat's file comes back as it was written, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.cache.chat_file import BadChatFile, file_bytes, read_header, read_pages, write_chat

KEY = bytes(range(32))
PAGE_BYTES = 512


def pages_of(n: int, seed: int = 0) -> list[memoryview]:
    random = np.random.default_rng(seed)
    return [memoryview(bytearray(random.bytes(PAGE_BYTES))) for _ in range(n)]


def empty(n: int) -> list[memoryview]:
    return [memoryview(bytearray(PAGE_BYTES)) for _ in range(n)]


@pytest.mark.parametrize(("n_tokens", "n_pages"), [(1, 1), (63, 1), (64, 1), (65, 2), (1000, 16)])
def test_what_was_written_is_read(tmp_path: Path, n_tokens: int, n_pages: int) -> None:
    path, ids, written = tmp_path / "a.chat", list(range(n_tokens)), pages_of(n_pages)
    write_chat(path, KEY, ids, written)
    header = read_header(path)
    assert header.ids.tolist() == ids
    assert (header.key, header.sizes.tolist()) == (KEY, [PAGE_BYTES] * n_pages)
    assert header.n_bytes == path.stat().st_size == file_bytes(n_tokens, written)
    read = empty(n_pages)
    read_pages(path, header, read)
    assert read == written
    assert os.listdir(tmp_path) == ["a.chat"]
    assert path.stat().st_mode & 0o077 == 0  # a chat is private


def test_the_first_pages_alone_can_be_read(tmp_path: Path) -> None:
    path, written = tmp_path / "a.chat", pages_of(4)
    write_chat(path, KEY, list(range(200)), written)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1  # in the last page
    path.write_bytes(damaged)
    read = empty(3)
    read_pages(path, read_header(path), read)
    assert read == written[:3]
    with pytest.raises(BadChatFile, match="page 3 is damaged"):
        read_pages(path, read_header(path), empty(4))


def test_pages_of_several_sizes_and_some_that_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.chat"
    big = memoryview(bytearray(b"big" * PAGE_BYTES))
    write_chat(path, KEY, list(range(150)), [big, None, big, *pages_of(1), None])
    header = read_header(path)
    assert header.sizes.tolist() == [3 * PAGE_BYTES, 0, 3 * PAGE_BYTES, PAGE_BYTES, 0]
    found = memoryview(bytearray(3 * PAGE_BYTES))
    read_pages(path, header, [None, None, found])  # the first one is not wanted
    assert found == big
    [small] = empty(1)
    read_pages(path, header, [None, None, None, small, None])
    assert [small] == pages_of(1)
    with pytest.raises(ValueError, match="a page of 512 bytes, not 0"):
        read_pages(path, header, [None, small])


def test_another_chat_of_the_same_name_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.chat"
    write_chat(path, KEY, [1, 2, 3], pages_of(1))
    header = read_header(path)
    write_chat(path, KEY, [1, 2, 4], pages_of(1))
    with pytest.raises(BadChatFile, match="another chat"):
        read_pages(path, header, empty(1))


def test_the_same_chat_with_other_pages_is_noticed(tmp_path: Path) -> None:
    """As another process may store it, of a model with windows."""
    path, page = tmp_path / "x.chat", memoryview(bytes(4096))
    write_chat(path, bytes(32), [1, 2, 3], [page, page])
    header = read_header(path)
    write_chat(path, bytes(32), [1, 2, 3], [None, page])
    with pytest.raises(BadChatFile, match="another chat"):
        read_pages(path, header, [memoryview(bytearray(4096))], 0)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.chat"
    write_chat(path, KEY, [1], pages_of(1))
    before = path.read_bytes()
    closed = pages_of(2)
    closed[1].release()
    with pytest.raises(ValueError, match="released"):
        write_chat(path, KEY, list(range(100)), closed)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.chat"]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_yields_wrong_tokens(tmp_path: Path, data: st.DataObject) -> None:
    path, ids, written = tmp_path / "a.chat", list(range(7, 77)), pages_of(2)
    write_chat(path, KEY, ids, written)
    found = bytearray(path.read_bytes())
    header_end = 64 + 4 * (len(ids) + 4)
    places = st.one_of(st.integers(0, header_end), st.integers(0, len(found) - 1))
    for place in data.draw(st.lists(places, min_size=1, max_size=8)):
        found[place] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        del found[data.draw(st.integers(0, len(found))) :]
    if data.draw(st.booleans()):
        found += data.draw(st.binary(max_size=100))
    path.write_bytes(found)
    read = empty(2)
    try:
        header = read_header(path)
        assert header.ids.tolist() == ids
        assert header.key == KEY
        read_pages(path, header, read)
    except BadChatFile:
        return
    assert read == written
