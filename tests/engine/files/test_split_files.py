"""Split models, as the `gguf` package writes them: read like one file, or refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from engine import Engine, EngineConfig
from engine.errors import GGUFError
from engine.files.fingerprint import fingerprint
from engine.files.gguf_file import GGUFFile
from engine.files.split_files import model_name
from tests.tiny_chat import chat_of, score
from tests.tiny_gguf import write_tiny_gguf

IDS = [7 * i % 270 for i in range(20)]


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """The five files of a split model."""
    write_tiny_gguf(tmp_path / "tiny.gguf", split=4)
    return sorted(tmp_path.glob("tiny-0000?-of-00005.gguf"))


def write_part(path: Path, architecture: str | None = None, **keys: int) -> None:
    """A file without tensors, with the given keys under `split`."""
    writer = GGUFWriter(path, "")
    writer.kv_data[0].clear()
    if architecture:
        writer.add_string("general.architecture", architecture)
    for key, value in keys.items():
        writer.add_uint16(f"split.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def test_any_part_opens_them_all(parts: list[Path], tmp_path: Path) -> None:
    whole = write_tiny_gguf(tmp_path / "whole.gguf")
    assert len(parts) == 5
    with GGUFFile(whole) as expected:
        for path in parts:
            with GGUFFile(path) as found:
                assert found.path == path
                assert [part.path for part in found.parts] == parts
                assert found.n_bytes == sum(p.stat().st_size for p in parts)
                assert list(found.tensors) == list(expected.tensors)
                assert found.get_int("llama.block_count") == 2
                for name in expected.tensors:
                    np.testing.assert_array_equal(found.bytes_of(name), expected.bytes_of(name))


def test_logits_are_those_of_the_whole_file(parts: list[Path], tmp_path: Path) -> None:
    with chat_of(write_tiny_gguf(tmp_path / "whole.gguf")) as chat:
        expected = score(chat, IDS, 20)
    with chat_of(parts[2]) as chat:
        np.testing.assert_array_equal(score(chat, IDS, 20), expected)


def test_an_engine_counts_all_parts(parts: list[Path]) -> None:
    n_bytes = sum(path.stat().st_size for path in parts)
    config = EngineConfig(parts[1], n_ctx=64, disk_bytes=0, n_threads=1, lock_weights=True)
    with Engine(config) as engine:
        assert (engine.model.name, engine.model.n_bytes) == ("tiny", n_bytes)
        assert engine.budget.weights == n_bytes
        memory = engine.memory()
        assert memory.weights_mapped == n_bytes
        assert memory.weights_cached in (n_bytes, None)  # locked, so all of it
        assert not memory.weights or memory.weights >= n_bytes


def test_every_part_counts_for_the_fingerprint(parts: list[Path]) -> None:
    def found() -> bytes:
        with GGUFFile(parts[0]) as gguf:
            return fingerprint(gguf)

    before = found()
    assert found() == before
    parts[3].touch()
    assert found() != before


def test_no_part_stays_mapped(parts: list[Path]) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("Linux only")
    gguf = GGUFFile(parts[0])
    gguf.prefetch()
    assert all(str(path) in maps.read_text() for path in parts)
    gguf.close()
    assert gguf.n_bytes == 0
    parts[4].unlink()
    with pytest.raises(GGUFError):
        GGUFFile(parts[0])
    assert not any(str(path) in maps.read_text() for path in parts)


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[3].unlink()
    for path in (parts[0], parts[4]):
        with pytest.raises(GGUFError, match="part 4 of 5 is missing") as error:
            GGUFFile(path)
        assert error.value.path == parts[3]


def test_a_part_under_another_name_says_its_own(parts: list[Path], tmp_path: Path) -> None:
    for name in ("other.gguf", "tiny-00002-of-00003.gguf", "tiny-00003-of-00005.gguf"):
        other = tmp_path / name
        shutil.copy(parts[1], other)
        with pytest.raises(GGUFError, match=r"part 2 of 5 .* called \w+-00002-of-00005\.gguf"):
            GGUFFile(other)


def test_parts_of_something_else_are_refused(parts: list[Path], tmp_path: Path) -> None:
    first, second = parts[:2]
    shutil.copy(parts[2], second)
    with pytest.raises(GGUFError, match="it is part 3 of 5, not part 2 of 5") as error:
        GGUFFile(first)
    assert error.value.path == second
    write_tiny_gguf(second)
    with pytest.raises(GGUFError, match="it is no part of a split model, not part 2 of 5"):
        GGUFFile(first)
    write_part(second, no=1, count=4)
    with pytest.raises(GGUFError, match="it is part 2 of 4, not part 2 of 5"):
        GGUFFile(first)
    write_part(second, "qwen2", no=1, count=5)
    with pytest.raises(GGUFError, match=r"of another model: of 'qwen2', .* of 'llama'"):
        GGUFFile(first)
    write_part(second, no=1, count=5)
    with pytest.raises(GGUFError, match="model has 20 tensors, but the 5 parts hold 16"):
        GGUFFile(first)
    other = write_tiny_gguf(tmp_path / "other.gguf", split=5, n_layer=3)
    shutil.copy(other.with_name("other-00002-of-00006.gguf"), second)
    with pytest.raises(GGUFError, match="it is part 2 of 6, not part 2 of 5"):
        GGUFFile(first)


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        write_tiny_gguf(tmp_path / f"{number}.gguf", split=10)
    (tmp_path / "1-00001-of-00002.gguf").rename(tmp_path / "x-00001-of-00002.gguf")
    again = (tmp_path / "2-00001-of-00002.gguf").read_bytes()
    number = again.index(b"split.no") + len("split.no") + 4
    (tmp_path / "x-00002-of-00002.gguf").write_bytes(again[:number] + b"\1\0" + again[number + 2 :])
    with pytest.raises(GGUFError, match=r"'token_embd.weight' is in x-00001-of-00002.gguf too"):
        GGUFFile(tmp_path / "x-00001-of-00002.gguf")


@pytest.mark.parametrize(("no", "count"), [(3, 3), (7, 3)])
def test_an_impossible_number_is_refused(no: int, count: int, tmp_path: Path) -> None:
    path = tmp_path / "x-00001-of-00003.gguf"
    write_part(path, "llama", no=no, count=count)
    with pytest.raises(GGUFError, match=f"it says that it is part {no + 1} of 3"):
        GGUFFile(path)


def test_a_first_part_may_hold_no_tensors(tmp_path: Path) -> None:
    whole = write_tiny_gguf(tmp_path / "whole.gguf")
    write_part(tmp_path / "x-00001-of-00002.gguf", "llama", no=0, count=2)
    writer = GGUFWriter(tmp_path / "x-00002-of-00002.gguf", "llama")
    writer.add_uint16("split.no", 1)
    writer.add_uint16("split.count", 2)
    with GGUFFile(whole) as gguf:
        writer.add_tensor("t", gguf.bytes_of("output_norm.weight").view(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile(tmp_path / "x-00001-of-00002.gguf") as gguf:
        assert list(gguf.tensors) == ["t"]
        assert len(fingerprint(gguf)) == 32


def test_a_count_of_one_is_no_split_model(tmp_path: Path) -> None:
    write_part(tmp_path / "any name.gguf", "llama", no=0, count=1)
    GGUFFile(tmp_path / "any name.gguf").close()


def test_a_split_model_is_called_what_it_is_called_whole() -> None:
    assert model_name(Path("/models/big-Q4_K_M-00002-of-00003.gguf")) == "big-Q4_K_M"
    assert model_name(Path("/models/big-Q4_K_M.gguf")) == "big-Q4_K_M"
    assert model_name(Path("/models/big-2-of-3.gguf")) == "big-2-of-3"
