"""The tables of performance.md, made of docs/measurements. Each stands between two comments:

    <!-- table: speed -->
    ...
    <!-- end -->

What lies outside of them is written by hand and stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]

_PLACE = r"(<!-- table: {} -->\n).*?(<!-- end -->)"

# Times llama.cpp, prefill and decode: what we want, and what the fastest CPU engine known reaches.
_GOALS = {
    "SmolLM2": ("4.5 / 1.5", "4.2 / 1.45"),
    "Qwen2.5": ("2.2 / 1.45", "2.0 / 1.4"),
    "Gemma-3": ("1.9 / 1.6", "1.75 / 1.55"),
    "Llama-3.2-1B": ("1.6 / 1.05", "1.35 / 0.8"),
    "Llama-3.1-8B": ("1.5 / 1.05", "1.05 / 0.75"),
}
_OLDER_GOALS = {"SmolLM2": "3 / 1.3", "Qwen2.5": "2 / 1.3", "Llama-3.2-1B": "1.6 / 1.05"}


def write(results: Path, page: Path) -> None:
    """Put every table that was measured in its place of the page."""
    text = page.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        path = results / f"{name}.json"
        if not path.exists():
            continue
        parts: dict[str, Record] = json.loads(path.read_text(encoding="utf-8"))
        made = f"\n{make(parts)}\n{_machines(parts)}\n"
        place = re.compile(_PLACE.format(name), re.DOTALL)
        found = place.findall(text)
        if len(found) != 1:
            raise SystemExit(f"{page}: {len(found)} places for the table {name} instead of one")
        before, after = found[0]
        text = place.sub(lambda _: before + made + after, text)  # noqa: B023  # used at once
    page.write_text(text, encoding="utf-8")


def _speed(parts: dict[str, Record]) -> str:
    def row(model: str, r: Record) -> list[object]:
        peer = r.get("llama_cpp")
        goal, other = next((g for key, g in _GOALS.items() if key in model), ("", ""))
        return [
            model,
            f"{r['prompt']}, {r['decode']}",
            _pair(peer) if peer else "-",
            _pair(r),
            _ratios(r),
            goal,
            other,
            f"{r['of_ceiling']:.2f}",
            f"{r['RssAnon']} ({peer['RssAnon'] if peer else '-'})",
        ]

    return _markdown(
        "model | prompt, decode | llama.cpp prefill / decode | Rushlight prefill / decode | "
        "ratio | goal | ik_llama.cpp's | decode of plain read | own memory, MiB",
        (row(*part) for part in parts.items()),
    )


def _older(parts: dict[str, Record]) -> str:
    def row(model: str, r: Record) -> list[object]:
        peer = r.get("llama_cpp")
        goal = next((g for key, g in _OLDER_GOALS.items() if key in model), "")
        return [model, _pair(peer) if peer else "-", _pair(r), _ratios(r), goal]

    return _markdown(
        "model | llama.cpp prefill / decode | Rushlight prefill / decode | ratio | goal",
        (row(*part) for part in parts.items()),
    )


def _depth(parts: dict[str, Record]) -> str:
    return _markdown(
        "model | tokens in the cache | ms a token | memory's limit, ms | speed to none | "
        "llama.cpp, ms a token | its speed to none",
        (
            [
                model,
                row["depth"],
                f"{row['token_ms']:.2f}",
                f"{row['ceiling_ms']:.2f}",
                f"{row['speed_of_first']:.2f}",
                row.get("llama_cpp_token_ms", "-"),
                row.get("llama_cpp_speed_of_first", "-"),
            ]
            for model, r in parts.items()
            for row in r["depths"]
        ),
    )


def _batch(parts: dict[str, Record]) -> str:
    return _markdown(
        "model | chats | tokens/s | of each | ms a step | memory's limit, ms | cost of one",
        (
            [
                model,
                row["batch"],
                f"{row['tok_per_s']:.1f}",
                f"{row['tok_per_s_of_each']:.1f}",
                f"{row['step_ms']:.2f}",
                f"{row['ceiling_ms']:.2f}",
                f"{row['cost_of_one']:.2f}",
            ]
            for model, r in parts.items()
            for row in r["batches"]
        ),
    )


def _kernels(parts: dict[str, Record]) -> str:
    """A row for each profile and type, with all numbers of threads side by side."""
    counts = sorted({row["threads"] for r in parts.values() for row in r["types"]})
    rows: list[list[object]] = []
    for profile, r in parts.items():
        types: dict[str, dict[int, Record]] = {}
        for row in r["types"]:
            types.setdefault(row["type"], {})[row["threads"]] = row
        for name, by_threads in types.items():
            each = [by_threads[n] for n in counts]
            dots = [f"{row['dot_gb_per_s']:.1f} ({row['dot_of_read']:.2f})" for row in each]
            costs = [f"{row['four_rows_cost']:.2f}" for row in each]
            speeds = [f"{row['prefill_gflop_per_s']:.0f}" for row in each]
            rows.append([profile, name, *(" / ".join(cells) for cells in (dots, costs, speeds))])
    threads = " / ".join(map(str, counts))
    return _markdown(
        f"profile | type | decode, GB/s (of a plain read), {threads} threads | "
        "four rows, times one | prefill, GFLOP/s",
        rows,
    )


def _start(parts: dict[str, Record]) -> str:
    return _markdown(
        "model | start | functions compiled | ready after, s",
        (
            [model, name, r[f"{key}_compiled"], f"{r[f'{key}_s']:.2f}"]
            for model, r in parts.items()
            for key, name in (("cold", "first"), ("second", "second"))
        ),
    )


def _idle(parts: dict[str, Record]) -> str:
    return _markdown(
        "model | idle for, s | CPU time as ps shows it, s | exactly, ms",
        ([m, f"{r['seconds']:g}", f"{r['cpu_s']:.2f}", r["cpu_ms"]] for m, r in parts.items()),
    )


def _disturbed(parts: dict[str, Record]) -> str:
    return _markdown(
        "model | free prefill / decode | one core taken | of free",
        (
            [
                model,
                _pair(r, "free_"),
                _pair(r, "disturbed_"),
                f"{r['prefill_of_free']:.2f} / {r['decode_of_free']:.2f}",
            ]
            for model, r in parts.items()
        ),
    )


def _memory(parts: dict[str, Record]) -> str:
    return _markdown(
        "model | RssAnon at most, MiB | RssFile at most, MiB",
        ([model, r["most_RssAnon"], r["most_RssFile"]] for model, r in parts.items()),
    )


TABLES: dict[str, Callable[[dict[str, Record]], str]] = {
    "speed": _speed,
    "older": _older,
    "depth": _depth,
    "batch": _batch,
    "kernels": _kernels,
    "start": _start,
    "idle": _idle,
    "disturbed": _disturbed,
    "memory": _memory,
}


def _pair(r: Record, prefix: str = "") -> str:
    return f"{r[f'{prefix}prefill_tok_per_s']:.0f} / {r[f'{prefix}decode_tok_per_s']:.1f}"


def _ratios(r: Record) -> str:
    return f"{r['prefill_ratio']:.2f} / {r['decode_ratio']:.2f}" if "prefill_ratio" in r else "-"


def _markdown(header: str, rows: Iterable[list[object]]) -> str:
    columns = header.split(" | ")
    lines: list[Sequence[object]] = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def _machines(parts: dict[str, Record]) -> str:
    """Where and with what the table was measured: once, if it was all the same."""
    told = []
    for r in parts.values():
        on = r["on"]
        peer = f", llama-cpp-python {r['llama_cpp']['version']}" if "llama_cpp" in r else ""
        line = (
            f"{on['date']}, {on['cpu']}, {on['system']}, Python {on['python']}, "
            f"Numba {on['numba']}{peer}, commit {on['commit']}"
        )
        if line not in told:
            told.append(line)
    return f"Measured: {'; '.join(told)}.\n"
