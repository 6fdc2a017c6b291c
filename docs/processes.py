"""What is measured of whole processes, from outside: starts, idle CPU time, a core that another
process keeps busy, memory.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Record = dict[str, Any]

_SETTLE_S = 3.0
_BUSY = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@contextlib.contextmanager
def served(
    model: Path, cache: str = "", settings: Mapping[str, object] = MappingProxyType({})
) -> Iterator[tuple[subprocess.Popen[str], float]]:
    """A server, and the seconds from its start until it was ready.

    cache: where kernels are. settings: by SECTION__KEY.
    """
    environment = {**os.environ, **({"RUSHLIGHT_CACHE_DIR": cache} if cache else {})}
    environment |= {f"RUSHLIGHT_{key}".upper(): str(value) for key, value in settings.items()}
    start = time.monotonic()
    server = subprocess.Popen(
        [sys.executable, "-m", "clients", "serve", str(model), "--port", "0"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout
        ready = next((line for line in server.stdout if " is ready" in line), None)
        if ready is None:
            raise SystemExit(f"the server ended with status {server.wait()}")
        yield server, time.monotonic() - start
    finally:
        server.terminate()
        server.communicate()


def starts(model: Path) -> Record:
    """A start that finds no kernels, and the next one."""
    with tempfile.TemporaryDirectory() as cache:
        found: list[int] = []
        seconds: list[float] = []
        for _ in range(2):
            with served(model, cache) as (_, ready_s):
                seconds.append(round(ready_s, 2))
            found.append(len(list(Path(cache).rglob("*.nbc"))))  # one for each function
    return {
        "cold_s": seconds[0],
        "cold_compiled": found[0],
        "second_s": seconds[1],
        "second_compiled": found[1] - found[0],
    }


def idle(model: Path, seconds: float) -> Record:
    """CPU time of a server that nobody asks anything."""
    with served(model) as (server, _):
        time.sleep(_SETTLE_S)
        before = _cpu(server.pid)
        time.sleep(seconds)
        after = _cpu(server.pid)
    return {
        "seconds": seconds,
        "cpu_s": round(after[0] - before[0], 2),
        "cpu_ms": round((after[1] - before[1]) * 1e3, 2),
    }


def disturbed(run: Callable[..., Record], model: Any) -> Record:
    """Decoding while another process keeps one core busy, beside decoding without it."""
    sizes = ["--prompt", "128", "--decode", "256"]
    free = run(model, *sizes)
    core = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", _BUSY, str(core)]) as busy:
        try:
            beside = run(model, *sizes)
        finally:
            busy.kill()
    speeds = {
        f"{when}_{kind}_tok_per_s": report[f"{kind}_tok_per_s"]
        for when, report in (("free", free), ("disturbed", beside))
        for kind in ("prefill", "decode")
    }
    ratios = {
        f"{kind}_of_free": round(
            speeds[f"disturbed_{kind}_tok_per_s"] / speeds[f"free_{kind}_tok_per_s"], 3
        )
        for kind in ("prefill", "decode")
    }
    return speeds | ratios


def memory(command: list[str], environment: dict[str, str]) -> Record:
    """The most that a process had in memory, of its own and of mapped files, in MiB."""
    most = {"RssAnon": 0, "RssFile": 0}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            for name, n in re.findall(r"^(RssAnon|RssFile):\s+(\d+) kB$", status, re.MULTILINE):
                most[name] = max(most[name], int(n) >> 10)
            time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"{command} ended with status {process.returncode}")
    return {f"most_{name}": n for name, n in most.items()}


def _cpu(pid: int) -> tuple[float, float]:
    """Seconds that a process has used: in the system's ticks, as ps shows it, and exactly."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return ticks, sum(int(path.read_text().split()[0]) for path in threads) / 1e9
