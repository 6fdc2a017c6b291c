"""Results in, the right places of the page filled, and nothing else touched."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tables

ROOT = Path(__file__).resolve().parents[2]
ON = {
    "date": "2026-11-30",
    "cpu": "2 CPUs of Some CPU, 24 GiB",
    "system": "Linux 6.1",
    "python": "3.11.7",
    "numba": "0.68.1",
    "commit": "abc1234",
}
IDLE = {"seconds": 10, "cpu_s": 0.0, "cpu_ms": 1.25, "on": ON}
KERNEL = {"type": "Q4_K", "read_gb_per_s": 20.0, "four_rows_cost": 1.3, "dot4_gb_per_s": 9.0}


def page_with(*names: str) -> str:
    places = "\n".join(f"By hand.\n<!-- table: {name} -->\nold\n<!-- end -->" for name in names)
    return f"# Page\n\n{places}\nThe end.\n"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "idle.json").write_text(json.dumps({"SmolLM2": IDLE, "Other": IDLE}))
    return tmp_path


def test_a_measured_table_takes_its_place(results: Path) -> None:
    page = results / "page.md"
    page.write_text(page_with("idle", "speed"))
    tables.write(results, page)
    text = page.read_text()
    assert "| SmolLM2 | 10 | 0.00 | 1.25 |\n| Other | 10 | 0.00 | 1.25 |\n" in text
    assert text.count("Measured: 2026-11-30, 2 CPUs of Some CPU, 24 GiB, Linux 6.1") == 1
    # What was not measured, and what is written by hand, stays; so does all when written again.
    assert "<!-- table: speed -->\nold\n<!-- end -->" in text
    assert text.startswith("# Page\n\nBy hand.") and text.endswith("The end.\n")
    tables.write(results, page)
    assert page.read_text() == text


def test_a_page_without_the_place_is_an_error(results: Path) -> None:
    page = results / "page.md"
    page.write_text(page_with("speed"))
    with pytest.raises(SystemExit, match="0 places for the table idle"):
        tables.write(results, page)


def test_numbers_of_threads_stand_side_by_side() -> None:
    rows = [
        KERNEL | {"threads": n, "dot_gb_per_s": dot, "dot_of_read": 0.9, "prefill_gflop_per_s": 9}
        for n, dot in ((1, 10.0), (2, 19.0))
    ]
    made = tables.TABLES["kernels"]({"x86-64-v3": {"types": rows}})
    assert "| x86-64-v3 | Q4_K | 10.0 (0.90) / 19.0 (0.90) | 1.30 / 1.30 | 9 / 9 |" in made


def test_the_page_has_a_place_for_every_table() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"<!-- table: (\w+) -->", page)) == sorted(tables.TABLES)
