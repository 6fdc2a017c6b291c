"""llama.cpp's side, with a module in its place that writes down what it is told."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest

from engine.bench.peer import LlamaCpp, PeerFailed

# All of the C interface that the child uses. What it reads goes to a file, a line for each call.
LLAMA_CPP = """
    import ctypes, os, types

    __version__ = "1.2.3"
    llama_token = ctypes.c_int32
    _log = open(os.environ["CALLS"], "w", buffering=1)

    def llama_backend_init(): pass
    def llama_log_callback(f): return f
    def llama_log_set(f, data): pass
    def llama_model_default_params(): return None
    def llama_context_default_params(): return types.SimpleNamespace()
    def llama_model_load_from_file(path, params): return path != b"missing.gguf"
    def llama_model_get_vocab(model): return None
    def llama_vocab_n_tokens(vocab): return 1000
    def llama_get_memory(context): return "memory"
    def llama_synchronize(context): pass
    def llama_batch_get_one(array, n): return list(array)[:n]

    def llama_init_from_model(model, params):
        print("n_ctx", params.n_ctx, "threads", params.n_threads, file=_log)
        return "context"

    def llama_memory_clear(memory, data): print("clear", file=_log)

    def llama_memory_seq_rm(memory, sequence, first, last):
        print("keep", first, file=_log)
        return True

    def llama_decode(context, batch):
        print("read", len(batch), "from", batch[0], file=_log)
        return 0
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the module in llama_cpp's place writes what it is told."""
    (tmp_path / "llama_cpp.py").write_text(textwrap.dedent(LLAMA_CPP))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def test_it_reads_the_tokens_that_we_read(calls: Path) -> None:
    with LlamaCpp("", "model.gguf", 2, 2048) as peer:
        assert peer.facts["version"] == "1.2.3"
        times = peer.measure(depth=0, n_prompt=600, n_decode=2)
        assert times.prefill_s > 0
        assert times.decode_s > 0
        assert peer.resident_mib().keys() == {"RssAnon", "RssFile"}
    second_chunk = (512 * 7919 + 13) % 1000
    assert calls.read_text().splitlines() == [
        "n_ctx 2048 threads 2",
        "clear",
        "read 512 from 13",
        f"read 88 from {second_chunk}",
        "read 1 from 7",
        f"read 1 from {(104729 + 7) % 1000}",
    ]


def test_depths_go_on_from_each_other(calls: Path) -> None:
    with LlamaCpp("", "model.gguf", 1, 512) as peer:
        for depth in (100, 100, 150, 0):
            peer.measure(depth, 0, 1)
    fill = [line for line in calls.read_text().splitlines()[1:] if not line.startswith("read 1 ")]
    assert fill == [
        "clear",
        "read 100 from 13",
        "keep 100",
        "keep 100",
        f"read 50 from {(100 * 7919 + 13) % 1000}",
        "clear",
    ]


def test_a_model_that_it_cannot_load(calls: Path) -> None:
    with pytest.raises(PeerFailed, match=r"it cannot load missing\.gguf"):
        LlamaCpp("", "missing.gguf", 1, 64)


def test_an_end_in_the_middle(calls: Path) -> None:
    with LlamaCpp("", "model.gguf", 1, 64) as peer:
        peer._child.kill()
        peer._child.wait()
        with pytest.raises(PeerFailed, match="it ended without a word"):
            peer.measure(0, 1, 1)


def test_a_python_that_lacks_it_or_is_not_there(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    os.chmod(bare, 0o755)
    with pytest.raises(PeerFailed, match="--llama-cpp-python"):
        LlamaCpp(str(bare), "model.gguf", 1, 64)
    with pytest.raises(PeerFailed, match="nowhere: No such file"):
        LlamaCpp("/nowhere", "model.gguf", 1, 64)
