"""Chats on the disk: found by their tokens, bounded, and never fatal."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.cache import disk_cache
from engine.cache.chat_file import Views, file_bytes
from engine.cache.disk_cache import DiskCache
from engine.kernels.attention import ALL
from engine.model.layer_groups import Groups, LayerGroup

KEY, OTHER_KEY = bytes(32), bytes([1] * 32)
PAGE_BYTES = 4096
MANY = 1 << 30
ONE_GROUP = (LayerGroup((0,), ALL, PAGE_BYTES),)


def page(seed: int) -> memoryview:
    return memoryview(bytearray(np.random.default_rng(seed).bytes(PAGE_BYTES)))


def pages_for(ids: list[int]) -> list[memoryview]:
    """Contents that follow from the tokens before and in each page, as keys and values do."""
    return [page(abs(hash(tuple(ids[: i + 64])))) for i in range(0, len(ids), 64)]


def empty(n: int) -> list[memoryview]:
    return [memoryview(bytearray(PAGE_BYTES)) for _ in range(n)]


def chat(seed: int, n: int = 100) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 50_000, n)]


def cache_in(
    folder: Path, limit_bytes: int = MANY, key: bytes = KEY, groups: Groups = ONE_GROUP
) -> DiskCache:
    return DiskCache(folder, limit_bytes, key, groups)


def stored(folder: Path) -> list[Path]:
    """Least recently used first."""
    return sorted(folder.glob("*.chat"), key=lambda p: p.stat().st_mtime_ns)


def store(cache: DiskCache, ids: list[int], pages: Views | None = None) -> bool:
    """Returns whether it is on the disk then."""
    storing = cache.store(ids, pages_for(ids) if pages is None else pages)
    assert storing is None or storing.wait(10)
    match = cache.longest_prefix(ids)
    return match is not None and match.n_common == len(ids)


def used_s_ago(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_a_stored_chat_is_found_after_a_restart(tmp_path: Path) -> None:
    ids = chat(1, 200)
    assert store(cache_in(tmp_path / "new" / "folder"), ids)
    cache = cache_in(tmp_path / "new" / "folder")
    match = cache.longest_prefix([*ids[:150], 7, 8, 9])
    assert match
    assert match.n_common == 150
    pages = empty(3)
    assert cache.load(match, pages)
    assert pages == pages_for(ids)[:3]


def test_the_longest_beginning_wins(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    a = chat(1, 120)
    b = [*a[:80], *chat(2, 40)]
    c = chat(3, 300)
    for ids in (a, b, c):
        assert store(cache, ids)
    match = cache.longest_prefix([*a[:80], *b[80:90], 1, 2])
    assert match
    assert match.n_common == 90
    pages = empty(2)
    assert cache.load(match, pages)
    assert pages == pages_for(b)
    assert cache.longest_prefix([c[0] + 1, *c]) is None
    assert cache.longest_prefix([]) is None


def test_a_longer_chat_replaces_its_beginning(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    ids = chat(1, 300)
    for n in (100, 300):
        assert store(cache, ids[:n])
        assert len(stored(tmp_path)) == cache.n_chats == 1
    before = stored(tmp_path)
    assert store(cache, ids[:200], [])  # is there, within the longer one: nothing is written
    assert stored(tmp_path) == before


def test_a_chat_with_windows_goes_on_from_where_they_are(tmp_path: Path) -> None:
    """Its first group looks back on everything, its second on 70 tokens."""
    groups = (*ONE_GROUP, LayerGroup((1,), 70, PAGE_BYTES))
    cache = cache_in(tmp_path, groups=groups)
    ids = chat(1, 400)  # 7 pages
    full = pages_for(ids)
    there = {0, 1, 5, 6}  # of the second group: those of 128 tokens, and those of 400
    pages = [page for i, p in enumerate(full) for page in (p, p if i in there else None)]
    assert store(cache, ids, pages)
    for reader in (cache, cache_in(tmp_path, groups=groups)):
        for n_asked, n_common in ((400, 400), (395, 395), (389, 389), (388, 128), (100, 100)):
            match = reader.longest_prefix(ids[:n_asked])
            assert match
            assert match.n_common == n_common
    match = cache.longest_prefix(ids[:130])
    assert match
    assert match.held == (True, True, True, True)
    assert cache.load(match, empty(4))
    # A longer one without those windows does not replace it, and is not replaced by it.
    longer = [*ids, *chat(2, 200)]
    full = pages_for(longer)
    pages = [page for i, p in enumerate(full) for page in (p, p if i >= 7 else None)]
    assert store(cache, longer, pages)
    assert cache.n_chats == 2
    match = cache.longest_prefix([*ids, 7])
    assert match
    assert match.n_common == 400


def test_other_models_and_layouts_are_not_ours(tmp_path: Path) -> None:
    ids = chat(1)
    assert store(cache_in(tmp_path), ids)
    assert cache_in(tmp_path, key=OTHER_KEY).longest_prefix(ids) is None
    assert len(stored(tmp_path)) == 1


def test_the_least_recently_used_go_first_whoever_they_are(tmp_path: Path) -> None:
    limit = 3 * file_bytes(100, empty(2))
    other = cache_in(tmp_path, limit, OTHER_KEY)
    assert store(other, chat(0))
    used_s_ago(stored(tmp_path)[0], 400)
    cache = cache_in(tmp_path, limit)
    for seed in (1, 2):
        assert store(cache, chat(seed))
        used_s_ago(stored(tmp_path)[-1], 400 - 100 * seed)
    assert other.longest_prefix(chat(0))
    assert store(cache, chat(3))
    assert other.longest_prefix(chat(0)) is None
    match = cache.longest_prefix(chat(1))
    assert match
    assert cache.load(match, empty(2))  # used: so 2 goes next, not 1
    assert store(cache, chat(4))
    assert [bool(cache.longest_prefix(chat(seed))) for seed in (1, 2, 3, 4)] == [1, 0, 1, 1]
    assert sum(path.stat().st_size for path in stored(tmp_path)) <= limit


def test_a_smaller_limit_is_kept_from_the_start(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    for seed in range(4):
        store(cache, chat(seed))
    assert len(stored(tmp_path)) == 4
    cache_in(tmp_path, 2 * file_bytes(100, empty(2)))
    assert len(stored(tmp_path)) == 2


def test_a_chat_larger_than_the_limit_takes_nobodys_place(tmp_path: Path) -> None:
    cache = cache_in(tmp_path, file_bytes(100, empty(2)))
    assert store(cache, chat(1))
    assert not store(cache, chat(2, 500))
    assert cache.longest_prefix(chat(1))


def test_a_limit_of_0_is_off(tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "none", 0)
    assert not store(cache, chat(1))
    assert cache.longest_prefix(chat(1)) is None
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("place", [3, 70, -1], ids=["header", "ids", "page"])
def test_a_damaged_file_is_ignored_and_removed(tmp_path: Path, place: int) -> None:
    ids = chat(1)
    store(cache_in(tmp_path), ids)
    (path,) = stored(tmp_path)
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 0x40
    path.write_bytes(damaged)
    cache = cache_in(tmp_path)
    match = cache.longest_prefix(ids)
    assert match is None or not cache.load(match, empty(2))
    assert cache.longest_prefix(ids) is None
    assert stored(tmp_path) == []
    assert store(cache, ids)  # and may be stored anew


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    (tmp_path / "folder.chat").mkdir()
    (tmp_path / ".x.part").write_text("somebody writes this now")
    (tmp_path / ".y.part").write_text("and nobody this")
    used_s_ago(tmp_path / ".y.part", 3600)
    cache_in(tmp_path, 1)
    assert sorted(os.listdir(tmp_path)) == [".x.part", "folder.chat", "letter.txt"]


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    ours, theirs = cache_in(tmp_path), cache_in(tmp_path)
    ids = chat(1)
    assert store(theirs, ids)
    os.utime(tmp_path)  # as if some milliseconds had passed: the folder's clock is coarse
    match = ours.longest_prefix(ids)
    assert match
    theirs.remove(match.name)
    assert not ours.load(match, empty(2))
    assert ours.longest_prefix(ids) is None


def test_a_full_disk_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = cache_in(tmp_path)
    ids = chat(1, 200)
    assert store(cache, ids[:100])
    monkeypatch.setattr(disk_cache, "write_chat", full)
    assert not store(cache, ids)
    assert not store(cache, ids)
    assert caplog.text.count("could not be stored") == 1  # told once, not once a chat
    assert "a chat of 200 tokens could not be stored: [Errno 28] No space left" in caplog.text
    assert cache.longest_prefix(ids)  # the beginning is still there


def test_no_thread_more_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    cache = cache_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert cache.store(chat(1), pages_for(chat(1))) is None
    assert not stored(tmp_path)
    assert store(cache, chat(1))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_read(tmp_path: Path) -> None:
    ids = chat(1)
    store(cache_in(tmp_path), ids)
    tmp_path.chmod(0o500)
    try:
        cache = cache_in(tmp_path)
        match = cache.longest_prefix(ids)
        assert match
        assert cache.load(match, empty(2))
        assert not store(cache, chat(2))
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_is_gone_is_made_anew(tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "chats")
    assert store(cache, chat(1))
    shutil.rmtree(tmp_path / "chats")
    os.utime(tmp_path)
    assert cache.longest_prefix(chat(1)) is None
    assert store(cache, chat(2))


def test_what_is_given_up_does_not_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    crc32 = zlib.crc32

    def slow(*args: Any) -> int:
        assert go_on.wait(10)
        return crc32(*args)

    cache = cache_in(tmp_path)
    monkeypatch.setattr(zlib, "crc32", slow)
    storing = cache.store(chat(1), pages_for(chat(1)))
    assert storing
    storing.cancel()
    go_on.set()
    assert storing.wait(10)
    assert os.listdir(tmp_path) == []
    assert cache.longest_prefix(chat(1)) is None
    assert not caplog.text


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = cache_in(tmp_path / "file" / "folder")
    assert cache.longest_prefix(chat(1)) is None
    assert not store(cache, chat(1))
