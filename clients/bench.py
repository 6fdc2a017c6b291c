"""`rushlight bench`: runs the engine's own measurement and shows it to people and to programs.

One of the two commands that run an engine in this process: through HTTP the numbers would be the
server's too. What is measured, and how, is the engine's matter; this file only shows it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from clients.errors import UserError


class BenchError(UserError):
    """Nothing was measured; the message is one line for the user."""


def bench(
    model: Path,
    n_threads: int,
    n_prompt: int,
    n_decode: int,
    reps: int,
    answer_check: bool,
    tokenizer_pre: str,
    console: Console,
) -> dict[str, Any]:
    """Ask for the capital of France, then measure. Raises: BenchError, for a wrong answer too."""
    from engine import EngineError  # here, because Numba alone takes a second to import
    from engine.bench import run

    try:
        with console.status(f"Measuring {model.name} ..."):
            return run(model, n_threads, n_prompt, n_decode, reps, answer_check, tokenizer_pre)
    except EngineError as error:
        raise BenchError(str(error)) from error


def table_of(report: dict[str, Any]) -> Table:
    """The report for people: each speed beside its ceiling."""
    table = Table(title=f"{Path(str(report['model'])).name}, {report['threads']} threads")
    table.add_column("")
    table.add_column("measured", justify="right")
    table.add_column("", style="dim")
    table.add_row("load", f"{report['load_s']:.2f} s")
    table.add_row("prefill", f"{report['prefill_tok_per_s']:.2f} tok/s")
    table.add_row("decode", f"{report['decode_tok_per_s']:.2f} tok/s")
    table.add_row(
        "decode reads",
        f"{report['decode_gb_per_s']:.2f} GB/s",
        f"{report['of_ceiling']:.0%} of this machine's {report['bandwidth_gb_per_s']:.2f} GB/s",
    )
    table.add_row("memory of its own", f"{report['RssAnon']} MiB")
    table.add_row(
        "mapped file in memory", f"{report['RssFile']} MiB", "the system may take it back"
    )
    return table


def json_line(report: dict[str, Any]) -> str:
    """The report for programs: one JSON object on one line."""
    return json.dumps(report, default=str)
