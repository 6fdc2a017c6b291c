"""Tensors of files by the `gguf` package, and the life of the mapping."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader

from engine.errors import GGUFError
from engine.files import gguf_part
from engine.files.gguf_file import GGUFFile
from engine.memory.memory_report import mapped_resident_bytes
from tests.raw_gguf import (
    STRING,
    U32,
    entry,
    open_raw,
    raw_gguf,
    tensor,
    text,
    u32,
)
from tests.tiny_gguf import TinyModel, write_tiny_gguf

DATA = bytes(256)
VOCAB = Path(__file__).resolve().parents[3].parent / "shared/vocab/ggml-vocab-llama-bpe.gguf"


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


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="cannot be opened: No such file"):
        GGUFFile(tmp_path / "none.gguf")
    with pytest.raises(GGUFError, match="not a file"):
        GGUFFile(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GGUFError, match="not a file"):
        GGUFFile(tmp_path / "pipe")


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


@pytest.mark.parametrize("can_populate", [True, False])
def test_prefetch_takes_every_byte_in_small_pieces(
    path: Path, monkeypatch: pytest.MonkeyPatch, can_populate: bool
) -> None:
    done: dict[int, list[tuple[int, int]]] = {}

    def madvise(address: int, n_bytes: int, advice: int) -> int:
        if advice != mmap.MADV_WILLNEED and not can_populate:
            return -1  # as kernels before 5.14 answer
        done.setdefault(advice, []).append((address, n_bytes))
        return 0

    monkeypatch.setattr(gguf_part, "_libc_madvise", lambda: madvise)
    with open_raw(path, [], [tensor("t", [4])], bytes(9_000_000)) as gguf:
        at = start = gguf.address("t") - gguf.tensor("t").offset
        gguf.prefetch()
        [(advice, pieces)] = done.items()
        assert (advice == mmap.MADV_WILLNEED) is not can_populate
        for address, n_bytes in pieces:
            most = gguf_part.PREFETCH_BYTES if can_populate else gguf_part.ASK_BYTES
            assert address == at and n_bytes <= most
            at += n_bytes
        assert at == start + gguf.n_bytes


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux only")
def test_prefetch_maps_the_file(path: Path) -> None:
    with open_raw(path, [], [tensor("t", [4])], bytes(9_000_000)) as gguf:
        before = mapped_resident_bytes(path)
        gguf.prefetch()
        if tuple(map(int, platform.release().split(".")[:2])) >= (5, 14):
            assert before < mapped_resident_bytes(path) >= gguf.n_bytes


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
