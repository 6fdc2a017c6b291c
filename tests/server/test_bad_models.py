"""`rushlight serve` on files that it cannot serve: one line, exit status 1, at once (cases.md, 28).

"At once" is that no Numba is imported, which is most of a start, and by far most of the first one:
a clock would tell more about what else this machine does.
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

ROOT = Path(__file__).resolve().parents[2]

# sitecustomize.py: Python imports it at its start, and with it Numba's import becomes an error.
NO_NUMBA = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name == "numba":
            raise AssertionError("Numba was imported")
sys.meta_path.insert(0, Refuse())
"""


def missing(path: Path) -> None:
    pass


def empty(path: Path) -> None:
    path.touch()


def a_folder(path: Path) -> None:
    path.mkdir()


def cut_off(path: Path) -> None:
    write_tiny_gguf(path)
    os.truncate(path, path.stat().st_size - 1)


def cut_in_the_metadata(path: Path) -> None:
    write_tiny_gguf(path)
    os.truncate(path, 3000)


def of_another_architecture(path: Path) -> None:
    data = write_tiny_gguf(path).read_bytes()
    path.write_bytes(data.replace(b"llama", b"oddly"))  # in every key too


def of_another_pre_tokenizer(path: Path) -> None:
    write_tiny_gguf(path, tokenizer_pre="never-heard-of")


def without_a_width(path: Path) -> None:
    data = write_tiny_gguf(path).read_bytes()
    path.write_bytes(data.replace(b"llama.embedding_length", b"llama.embedding_lengtx"))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (missing, r"m\.gguf: cannot be opened: No such file or directory"),
        (empty, r"m\.gguf: the file is empty"),
        (a_folder, r"m\.gguf: not a file"),
        (cut_off, r"m\.gguf: tensor '\S+' ends at byte \d+, .*"),
        (cut_in_the_metadata, r"m\.gguf: .*"),
        (of_another_architecture, r"unsupported architecture 'oddly'; supported: llama.*"),
        (of_another_pre_tokenizer, r"unsupported pre-tokenizer 'never-heard-of'; supported: .*"),
        (without_a_width, r"m\.gguf: metadata 'llama\.embedding_length' is missing.*"),
    ],
)
def test_one_line_says_what_is_wrong(
    make: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    make(tmp_path / "m.gguf")
    (tmp_path / "sitecustomize.py").write_text(NO_NUMBA)
    done = subprocess.run(
        [sys.executable, "-m", "clients", "serve", "m.gguf", "--port", "0"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert re.fullmatch(rf"rushlight: error: {reason}\n", done.stderr)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout
