"""Chooses CPU profile and kernel cache before Numba is imported; holds the compile options.

Import this module before anything that imports Numba. A profile is a fixed set of CPU features, not
"whatever this CPU has", so that kernels compiled elsewhere (in an image, on a like laptop) are
found in the cache. The cache folder's name holds the profile and a hash of the kernels' sources:
Numba itself does not notice an edit in another file than the one that holds the cached function.

RUSHLIGHT_CPU_PROFILE forces a profile; RUSHLIGHT_CACHE_DIR moves the cache.
RUSHLIGHT_COMPILE_ONLY=1 allows profiles that this CPU cannot run: for filling a cache (warm.py),
not for running anything.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CpuProfile:
    """A level of CPU to compile for.

    lanes: 32-bit lanes in the vectors of the prefill tiles.
    dot:   how products of bytes are summed: "vnni", "maddubs", "sdot" or "plain" (kernels/simd/).
    needs: flags of /proc/cpuinfo that the host must show.
    """

    name: str
    machine: str
    llvm_cpu: str
    llvm_features: str
    lanes: int
    dot: str
    f16c: bool
    fma: bool
    needs: frozenset[str]


_V2 = "ssse3 sse4_1 sse4_2 popcnt cx16"
_V3 = f"{_V2} avx avx2 bmi1 bmi2 f16c fma movbe"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni"

_V4_CPU, _V4_FEATURES = "x86-64-v4", "+avx512vnni,-prefer-256-bit"
_AVX_VNNI = f"{_V3} avx_vnni"

# Best first: the first one whose flags the host has is taken.
PROFILES = tuple(
    CpuProfile(name, machine, cpu, features, lanes, dot, f16c, fma, frozenset(needs.split()))
    for name, machine, cpu, features, lanes, dot, f16c, fma, needs in (
        ("x86-64-v4-vnni", "x86_64", _V4_CPU, _V4_FEATURES, 16, "vnni", True, True, _V4),
        ("x86-64-v3-avxvnni", "x86_64", "x86-64-v3", "+avxvnni", 8, "vnni", True, True, _AVX_VNNI),
        ("x86-64-v3", "x86_64", "x86-64-v3", "+avx2", 8, "maddubs", True, True, _V3),
        ("x86-64-v2", "x86_64", "x86-64-v2", "+sse4.2", 4, "maddubs", False, False, _V2),
        ("aarch64", "aarch64", "generic", "+neon,+dotprod", 4, "sdot", True, True, "asimddp"),
        ("aarch64-v8.0", "aarch64", "generic", "+neon", 4, "plain", True, True, ""),
        ("generic", "", "generic", "", 4, "plain", False, False, ""),
    )
)


def host_cpu_flags() -> frozenset[str]:
    """The CPU feature flags that the system reports; empty where it has no /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def choose_profile(
    machine: str, flags: frozenset[str], forced: str = "", compile_only: bool = False
) -> CpuProfile:
    """The best profile this CPU can run, or the forced one.

    Raises ConfigError: `forced` is not a profile's name, or this CPU cannot run it.
    """
    possible = [p for p in profiles_of(machine) if p.needs <= flags or compile_only]
    if not forced:
        return possible[0]
    for p in possible:
        if p.name == forced:
            return p
    raise ConfigError(
        f"RUSHLIGHT_CPU_PROFILE={forced}: not a profile that this CPU can run; "
        f"possible: {', '.join(p.name for p in possible)}"
    )


def profiles_of(machine: str) -> list[CpuProfile]:
    """The profiles for a kind of machine, as `platform.machine()` names it, best first."""
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    return [p for p in PROFILES if p.machine in ("", machine)]


def _sources_hash() -> str:
    """Of all files that hold code to be compiled: this one, and the two folders of it."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    compiled = [*root.glob("kernels/**/*.py"), *root.glob("quants/*.py"), Path(__file__)]
    for path in sorted(compiled):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def cache_root() -> Path:
    """The folder of all that is kept to save time and may be deleted."""
    if folder := os.environ.get("RUSHLIGHT_CACHE_DIR"):
        return Path(folder)
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "rushlight"
    try:
        return Path.home() / ".cache" / "rushlight"
    except RuntimeError:  # no HOME, and a user that the system does not know
        return _temporary_folder()


def _drop_old_caches(root: Path, profile: str, n_keep: int = 3) -> None:
    """Each edit of the engine makes a new cache folder: keep the last few, to spare the disk."""
    try:
        folders = sorted(root.glob(f"{profile}-py*"), key=lambda p: p.stat().st_mtime)
    except OSError:
        return
    for old in folders[:-n_keep]:
        shutil.rmtree(old, ignore_errors=True)


def _writable(cache: Path) -> Path | None:
    """The cache folder; where it cannot be written to, a copy that lasts as long as the process.

    Numba refuses a folder that it cannot write to, even when all kernels are in it. None = there is
    no place at all: every start compiles.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            return cache
    except OSError:
        pass
    try:
        copy = _temporary_folder()
        if cache.exists():
            shutil.copytree(cache, copy, dirs_exist_ok=True)
    except OSError:
        return None
    return copy


def _temporary_folder() -> Path:
    """A new folder that is removed when the process ends. Not one of a known name: kernels run."""
    folder = Path(tempfile.mkdtemp(prefix="rushlight-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _prepare() -> tuple[CpuProfile, Path | None]:
    profile = choose_profile(
        platform.machine(),
        host_cpu_flags(),
        os.environ.get("RUSHLIGHT_CPU_PROFILE", ""),
        os.environ.get("RUSHLIGHT_COMPILE_ONLY") == "1",
    )
    root = cache_root() / "kernels"
    cache = root / f"{profile.name}-py{sys.version_info[0]}{sys.version_info[1]}-{_sources_hash()}"
    if not cache.exists():
        _drop_old_caches(root, profile.name)
    folder = _writable(cache)
    os.environ["NUMBA_CPU_NAME"] = profile.llvm_cpu
    # Both must be set: the name alone leaves the host's own features on (AVX-512, for "Haswell").
    os.environ["NUMBA_CPU_FEATURES"] = profile.llvm_features
    os.environ["NUMBA_CACHE_DIR"] = str(folder or "")
    return profile, folder


if "numba" in sys.modules:
    raise ImportError("engine.jit must be imported before numba: it chooses the CPU and the cache")
PROFILE, CACHE_DIR = _prepare()

import numba  # noqa: E402
from numba import types  # noqa: E402

# No fast math: sums are taken in the order in which they are written, so that what is computed for
# one row does not depend on how many there are, and NaN and infinity keep their meaning.
# error_model "numpy": a division never raises, so that compiled code holds no exception paths.
_OPTIONS: dict[str, Any] = {
    "boundscheck": False,
    "error_model": "numpy",
}

# Part of a kernel: inlined by LLVM, never cached on its own.
inline: Any = numba.njit(nogil=True, forceinline=True, **_OPTIONS)

# The same, but Python may call it too and runs it as it is written: a call of a compiled one would
# compile it at each start, as only whole kernels are kept on disk.
anywhere: Any = numba.extending.register_jitable(nogil=True, forceinline=True, **_OPTIONS)


_ENTRIES: list[Any] = []


def entry(*signatures: str) -> Any:
    """Decorator for a function that Python calls: compiled for these signatures, and cached.

    Sums may be taken in any order here, so that they become vectors.
    """
    options = {**_OPTIONS, "fastmath": {"contract", "reassoc"}}
    compile_now = numba.njit(list(signatures), nogil=True, cache=CACHE_DIR is not None, **options)

    def decorate(function: Callable[..., Any]) -> Any:
        _ENTRIES.append(compile_now(function))
        return _ENTRIES[-1]

    return decorate


class Native:
    """A C function compiled from Python when its address is first asked for, and cached.

    A start thus compiles only what its model needs. Numba's own `cfunc` compiles when a module is
    imported.
    """

    all: ClassVar[list[Native]] = []  # of the modules that are imported

    def __init__(self, function: Callable[..., None], signature: types.Type) -> None:
        Native.all.append(self)
        self.name = function.__name__
        self._function = function
        self._signature = signature
        self._compiled: Any = None

    @property
    def address(self) -> int:
        """Where the machine code is; an op record holds it."""
        if self._compiled is None:
            make = numba.cfunc(
                self._signature, nopython=True, cache=CACHE_DIR is not None, **_OPTIONS
            )
            self._compiled = make(self._function)
        return int(self._compiled.address)

    @property
    def was_compiled(self) -> bool:
        """Whether this process compiled it, instead of finding it in the cache."""
        return self._compiled is not None and not self._compiled.cache_hits


def n_compiled() -> int:
    """How many functions this process has compiled itself, as it found no cached ones."""
    entries = sum(sum(one.stats.cache_misses.values()) for one in _ENTRIES)
    return entries + sum(one.was_compiled for one in Native.all)


def native(signature: types.Type) -> Callable[[Callable[..., None]], Native]:
    """Decorator: make a Native of a module-level function (one in a closure is never cached)."""
    return lambda function: Native(function, signature)
