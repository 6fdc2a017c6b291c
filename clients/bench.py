"""`rushlight bench`: runs the engine's own measurements and shows them to people and to programs.

One of the two commands that run an engine in this process: through HTTP the numbers would be the
server's too. What is measured, and how, is the engine's matter; this file only shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from clients.errors import UserError

Record = dict[str, Any]


class BenchError(UserError):
    """Nothing was measured; the message is one line for the user."""


def bench_model(
    model: Path,
    threads: Sequence[int],
    work: Record,
    answer_check: bool,
    tokenizer_pre: str,
    console: Console,
) -> Iterator[Record]:
    """Ask for the capital of France, then measure; a report for each number of threads.

    work: fields of engine.bench.model.Work. Raises: BenchError, for a wrong answer too.
    """
    from engine import EngineConfig, EngineError, ModelFile

    try:
        ModelFile(EngineConfig(model, tokenizer_pre=tokenizer_pre)).close()
    except EngineError as error:
        raise BenchError(str(error)) from error
    from engine.bench.model import Work, run  # after that, as Numba alone takes a second to import

    for n in threads:
        try:
            with console.status(f"Measuring {model.name} ..."):
                report = run(model, n, Work(**work), answer_check, tokenizer_pre)
        except EngineError as error:
            raise BenchError(str(error)) from error
        yield report


def bench_kernels(threads: Sequence[int], reps: int, console: Console) -> Record:
    """Measure the products of every tensor type. A 0 means the CPUs that a server would use, beside
    one of them. Raises: BenchError.
    """
    from engine import EngineError
    from engine.bench.kernels import run
    from engine.memory.cpus import count_cpus

    counts = sorted({count for n in threads for count in ((n,) if n else (1, count_cpus().n))})
    try:
        with console.status("Compiling ...") as status:
            return run(counts, reps, lambda name: status.update(f"Measuring {name} ..."))
    except EngineError as error:
        raise BenchError(str(error)) from error


def tables_of(report: Record) -> list[Table]:
    """A model's report for people: each speed beside its ceiling."""
    tables = [_main_table(report)]
    if depths := report.get("depths"):
        peer = "llama_cpp_token_ms" in depths[0]
        columns = ["tokens in the cache", "tok/s", "ms a token", "memory's limit", "speed"]
        table = _numbers("Decoding after", [*columns, *(["llama.cpp", "speed"] if peer else [])])
        for row in depths:
            cells = [
                str(row["depth"]),
                f"{row['decode_tok_per_s']:.2f}",
                f"{row['token_ms']:.2f}",
                f"{row['ceiling_ms']:.2f}",
                f"{row['speed_of_first']:.2f}",
            ]
            if peer:
                ms, speed = row["llama_cpp_token_ms"], row["llama_cpp_speed_of_first"]
                cells += [f"{ms:.2f}", f"{speed:.2f}"]
            table.add_row(*cells)
        tables.append(table)
    if batches := report.get("batches"):
        columns = ["chats", "tok/s", "of each", "ms a step", "memory's limit", "cost of one"]
        table = _numbers("Decoding together", columns)
        for row in batches:
            table.add_row(
                str(row["batch"]),
                f"{row['tok_per_s']:.2f}",
                f"{row['tok_per_s_of_each']:.2f}",
                f"{row['step_ms']:.2f}",
                f"{row['ceiling_ms']:.2f}",
                f"{row['cost_of_one']:.2f}",
            )
        tables.append(table)
    return tables


def kernel_table(report: Record) -> Table:
    """The kernels' report for people."""
    title = f"Weights of each type, {report['n_bytes'] >> 20} MiB, profile {report['profile']}"
    columns = ["type", "threads", "read GB/s", "decode GB/s", "of read", "4 rows GB/s", "cost of 1"]
    table = _numbers(title, [*columns, "prefill GFLOP/s"])
    for row in report["types"]:
        table.add_row(
            row["type"],
            str(row["threads"]),
            f"{row['read_gb_per_s']:.1f}",
            f"{row['dot_gb_per_s']:.1f}",
            f"{row['dot_of_read']:.2f}",
            f"{row['dot4_gb_per_s']:.1f}",
            f"{row['four_rows_cost']:.2f}",
            f"{row['prefill_gflop_per_s']:.0f}",
        )
    return table


def json_line(report: Record) -> str:
    """A report for programs: one JSON object on one line."""
    return json.dumps(report, default=str)


def _main_table(report: Record) -> Table:
    table = Table(title=f"{Path(str(report['model'])).name}, {report['threads']} threads")
    table.add_column("")
    table.add_column("measured", justify="right")
    table.add_column("", style="dim")
    table.add_row("load", f"{report['load_s']:.2f} s")
    table.add_row("compiled", f"{report['compiled']}", "functions; the next process finds them")
    peer = report.get("llama_cpp")
    for name in ("prefill", "decode"):
        speed = f"{name}_tok_per_s"
        beside = ""
        if peer:
            ratio = report[f"{name}_ratio"]
            beside = f"{ratio:.2f} times llama.cpp {peer['version']}'s {peer[speed]:.2f}"
        table.add_row(name, f"{report[speed]:.2f} tok/s", beside)
    table.add_row(
        "decode reads",
        f"{report['decode_gb_per_s']:.2f} GB/s",
        f"{report['of_ceiling']:.0%} of this machine's {report['bandwidth_gb_per_s']:.2f} GB/s",
    )
    own = f"{peer['RssAnon']} MiB with llama.cpp" if peer else ""
    table.add_row("memory of its own", f"{report['RssAnon']} MiB", own)
    table.add_row(
        "mapped files in memory",
        f"{report['RssFile']} MiB",
        "model and libraries; may be taken back",
    )
    return table


def _numbers(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="right")
    return table
