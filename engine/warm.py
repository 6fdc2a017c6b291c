"""Compiles every kernel into the cache, so that later starts compile nothing: `python -m
engine.warm`.

--profiles all compiles for every kind of this machine's CPUs, for an image that will run elsewhere.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from engine.memory.cpus import count_cpus


def compile_all() -> int:
    """Compile all kernels for this process's profile. Returns how many there are."""
    import engine.kernels
    import engine.quants
    import engine.sampling.sampler
    from engine.jit import Native

    packages: tuple[Any, ...] = (engine.kernels, engine.quants)
    for package in packages:
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
    for function in Native.all:
        _ = function.address
    return len(Native.all)


def compile_for(profile: str) -> None:
    """Compile all kernels for a profile, in a process of its own: one knows only one profile."""
    env = {"RUSHLIGHT_CPU_PROFILE": profile, "RUSHLIGHT_COMPILE_ONLY": "1"}
    subprocess.run([sys.executable, "-m", "engine.warm"], env={**os.environ, **env}, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="engine.warm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profiles", choices=("this", "all"), default="this")
    if parser.parse_args().profiles == "this":
        from engine.jit import CACHE_DIR, PROFILE

        print(f"{PROFILE.name}: {compile_all()} kernels in {CACHE_DIR}")
        return

    from engine.jit import profiles_of

    names = [profile.name for profile in profiles_of(platform.machine())]
    with ThreadPoolExecutor(count_cpus().n) as pool:
        for _ in pool.map(compile_for, names):
            pass  # so that the first failure is raised here


if __name__ == "__main__":
    main()
