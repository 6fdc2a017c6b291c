"""Arrays of strings, read where they lie in the file."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from engine.files.gguf_file import GGUFFile
from engine.files.string_array import StringArray
from tests.raw_gguf import (
    ARRAY,
    STRING,
    entry,
    open_raw,
    raw_gguf,
    text,
    u32,
    u64,
)
from tests.stopwatch import Stopwatch


def strings(path: Path, values: list[bytes]) -> StringArray:
    value = u32(STRING) + u64(len(values)) + b"".join(map(text, values))
    return open_raw(path, [entry("s", ARRAY, value)]).get_strings("s")


def test_a_string_array_is_a_sequence(path: Path) -> None:
    array = strings(path, [b"zero", b"one", b"", b"three"])
    assert len(array) == 4
    assert [array[0], array[3], array[-1], array[-4]] == ["zero", "three", "three", "zero"]
    assert array[1:3] == ["one", ""]
    assert list(array) == array.to_list() == ["zero", "one", "", "three"]
    assert "one" in array
    assert array.index("three") == 3
    for index in (4, -5):
        with pytest.raises(IndexError):
            array[index]
    assert repr(array) == "StringArray(4 strings)"


def test_an_empty_string_array(path: Path) -> None:
    array = strings(path, [])
    assert len(array) == 0
    assert array.to_list() == []


def test_bytes_that_are_not_utf8_come_back_whole(path: Path) -> None:
    broken = [b"\xff\xfe", b"ok", b"caf\xc3", b"\xed\xa0\x80", b"\x00"]
    array = strings(path, broken)
    assert [s.encode("utf-8", "surrogateescape") for s in array] == broken
    assert [array[i].encode("utf-8", "surrogateescape") for i in range(5)] == broken
    assert [array.bytes_at(i) for i in range(5)] == broken
    gguf = open_raw(path, [entry("s", STRING, text(b"\xff"))])
    assert gguf.get_str("s").encode("utf-8", "surrogateescape") == b"\xff"


def test_a_large_vocabulary_opens_fast_and_small(path: Path) -> None:
    tokens = [b"token%d" % i for i in range(128_000)]
    merges = [b"%d %d" % (i, i + 1) for i in range(280_000)]
    metadata = [
        entry(key, ARRAY, u32(STRING) + u64(len(values)) + b"".join(map(text, values)))
        for key, values in (("tokens", tokens), ("merges", merges))
    ]
    path.write_bytes(raw_gguf(metadata))
    times = []
    for _ in range(3):
        with Stopwatch() as watch:
            gguf = GGUFFile(path)
        times.append(watch.loops)
        assert gguf.get_strings("tokens")[127_999] == "token127999"
        assert gguf.get_strings("merges")[-1] == "279999 280000"
        gguf.close()
    assert min(times) < 9
    tracemalloc.start()
    try:
        GGUFFile(path).close()
        assert tracemalloc.get_traced_memory()[1] < 10e6  # peak; 3.3 MB of it are the offsets
    finally:
        tracemalloc.stop()
