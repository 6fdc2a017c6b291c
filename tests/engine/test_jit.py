"""Which CPU profile is chosen, where compiled kernels go when the usual place is closed, and that
they are compiled once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine import ConfigError, jit
from tests.tiny_gguf import write_tiny_gguf

ROOT = Path(__file__).resolve().parents[2]

ALL = frozenset().union(*(p.needs for p in jit.PROFILES))


@pytest.mark.parametrize("profile", jit.profiles_of("x86_64"), ids=lambda p: p.name)
def test_the_best_profile_that_the_host_has_is_chosen(profile: jit.CpuProfile) -> None:
    assert jit.choose_profile("x86_64", profile.needs).name == profile.name
    assert jit.choose_profile("x86_64", ALL, forced=profile.name) is profile


def test_other_machines() -> None:
    assert jit.choose_profile("arm64", frozenset({"asimddp"})).name == "aarch64"
    assert jit.choose_profile("aarch64", frozenset()).name == "aarch64-v8.0"
    assert jit.choose_profile("riscv64", frozenset()).name == "generic"


@pytest.mark.parametrize("forced", ["x86-64-v4-vnni", "aarch64", "nonsense"])
def test_a_profile_that_the_host_cannot_run_is_refused(forced: str) -> None:
    with pytest.raises(ConfigError, match=f"{forced}.*possible: x86-64-v2, generic"):
        jit.choose_profile("x86_64", frozenset(jit._V2.split()), forced)


def test_a_cache_may_be_filled_for_a_cpu_that_is_not_there() -> None:
    chosen = jit.choose_profile("x86_64", frozenset(), "x86-64-v4-vnni", compile_only=True)
    assert chosen.lanes == 16


def test_a_closed_cache_is_copied_to_where_it_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kernel.nbc").write_bytes(b"compiled")
    assert jit._writable(cache) == cache

    def closed(dir: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(jit.tempfile, "TemporaryFile", closed)
    copy = jit._writable(cache)
    assert copy is not None
    assert copy != cache
    assert (copy / "kernel.nbc").read_bytes() == b"compiled"

    def nowhere(prefix: str) -> str:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(jit.tempfile, "mkdtemp", nowhere)
    assert jit._writable(cache) is None


def test_old_caches_of_the_same_profile_make_room(tmp_path: Path) -> None:
    for i in range(6):
        folder = tmp_path / f"x86-64-v3-py311-{i}"
        folder.mkdir()
        os.utime(folder, (i, i))
    other = tmp_path / "x86-64-v3-avxvnni-py311-0"
    other.mkdir()
    jit._drop_old_caches(tmp_path, "x86-64-v3", n_keep=3)
    assert sorted(p.name[-1] for p in tmp_path.glob("x86-64-v3-py*")) == ["3", "4", "5"]
    assert other.exists()


# Answers a prompt, then tells how many functions were compiled: by our own count, and by Numba's
# compiler itself, which is asked for every function, those inlined into others included.
START = """
import sys
from engine.jit import n_compiled
from numba.core import compiler

passes, run = [], compiler.CompilerBase._compile_core
def counted(self):
    passes.append(self)
    return run(self)
compiler.CompilerBase._compile_core = counted

from engine import Engine, EngineConfig, SamplingParams
with Engine(EngineConfig(sys.argv[1], disk_bytes=0)) as engine:
    events = list(engine.generate([5, 6, 7], SamplingParams(max_tokens=3, temperature=0.5)))
assert len(events) > 1
print(n_compiled(), len(passes))
"""


@pytest.mark.slow
def test_the_second_start_compiles_nothing(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")

    def start() -> tuple[int, int]:
        done = subprocess.run(
            [sys.executable, "-c", START, str(model)],
            cwd=ROOT,
            env={**os.environ, "RUSHLIGHT_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        functions, passes = map(int, done.stdout.split())
        return functions, passes

    functions, passes = start()
    assert functions > 10
    assert passes > functions
    assert start() == (0, 0)
