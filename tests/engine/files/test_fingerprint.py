"""A fingerprint changes with the file and the settings, and with nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from engine.files.fingerprint import fingerprint
from engine.files.gguf_file import GGUFFile
from tests.tiny_gguf import write_tiny_gguf


def of(path: Path, *settings: object) -> bytes:
    with GGUFFile(path) as gguf:
        return fingerprint(gguf, *settings)


def test_it_follows_the_file_and_the_settings(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "a.gguf")
    first = of(path, "f16", 1)
    assert len(first) == 32
    assert of(path, "f16", 1) == first
    moved = tmp_path / "b.gguf"
    shutil.copy2(path, moved)
    assert of(moved, "f16", 1) == first
    assert of(path, "q8_0", 1) != first
    assert of(path, "f16", 2) != first
    os.utime(moved, (1, 1))  # perhaps other weights under the same header
    assert of(moved, "f16", 1) != first
    other = write_tiny_gguf(tmp_path / "c.gguf", n_layer=3)
    os.utime(other, ns=(path.stat().st_mtime_ns,) * 2)
    assert of(other, "f16", 1) != first
