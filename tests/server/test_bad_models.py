"""Commands given files that they cannot run: one line, exit status 1, at once.

"At once" is that nothing heavy is imported, neither Numba nor what serves: that is most of a start,
and by far most of the first one. A clock would tell more about what else this machine does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_lora import write_tiny_lora

ROOT = Path(__file__).resolve().parents[2]

# sitecustomize.py: Python imports it at its start, and with it these imports become an error.
NOTHING_HEAVY = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in ("numba", "llvmlite", "fastapi", "uvicorn", "gguf", "jinja2", "llguidance"):
            raise AssertionError(name + " was imported")
sys.meta_path.insert(0, Refuse())
"""


def rushlight(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(NOTHING_HEAVY)
    return subprocess.run(
        [sys.executable, "-m", "clients", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def missing(path: Path) -> None:
    pass


def empty(path: Path) -> None:
    path.touch()


def a_folder(path: Path) -> None:
    path.mkdir()


def another_kind_of_file(path: Path) -> None:
    path.write_bytes(b"PK\3\4" + bytes(100))


def cut_off(path: Path) -> None:
    write_tiny_gguf(path)
    os.truncate(path, path.stat().st_size - 1)


def cut_in_the_metadata(path: Path) -> None:
    write_tiny_gguf(path)
    os.truncate(path, 3000)


def with_another(old: bytes, new: bytes) -> Callable[[Path], None]:
    """A sound file but for these bytes, wherever they are."""
    assert len(old) == len(new)

    def write(path: Path) -> None:
        data = write_tiny_gguf(path, rope_scale=2.0).read_bytes()
        assert old in data
        path.write_bytes(data.replace(old, new))

    return write


def of_another_pre_tokenizer(path: Path) -> None:
    write_tiny_gguf(path, tokenizer_pre="never-heard-of")


def with_too_small_an_embedding(path: Path) -> None:
    write_tiny_gguf(path, n_padding=-16)


def with_tensor_type(number: int) -> Callable[[Path], None]:
    """In place of output_norm's F32."""
    name = b"output_norm.weight"

    def write(path: Path) -> None:
        data = bytearray(write_tiny_gguf(path).read_bytes())
        at = data.index(name) + len(name) + 4 + 8  # behind the number of dimensions, and one
        assert data[at : at + 4] == bytes(4)
        data[at : at + 4] = number.to_bytes(4, "little")
        path.write_bytes(data)

    return write


def of_another_width(path: Path) -> None:
    """Its metadata's, that is: the tensors are as they were."""
    data = write_tiny_gguf(path).read_bytes()
    key = b"llama.feed_forward_length"
    at = data.index(key) + len(key) + 4  # behind the value's type
    old = int.from_bytes(data[at : at + 4], "little")
    path.write_bytes(data[:at] + (old + 32).to_bytes(4, "little") + data[at + 4 :])


def without_its_second_part(path: Path) -> None:
    write_tiny_gguf(path, split=4)
    path.with_name("m-00001-of-00005.gguf").rename(path)  # the others, too, have other names now


BAD_MODELS = [
    (missing, r"m\.gguf: cannot be opened: No such file or directory"),
    (empty, r"m\.gguf: the file is empty"),
    (a_folder, r"m\.gguf: not a file"),
    (another_kind_of_file, r"m\.gguf: not a GGUF file: it starts with b'PK.*"),
    (cut_off, r"m\.gguf: tensor '\S+' ends at byte \d+, .*"),
    (cut_in_the_metadata, r"m\.gguf: .*"),
    (with_another(b"llama", b"oddly"), r"unsupported architecture 'oddly'; supported: llama.*"),
    (with_another(b"gpt2", b"rwkv"), r"unsupported tokenizer 'rwkv'; supported: gpt2.*"),
    (with_another(b"linear", b"spiral"), r"unsupported RoPE scaling 'spiral'; supported: none.*"),
    (of_another_pre_tokenizer, r"unsupported pre-tokenizer 'never-heard-of'; supported: .*"),
    (
        with_tensor_type(26),
        r"unsupported tensor type of output_norm\.weight 'I32'; supported: F32.*",
    ),
    (
        with_tensor_type(99),
        r"unsupported tensor type '99'; tensor 'output_norm\.weight' in .* has it",
    ),
    (
        with_another(b"llama.embedding_length", b"llama.embedding_lengtx"),
        r"m\.gguf: metadata 'llama\.embedding_length' is missing.*",
    ),
    (with_too_small_an_embedding, r"m\.gguf: tensor token_embd\.weight: \d+ rows for \d+ tokens"),
    (
        with_another(b"blk.1.ffn_up", b"blk.1.ffn_xx"),
        r"m\.gguf: tensor 'blk\.1\.ffn_up\.weight' is missing",
    ),
    (of_another_width, r"m\.gguf: tensor blk\.0\.ffn_gate\.weight: shape .* is expected"),
    (without_its_second_part, r"m\.gguf: it is part 1 of 5 of a split model, so .*"),
]


@pytest.mark.parametrize(("make", "reason"), BAD_MODELS)
def test_one_line_says_what_is_wrong(
    make: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    make(tmp_path / "m.gguf")
    done = rushlight(tmp_path, "serve", "m.gguf", "--port", "0")
    assert re.fullmatch(rf"rushlight: error: {reason}\n", done.stderr)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", split=4)
    (tmp_path / "m-00003-of-00005.gguf").unlink()
    done = rushlight(tmp_path, "serve", "m-00001-of-00005.gguf", "--port", "0")
    said = r"rushlight: error: m-00003-of-00005\.gguf: part 3 of 5 is missing; .*\n"
    assert re.fullmatch(said, done.stderr)
    assert done.returncode == 1


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf")
    other = write_tiny_gguf(tmp_path / "other.gguf", n_embd=96)
    write_tiny_lora(tmp_path / "lora.gguf", other)
    done = rushlight(tmp_path, "serve", "m.gguf", "--port", "0", "--lora", "lora.gguf")
    said = r"rushlight: error: lora\.gguf: tensors .* the adapter is for another one\n"
    assert re.fullmatch(said, done.stderr)
    assert done.returncode == 1


@pytest.mark.parametrize("command", [["bench", "m.gguf"], ["prompt", "m.gguf", "Hello"]])
def test_every_command_that_runs_a_model_looks_at_the_file_first(
    command: list[str], tmp_path: Path
) -> None:
    of_another_pre_tokenizer(tmp_path / "m.gguf")
    done = rushlight(tmp_path, *command)
    said = r"rushlight: error: unsupported pre-tokenizer 'never-heard-of'; supported: .*\n"
    assert re.fullmatch(said, done.stderr)
    assert (done.returncode, done.stdout) == (1, "")


def test_settings_are_told_as_fast(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf")
    (tmp_path / "config.toml").write_text("[engine]\nn_ctx = -4\n")
    for command in ("serve", "bench"):
        done = rushlight(tmp_path, command, "m.gguf")
        assert re.fullmatch(r"rushlight: error: config\.toml: engine\.n_ctx: .*\n", done.stderr)
        assert done.returncode == 1
    done = rushlight(tmp_path, "serve", "m.gguf", "--threads", "5000", "--config", "/dev/null")
    assert re.fullmatch(r"rushlight: error: command line: engine\.n_threads: .*\n", done.stderr)
    assert done.returncode == 1
