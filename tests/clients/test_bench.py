"""What `rushlight bench` shows of reports, and what it refuses; measuring is the engine's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from clients.bench import json_line, kernel_table, tables_of
from clients.cli import app

REPORT: dict[str, Any] = {
    "engine": "rushlight",
    "model": "models/tiny.gguf",
    "threads": 2,
    "prefill_tok_per_s": 210.5,
    "decode_tok_per_s": 42.25,
    "load_s": 0.31,
    "compiled": 0,
    "RssAnon": 120,
    "RssFile": 95,
    "bandwidth_gb_per_s": 12.0,
    "decode_gb_per_s": 6.0,
    "of_ceiling": 0.5,
}
PEER = {
    "llama_cpp": {
        "version": "0.3.99",
        "prefill_tok_per_s": 100.0,
        "decode_tok_per_s": 40.5,
        "RssAnon": 711,
    },
    "prefill_ratio": 2.1,
    "decode_ratio": 1.04,
}
DEPTH = {
    "depth": 4096,
    "decode_tok_per_s": 20.5,
    "token_ms": 48.78,
    "ceiling_ms": 31.25,
    "speed_of_first": 0.81,
}
BATCH = {
    "batch": 4,
    "tok_per_s": 120.5,
    "tok_per_s_of_each": 30.12,
    "step_ms": 33.2,
    "ceiling_ms": 21.5,
    "cost_of_one": 1.4,
}
KERNEL = {
    "type": "Q4_K",
    "threads": 2,
    "read_gb_per_s": 20.5,
    "dot_gb_per_s": 19.5,
    "dot_of_read": 0.95,
    "dot4_gb_per_s": 14.5,
    "four_rows_cost": 1.34,
    "prefill_gflop_per_s": 310.4,
}


def shown(*tables: Any) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(*tables, sep="\n")
    return captured.get()


def test_the_last_line_is_the_whole_report_as_one_json_object() -> None:
    line = json_line(REPORT)
    assert "\n" not in line
    assert json.loads(line) == REPORT


def test_the_table_shows_each_speed_beside_its_ceiling() -> None:
    [table] = tables_of(REPORT)
    text = shown(table)
    assert "tiny.gguf, 2 threads" in text
    assert "42.25 tok/s" in text
    assert "50% of this machine's 12.00 GB/s" in text


def test_llama_cpp_stands_beside_us_with_ratios() -> None:
    text = shown(*tables_of(REPORT | PEER))
    assert "2.10 times llama.cpp 0.3.99's 100.00" in text
    assert "1.04 times llama.cpp 0.3.99's 40.50" in text
    assert "711 MiB with llama.cpp" in text


def test_depths_and_batches_have_tables_of_their_own() -> None:
    _, depths, batches = tables_of(REPORT | {"depths": [DEPTH], "batches": [BATCH]})
    assert all(cell in shown(depths) for cell in ("4096", "20.50", "48.78", "31.25", "0.81"))
    assert all(cell in shown(batches) for cell in ("120.50", "30.12", "33.20", "21.50", "1.40"))
    peer = {"llama_cpp_token_ms": 99.25, "llama_cpp_speed_of_first": 0.44}
    _, depths = tables_of(REPORT | {"depths": [DEPTH | peer]})
    assert all(cell in shown(depths) for cell in ("99.25", "0.44"))


def test_kernels_are_shown_by_type() -> None:
    text = shown(kernel_table({"profile": "x86-64-v3", "n_bytes": 128 << 20, "types": [KERNEL]}))
    assert "128 MiB, profile x86-64-v3" in text
    assert all(cell in text for cell in ("Q4_K", "20.5", "19.5", "0.95", "1.34", "310"))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "name a GGUF file, or --kernels"),
        (["model.gguf", "--kernels"], "--kernels measures no model"),
        (["model.gguf", "--depth", "1,x"], "--depth takes numbers like 1,2,4, not '1,x'"),
        (["model.gguf", "--batch", "2,0"], "--batch: 0 is below 1"),
        (["model.gguf", "--threads", "1,-2"], "--threads: -2 is below 0"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_measured(
    arguments: list[str], error: str
) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert error in result.stderr
