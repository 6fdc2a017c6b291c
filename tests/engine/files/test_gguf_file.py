"""GGUFFile against files by the `gguf` package, and against damaged ones made byte by byte."""

from __future__ import annotations

import ctypes
import os
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader, GGUFWriter

from engine.errors import GGUFError, UnsupportedModel
from engine.files import gguf_part
from engine.files.gguf_file import GGUFFile
from engine.files.string_array import StringArray
from tests.tiny_gguf import TinyModel, write_tiny_gguf

VOCAB = Path(__file__).resolve().parents[3].parent / "shared/vocab/ggml-vocab-llama-bpe.gguf"

U32, I32, FLOAT32, BOOL, STRING, ARRAY, U64 = (
    4,
    5,
    6,
    7,
    8,
    9,
    10,
)  # value types of the specification


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def entry(key: str | bytes, type_id: int, value: bytes) -> bytes:
    return text(key) + u32(type_id) + value


def tensor(name: str, dims: list[int], type_id: int = 0, offset: int = 0) -> bytes:
    shape = b"".join(u64(dim) for dim in dims)
    return text(name) + u32(len(dims)) + shape + u32(type_id) + u64(offset)


def raw_gguf(
    metadata: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"",
    alignment: int = 32,
    version: int = 3,
    n_metadata: int | None = None,
    n_tensors: int | None = None,
) -> bytes:
    """A file made of the given pieces; the counts may lie."""
    metadata, tensors = metadata or [], tensors or []
    header = b"GGUF" + u32(version)
    header += u64(len(tensors) if n_tensors is None else n_tensors)
    header += u64(len(metadata) if n_metadata is None else n_metadata)
    header += b"".join(metadata) + b"".join(tensors)
    return header + bytes(-len(header) % alignment) + data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def open_raw(path: Path, *args: Any, **options: Any) -> GGUFFile:
    path.write_bytes(raw_gguf(*args, **options))
    return GGUFFile(path)


# -- sound files ---------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "model",
    [
        TinyModel(type=T.Q8_0, types={"token_embd": T.F16, "ffn_up": T.BF16}, alignment=64),
        TinyModel(type=T.Q4_K, types={"attn_v": T.Q6_K}, n_embd=256, n_ff=256, rope_freqs=True),
        TinyModel(type=T.Q4_0, types={"attn_k": T.Q4_1}, tied=False),
    ],
)
def test_tensors_are_those_that_the_gguf_package_finds(path: Path, model: TinyModel) -> None:
    write_tiny_gguf(path, model)
    reader = GGUFReader(path)
    with GGUFFile(path) as gguf:
        assert list(gguf.tensors) == [expected.name for expected in reader.tensors]
        for expected in reader.tensors:
            info = gguf.tensors[expected.name]
            assert info.ggml_type == expected.tensor_type
            assert info.type_name == expected.tensor_type.name
            assert info.shape == tuple(expected.shape)
            assert (info.n_in, info.n_rows * info.n_in) == (expected.shape[0], expected.n_elements)
            assert info.n_weights == expected.n_elements
            assert info.n_bytes == expected.n_bytes
            assert info.offset == expected.data_offset
            raw = expected.data.tobytes()
            assert gguf.bytes_of(expected.name).tobytes() == raw
            assert gguf.address(expected.name) % gguf.alignment == 0
            assert ctypes.string_at(gguf.address(expected.name), info.n_bytes) == raw


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [None, 8, 16, 64])
def test_each_tensor_is_its_own_at_any_alignment(
    path: Path, alignment: int | None, version: int
) -> None:
    step = alignment or 32
    values = {name: np.arange(4, dtype=np.float32) + i for i, name in enumerate("abc")}
    data = b"".join(v.tobytes() + bytes(-v.nbytes % step) for v in values.values())
    offsets = {name: i * max(16, step) for i, name in enumerate("abc")}
    for padding in range(32):
        metadata = [entry("pad", STRING, text("x" * padding))]
        if alignment:
            metadata.append(entry("general.alignment", U32, u32(alignment)))
        tensors = [tensor(name, [4], offset=offset) for name, offset in offsets.items()]
        with open_raw(path, metadata, tensors, data, step, version) as gguf:
            assert gguf.version == version
            assert gguf.alignment == step
            for name, expected in values.items():
                np.testing.assert_array_equal(gguf.bytes_of(name).view(np.float32), expected)


def test_a_file_without_tensors_may_end_behind_its_metadata(path: Path) -> None:
    path.write_bytes(raw_gguf([entry("a", U32, u32(7))], alignment=1))
    with GGUFFile(path) as gguf:
        assert gguf.metadata == {"a": 7}
        assert gguf.tensors == {}


@pytest.mark.skipif(not VOCAB.exists(), reason="the shared vocabularies are not here")
def test_a_real_vocabulary() -> None:
    with GGUFFile(VOCAB) as gguf:
        tokens = gguf.get_strings("tokenizer.ggml.tokens")
        assert len(tokens) == 128256
        assert len(gguf.get_strings("tokenizer.ggml.merges")) == 280147
        # Ids of '333', '3', '\n\n' and ' Hello' as the model's own tokenizer gives them.
        assert [tokens[i] for i in (8765, 18, 271, 22691)] == ["333", "3", "ĊĊ", "ĠHello"]
        assert tokens.to_list() == [tokens[i] for i in range(len(tokens))]


# -- strings -------------------------------------------------------------------------------------


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
        start = time.process_time()
        gguf = GGUFFile(path)
        times.append(time.process_time() - start)
        assert gguf.get_strings("tokens")[127_999] == "token127999"
        assert gguf.get_strings("merges")[-1] == "279999 280000"
        gguf.close()
    assert min(times) < 0.3
    tracemalloc.start()
    try:
        GGUFFile(path).close()
        assert tracemalloc.get_traced_memory()[1] < 10e6  # peak; 3.3 MB of it are the offsets
    finally:
        tracemalloc.stop()


# -- damaged and foreign files -------------------------------------------------------------------


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
    start = time.process_time()
    try:
        with pytest.raises(GGUFError) as error:
            GGUFFile(path)
        assert tracemalloc.get_traced_memory()[1] < 2e6
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 1
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert error.value.path == path


def test_an_unknown_tensor_type_is_named_with_its_tensor(path: Path) -> None:
    with pytest.raises(UnsupportedModel) as error:
        open_raw(path, [], [tensor("blk.0.attn_q.weight", [32], type_id=99)], DATA)
    assert str(error.value) == (
        f"unsupported tensor type '99 of tensor 'blk.0.attn_q.weight' in {path}'"
    )


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="cannot be opened: No such file"):
        GGUFFile(tmp_path / "none.gguf")
    with pytest.raises(GGUFError, match="not a file"):
        GGUFFile(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GGUFError, match="not a file"):
        GGUFFile(tmp_path / "pipe")


# -- life of the mapping -------------------------------------------------------------------------


def test_replacing_the_file_by_rename_changes_nothing(path: Path) -> None:
    gguf = open_raw(path, [], [tensor("t", [4])], b"old weights 1234" + DATA)
    other = path.with_name("other")
    other.write_bytes(raw_gguf([], [tensor("t", [4])], b"new weights 5678" + DATA))
    other.replace(path)
    assert gguf.bytes_of("t").tobytes() == b"old weights 1234"


def test_views_are_read_only_and_outlive_close(path: Path) -> None:
    with open_raw(path, [], [tensor("t", [4])], b"0123456789abcdef") as gguf:
        view = gguf.bytes_of("t")
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
    gguf.close()
    assert view.tobytes() == b"0123456789abcdef"
    with pytest.raises(ValueError, match="is closed"):
        gguf.address("t")
    gguf.prefetch()


def test_close_unmaps_the_file(path: Path) -> None:
    gguf = open_raw(path, [], [tensor("t", [4])], DATA)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(path) in maps.read_text()
    gguf.close()
    gguf.close()
    if maps.exists():
        assert str(path) not in maps.read_text()


def test_a_refused_file_is_not_left_mapped(path: Path) -> None:
    with pytest.raises(GGUFError) as error:
        open_raw(path, [], [tensor("t", [4], offset=1 << 40)], DATA)
    del error
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(path) not in maps.read_text()


def test_prefetch_asks_for_every_byte_in_small_pieces(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    ask = gguf_part._libc_madvise()

    def madvise(address: int, n_bytes: int, advice: int) -> int:
        asked.append((address, n_bytes))
        assert ask is None or ask(address, n_bytes, advice) == 0
        return 0

    monkeypatch.setattr(gguf_part, "_libc_madvise", lambda: madvise)
    with open_raw(path, [], [tensor("t", [4])], bytes(600_000)) as gguf:
        start = gguf.address("t") - gguf.tensor("t").offset
        gguf.prefetch()
        at = start
        for address, n_bytes in asked:
            assert address == at and n_bytes <= gguf_part.PREFETCH_BYTES
            at += n_bytes
        assert at == start + gguf.n_bytes


def test_prefetch_does_nothing_where_there_is_no_madvise(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoLibrary:
        def __init__(self, name: object) -> None:
            pass

    for cdll in (NoLibrary, open):  # without the function; open(None) raises a TypeError, as
        monkeypatch.setattr(gguf_part.ctypes, "CDLL", cdll)  # CDLL(None) does on Windows
        with open_raw(path, [], [tensor("t", [4])], DATA) as gguf:
            gguf.prefetch()


def test_a_missing_tensor_is_named(path: Path) -> None:
    gguf = open_raw(path)
    with pytest.raises(GGUFError, match=r"tensor 'output\.weight' is missing"):
        gguf.address("output.weight")


# -- getters -------------------------------------------------------------------------------------


@pytest.fixture
def typed(path: Path) -> GGUFFile:
    return open_raw(
        path,
        [
            entry("int", U32, u32(7)),
            entry("float", FLOAT32, struct.pack("<f", 1.5)),
            entry("nan", FLOAT32, struct.pack("<f", float("nan"))),
            entry("bool", BOOL, b"\1"),
            entry("str", STRING, text("hi")),
            entry("strs", ARRAY, u32(STRING) + u64(1) + text("hi")),
            entry("ints", ARRAY, u32(I32) + u64(2) + struct.pack("<ii", 1, -1)),
        ],
    )


GETTERS = ("get_int", "get_float", "get_bool", "get_str", "get_strings", "get_array")


@pytest.mark.parametrize(
    ("getter", "accepted"),
    [
        ("get_int", {"int"}),
        ("get_float", {"int", "float"}),
        ("get_bool", {"bool"}),
        ("get_str", {"str"}),
        ("get_strings", {"strs"}),
        ("get_array", {"ints"}),
    ],
)
def test_getters_accept_their_type_only(typed: GGUFFile, getter: str, accepted: set[str]) -> None:
    for key in typed.metadata:
        if key in accepted:
            getattr(typed, getter)(key)
        else:
            with pytest.raises(GGUFError, match=f"metadata '{key}' should be an?"):
                getattr(typed, getter)(key)
            with pytest.raises(GGUFError, match=f"metadata '{key}' should be an?"):
                getattr(typed, getter)(key, None)  # a default is for a key that is missing


def test_getters_return_plain_values(typed: GGUFFile) -> None:
    assert typed.get_int("int") == 7
    assert typed.get_float("float") == 1.5
    assert type(typed.get_float("int")) is float
    assert typed.get_bool("bool") is True
    assert typed.get_str("str") == "hi"
    assert typed.get_strings("strs")[0] == "hi"
    assert list(typed.get_array("ints")) == [1, -1]


@pytest.mark.parametrize("getter", GETTERS)
def test_a_missing_key_gives_the_default_or_its_name(typed: GGUFFile, getter: str) -> None:
    default = object()
    assert getattr(typed, getter)("gone", default) is default
    assert getattr(typed, getter)("gone", None) is None
    with pytest.raises(GGUFError, match="metadata 'gone' is missing"):
        getattr(typed, getter)("gone")
