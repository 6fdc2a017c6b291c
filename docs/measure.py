"""Measures everything that performance.md tells, then writes its tables and draws its plots.

    python docs/measure.py --models FOLDER [--llama-cpp-python PYTHON] [TABLE ...]

Each table is a file of docs/measurements, written part by part: a run that was interrupted goes on
where it was, and --again measures anew. A model that is not in the folder is left out. On two cores
all of it takes about ten minutes once the kernels of all profiles are compiled (`python -m
engine.warm --profiles all`); the machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import plots
import processes
import tables

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "measurements"
Record = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A model and how much of it is measured. answers: it is made for chat, and asked first."""

    name: str
    file: str
    n_prompt: int = 256
    n_decode: int = 48
    answers: bool = True
    n_pairs: int = 9  # measurements of each engine, in turn, where two are compared


SMOLLM2 = Model("SmolLM2-135M Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf")
QWEN = Model("Qwen2.5-Coder-0.5B Q4_K_M", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")
GEMMA = Model("Gemma-3-270M Q4_K_M", "gemma-3-270m-q4_k_m.gguf", answers=False)
LLAMA_1B = Model("synthetic Llama-3.2-1B Q4_K_M", "synth-1b.gguf", answers=False, n_pairs=5)
LLAMA_8B = Model("synthetic Llama-3.1-8B Q4_K_M", "synth-8b.gguf", 64, 12, answers=False, n_pairs=3)


@dataclass(frozen=True)
class Bench:
    """`rushlight bench` in a process of its own, so that nothing of one part is left in the next.

    peer: the Python with llama.cpp, None = without it. profile: the CPU to compile for.
    """

    models: Path
    threads: str
    peer: str | None = None
    profile: str = ""

    def run(self, model: Model, *more: str) -> Record:
        """Measure; what `more` says comes last and counts."""
        return self._report(self.command(model, *more))

    def compare(self, model: Model) -> Record:
        """Both engines in turn."""
        return self.run(model, "--reps", str(model.n_pairs))

    def kernels(self) -> Record:
        return self._report([*self._bench, "--kernels", "--reps", "5"])

    def command(self, model: Model, *more: str) -> list[str]:
        sizes = ["--prompt", str(model.n_prompt), "--decode", str(model.n_decode)]
        command = [*self._bench, str(self.models / model.file), *sizes]
        if not model.answers:
            command.append("--no-answer-check")
        if self.peer is not None:
            command += ["--vs-llama-cpp", "--llama-cpp-python", self.peer]
        return [*command, *more]

    @property
    def environment(self) -> dict[str, str]:
        profile = {"RUSHLIGHT_CPU_PROFILE": self.profile} if self.profile else {}
        return {**os.environ, **profile}

    @property
    def _bench(self) -> list[str]:
        threads = ["--threads", self.threads] if self.threads else []
        return [sys.executable, "-m", "clients", "bench", "--json", *threads]

    def _report(self, command: list[str]) -> Record:
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, text=True, check=True
        )
        report: Record = json.loads(done.stdout.splitlines()[-1])
        report.pop("model", None)  # a path of this machine
        return report


@dataclass
class Table:
    """One file of results: a record for each part, added as it is measured."""

    name: str
    parts: dict[str, Callable[[], Record]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return RESULTS / f"{self.name}.json"

    def measure(self, again: bool) -> None:
        """Measure the parts that are not there yet, or all of them."""
        known: Record = {} if again or not self.path.exists() else json.loads(self.path.read_text())
        for part, measure in self.parts.items():
            if part in known:
                continue
            print(f"{self.name}: {part} ...", end="", flush=True)
            start = time.monotonic()
            known[part] = {**measure(), "on": machine()}
            print(f" {time.monotonic() - start:.0f} s", flush=True)
            self.path.parent.mkdir(exist_ok=True)
            self.path.write_text(json.dumps(known, indent=1) + "\n")


def all_tables(bench: Bench, older_peer: str | None) -> Iterator[Table]:
    """Every table there is. older_peer: a Python with llama.cpp built for AVX2 and no more."""
    ours = Bench(bench.models, bench.threads)
    older = Bench(bench.models, bench.threads, older_peer, "x86-64-v3")

    def table(name: str, models: list[Model], measure: Callable[[Model], Record]) -> Table:
        there = [model for model in models if (bench.models / model.file).exists()]
        return Table(name, {model.name: functools.partial(measure, model) for model in there})

    everything = [SMOLLM2, QWEN, GEMMA, LLAMA_1B, LLAMA_8B]
    deep = ["--depth", "0,512,1024,2048,4096", "--prompt", "16", "--decode", "16"]
    wide = ["--batch", "1,2,3,4,5,6,8,9,12,16", "--prompt", "16", "--decode", "16"]
    yield table("speed", everything, bench.compare)
    runs_older = [SMOLLM2, QWEN, LLAMA_1B] if older.profile in profiles() else []
    yield table("older", runs_older, older.compare)
    yield table("depth", [SMOLLM2, LLAMA_1B], lambda m: bench.run(m, *deep))
    yield table("batch", [SMOLLM2, LLAMA_1B], lambda m: ours.run(m, *wide))
    each = {name: Bench(bench.models, bench.threads, profile=name) for name in profiles()}
    yield Table("kernels", {name: one.kernels for name, one in each.items()})
    yield table("start", [QWEN], lambda m: processes.starts(bench.models / m.file))
    yield table("idle", [SMOLLM2], lambda m: processes.idle(bench.models / m.file, 10))
    yield table("disturbed", [SMOLLM2, LLAMA_1B], lambda m: processes.disturbed(ours.run, m))
    yield table(
        "memory",
        [LLAMA_8B],
        lambda m: processes.memory(
            ours.command(m, "--prompt", "512", "--decode", "32", "--reps", "1"), ours.environment
        ),
    )


def profiles() -> list[str]:
    """Those that this CPU can run, the one for no CPU in particular left out."""
    from engine.jit import host_cpu_flags, profiles_of

    flags = host_cpu_flags()
    return [p.name for p in profiles_of(platform.machine()) if p.machine and p.needs <= flags]


def machine() -> dict[str, str]:
    """Where and with what a part was measured."""
    cpu = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    git = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": f"{len(os.sched_getaffinity(0))} CPUs of {cpu}, {memory >> 30} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numba": metadata.version("numba"),
        "commit": git.stdout.strip(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="some of them; default: all")
    parser.add_argument("--models", type=Path, default=ROOT / "models")
    parser.add_argument("--threads", default="", help="default: as many as a server uses")
    parser.add_argument("--llama-cpp-python", help="a Python with llama-cpp-python, to compare")
    parser.add_argument("--older-llama-cpp-python", help="the same, built for AVX2")
    parser.add_argument("--again", action="store_true", help="what is there is measured anew")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    bench = Bench(args.models.resolve(), args.threads, args.llama_cpp_python)
    known = {table.name: table for table in all_tables(bench, args.older_llama_cpp_python)}
    if unknown := set(args.tables) - known.keys():
        parser.error(f"no such table: {', '.join(unknown)}; there are {', '.join(known)}")
    for name in args.tables or known:
        known[name].measure(args.again)
    tables.write(RESULTS, ROOT / "docs" / "performance.md")
    plots.draw(RESULTS, ROOT / "docs")


if __name__ == "__main__":
    main()
