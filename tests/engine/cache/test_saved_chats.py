"""Chats saved by name: they come back, names stay inside the folder, other files stay untouched."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import InvalidRequest
from engine.cache.saved_chats import SavedChats
from engine.kernels.attention import ALL
from engine.model.layer_groups import LayerGroup

KEY, OTHER_KEY = bytes(32), bytes([1] * 32)
PAGE_BYTES = 4096
IDS = list(range(100))
PAGES = [memoryview(bytearray([7]) * PAGE_BYTES), memoryview(bytearray([9]) * PAGE_BYTES)]


def saved_in(folder: Path, key: bytes = KEY) -> SavedChats:
    return SavedChats(folder, key, (LayerGroup((0,), ALL, PAGE_BYTES),))


def empty() -> list[memoryview]:
    return [memoryview(bytearray(PAGE_BYTES)) for _ in range(2)]


def test_a_saved_chat_comes_back(tmp_path: Path) -> None:
    saved = saved_in(tmp_path / "new" / "folder")
    assert saved.all() == []
    told = saved.save("my chat-1.bin", IDS, PAGES)
    assert (told.name, told.n_tokens, told.fits) == ("my chat-1.bin", 100, True)
    assert saved.all() == [told]
    found, header = saved_in(tmp_path / "new" / "folder").open("my chat-1.bin")
    assert found == told
    assert header.ids.tolist() == IDS
    pages = empty()
    saved.read("my chat-1.bin", header, pages)
    assert pages == PAGES
    assert saved.save("my chat-1.bin", IDS[:70], PAGES).n_tokens == 70
    assert saved.erase("my chat-1.bin").n_tokens == 70
    assert saved.all() == []


BAD_NAMES = [
    "",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    ".hidden",
    "-x",
    " x",
    "a\0",
    "a\n",
]


@pytest.mark.parametrize("name", [*BAD_NAMES, "ä", "x" * 128])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    saved = saved_in(tmp_path / "folder")
    for act in (lambda: saved.save(name, IDS, PAGES), lambda: saved.open(name)):
        with pytest.raises(InvalidRequest, match="no name for a saved chat") as raised:
            act()
        assert raised.value.param == "filename"
    with pytest.raises(InvalidRequest, match="no name for a saved chat"):
        saved.erase(name)
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_chats_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(1000))
    (tmp_path / "folder").mkdir()
    saved = saved_in(tmp_path)
    for name in ("model.gguf", "folder"):
        with pytest.raises(InvalidRequest, match="is no saved chat"):
            saved.save(name, IDS, PAGES)
        with pytest.raises(InvalidRequest, match="is no saved chat"):
            saved.erase(name)
        with pytest.raises(InvalidRequest, match="is no saved chat"):
            saved.open(name)
    assert (tmp_path / "model.gguf").read_bytes() == b"GGUF" + bytes(1000)
    assert saved.all() == []
    with pytest.raises(InvalidRequest, match="there is no saved chat 'other'"):
        saved.open("other")


def test_another_models_chat_is_listed_and_not_restored(tmp_path: Path) -> None:
    saved_in(tmp_path, OTHER_KEY).save("a", IDS, PAGES)
    (found,) = saved_in(tmp_path).all()
    assert not found.fits
    with pytest.raises(InvalidRequest, match="another model"):
        saved_in(tmp_path).open("a")


def test_a_damaged_chat_is_told(tmp_path: Path) -> None:
    saved = saved_in(tmp_path)
    saved.save("a", IDS, PAGES)
    damaged = bytearray((tmp_path / "a").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "a").write_bytes(damaged)
    _, header = saved.open("a")
    with pytest.raises(InvalidRequest, match="'a' is damaged: page 1"):
        saved.read("a", header, empty())
