"""GGUF headers by the `gguf` package, and damaged ones made byte by byte."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from engine.errors import GGUFError, UnsupportedModel
from engine.files.gguf_file import GGUFFile
from tests.raw_gguf import (
    ARRAY,
    BOOL,
    I32,
    STRING,
    U32,
    U64,
    entry,
    open_raw,
    raw_gguf,
    tensor,
    text,
    u32,
    u64,
)
from tests.stopwatch import Stopwatch
from tests.tiny_gguf import write_tiny_gguf


def test_every_kind_of_value(path: Path) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.1)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "naïve 🦙")
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.5])
    writer.add_array("bools", [True, False, True])
    writer.add_array("strings", ["a", "", "né", "🦙"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with GGUFFile(path) as gguf:
        found = dict(gguf.metadata)
        assert found.pop("general.architecture") == "llama"
        assert list(found.pop("ints")) == [1, -2, 3]
        floats = found.pop("floats")
        assert floats.dtype == np.float32
        assert list(floats) == [0.5, -1.5]
        bools = found.pop("bools")
        assert bools.dtype == np.bool_
        assert list(bools) == [True, False, True]
        assert found.pop("strings").to_list() == ["a", "", "né", "🦙"]
        assert found == {
            "u8": 255,
            "i8": -128,
            "u16": 65535,
            "i16": -32768,
            "u32": 2**32 - 1,
            "i32": -(2**31),
            "u64": 2**64 - 1,
            "i64": -(2**63),
            "f32": float(np.float32(0.1)),
            "f64": 0.1,
            "yes": True,
            "no": False,
            "text": "naïve 🦙",
        }


def test_every_truncation_is_noticed(path: Path) -> None:
    whole = raw_gguf(
        [
            entry("general.alignment", U32, u32(16)),
            entry("text", STRING, text("hello")),
            entry("numbers", ARRAY, u32(I32) + u64(3) + bytes(12)),
            entry("strings", ARRAY, u32(STRING) + u64(2) + text("ab") + text("c")),
        ],
        [tensor("a", [4]), tensor("b", [4, 2], offset=16)],
        bytes(16 + 32),
        alignment=16,
    )
    path.write_bytes(whole)
    GGUFFile(path).close()
    for n_bytes in range(len(whole)):
        path.write_bytes(whole[:n_bytes])
        with pytest.raises(GGUFError) as error:
            GGUFFile(path)
        assert str(error.value).startswith(f"{path}: ")


def test_any_damaged_byte_is_refused_or_harmless(path: Path) -> None:
    write_tiny_gguf(path, n_layer=1)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    with GGUFFile(path) as gguf:
        n_header = min(info.offset for info in gguf.tensors.values())
    for _ in range(2000):
        damaged = bytearray(whole)
        damaged[rng.integers(n_header)] = rng.choice([0, 1, 2, 4, 8, 9, 127, 128, 254, 255])
        path.write_bytes(damaged[: n_header + 4096] if rng.integers(8) == 0 else damaged)
        try:
            gguf = GGUFFile(path)
        except (GGUFError, UnsupportedModel) as error:
            assert str(path) in str(error)
            continue
        for info in gguf.tensors.values():
            assert n_header - 64 <= info.offset
            assert info.offset + info.n_bytes <= gguf.n_bytes
        gguf.close()


SMALL = [entry("a", U32, u32(1))]
DATA = bytes(256)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"GGU", "not a GGUF file: it starts with b'GGU'"),
        (b"<!DOCTYPE html>", "not a GGUF file: it starts with b'<!DO'"),
        (b"GGUF", "version: the file ends here"),
        (raw_gguf(version=1), "GGUF version 1 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack(">IQQ", 2, 0, 0), "big-endian"),
        (raw_gguf(version=4), "unknown GGUF version 4"),
        (raw_gguf(version=0), "unknown GGUF version 0"),
        (raw_gguf(SMALL, n_metadata=2**64 - 1), "metadata count is 18446744073709551615"),
        (raw_gguf(SMALL, n_metadata=60000), "metadata count is 60000, more than the file has room"),
        (raw_gguf(SMALL, n_tensors=2**63), "tensor count is 9223372036854775808"),
        (raw_gguf(SMALL, n_tensors=100_000), "tensor count is 100000, more than the file has room"),
        (raw_gguf([*SMALL, *SMALL]), "metadata key 'a' stands there twice"),
        (raw_gguf([entry("", U32, u32(1))]), "key of metadata entry 0: 0 bytes long"),
        (raw_gguf([entry(b"\xff", U32, u32(1))]), "key of metadata entry 0: b'\\xff' is not UTF-8"),
        (raw_gguf([entry("k" * 65536, U32, u32(1))]), "key of metadata entry 0: 65536 bytes long"),
        (raw_gguf([u64(2**64 - 1) + DATA]), "key of metadata entry 0: 18446744073709551615 bytes"),
        (raw_gguf([entry("a", 13, u32(1))]), "metadata 'a': unknown value type 13"),
        (raw_gguf([entry("a", BOOL, b"\x02")]), "metadata 'a': a boolean is 0 or 1, not 2"),
        (
            raw_gguf([entry("a", STRING, u64(2**64 - 8))]),
            "metadata 'a': 18446744073709551608 bytes",
        ),
        (raw_gguf([entry("a", ARRAY, u32(13) + u64(0))]), "metadata 'a': unknown element type 13"),
        (raw_gguf([entry("a", ARRAY, u32(ARRAY) + u64(1))]), "metadata 'a': an array of arrays"),
        (
            raw_gguf([entry("a", ARRAY, u32(U64) + u64(2**61))]),
            "length of metadata 'a' is 23058430",
        ),
        (
            raw_gguf([entry("a", ARRAY, u32(U32) + u64(9999))]),
            "length of metadata 'a' is 9999, more",
        ),
        (raw_gguf([entry("a", ARRAY, u32(BOOL) + u64(2) + b"\x01\x07")]), "0 or 1, not 7"),
        (raw_gguf([entry("a", ARRAY, u32(STRING) + u64(2**40))]), "length of metadata 'a' is 1099"),
        (
            raw_gguf([entry("a", ARRAY, u32(STRING) + u64(3) + text("x") + u64(2**64 - 9) + DATA)]),
            "metadata 'a': string 1 of 3 reaches past the end",
        ),
        (
            raw_gguf([entry("a", ARRAY, u32(STRING) + u64(2) + text("x") + u64(999) + DATA)]),
            "metadata 'a': string 1 of 2 reaches past the end",
        ),
        (raw_gguf([], [tensor("t", [])], DATA), "tensor 't': 0 dimensions"),
        (raw_gguf([], [tensor("t", [1] * 5)], DATA), "tensor 't': 5 dimensions"),
        (
            raw_gguf([], [tensor("t", [4, 0])], DATA),
            "tensor 't': shape [4, 0] has a dimension of 0",
        ),
        (raw_gguf([], [tensor("t", [2**63, 2])], DATA), "tensor 't' ends at byte"),
        (raw_gguf([], [tensor("t", [2**42 + 1])], DATA), "tensor 't' ends at byte"),
        (raw_gguf([], [tensor("t", [2**32] * 4)], DATA), "tensor 't' ends at byte"),
        (raw_gguf([], [tensor("t", [65])], DATA), "tensor 't' ends at byte"),
        (raw_gguf([], [tensor("t", [4], offset=256)], DATA), "tensor 't' ends at byte"),
        (raw_gguf([], [tensor("t", [4], offset=2**64 - 32)], DATA), "tensor 't' ends at byte"),
        (raw_gguf([], [tensor("t", [4], offset=16)], DATA), "offset 16 is not aligned to 32"),
        (raw_gguf([], [tensor("t", [40], type_id=8)], DATA), "rows of 40 weights do not divide"),
        (raw_gguf([], [tensor("t", [4])] * 2, DATA), "tensor 't' stands there twice"),
        (raw_gguf([], [tensor("", [4])], DATA), "name of tensor 0: 0 bytes long"),
        (raw_gguf([entry("general.alignment", U32, u32(0))]), "general.alignment is 0"),
        (raw_gguf([entry("general.alignment", U32, u32(4))]), "general.alignment is 4"),
        (raw_gguf([entry("general.alignment", U32, u32(24))]), "general.alignment is 24"),
        (
            raw_gguf([entry("general.alignment", U32, u32(2**31))]),
            "general.alignment is 2147483648",
        ),
        (raw_gguf([entry("general.alignment", BOOL, b"\1")]), "general.alignment is True"),
        (raw_gguf([entry("general.alignment", STRING, text("32"))]), "general.alignment is '32'"),
        (raw_gguf([entry("split.count", STRING, text("2"))]), "'split.count' should be an integer"),
    ],
)
def test_what_is_wrong_is_named(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with Stopwatch() as watch, pytest.raises(GGUFError) as error:
            GGUFFile(path)
        assert tracemalloc.get_traced_memory()[1] < 2e6
    finally:
        tracemalloc.stop()
    assert watch.loops < 30
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert error.value.path == path


def test_an_unknown_tensor_type_is_named_with_its_tensor(path: Path) -> None:
    with pytest.raises(UnsupportedModel) as error:
        open_raw(path, [], [tensor("blk.0.attn_q.weight", [32], type_id=99)], DATA)
    assert str(error.value) == (
        f"unsupported tensor type '99'; tensor 'blk.0.attn_q.weight' in {path} has it"
    )
