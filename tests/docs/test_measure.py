"""Tables are measured part by part, and only what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import measure
import pytest
import tables


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "measurements")
    return tmp_path / "measurements"


def test_a_run_that_broke_off_goes_on_where_it_was(results: Path) -> None:
    done: list[str] = []

    def part(name: str, fails: bool = False) -> Any:
        def run() -> dict[str, Any]:
            if fails:
                raise SystemExit("no")
            done.append(name)
            return {"name": name}

        return run

    with pytest.raises(SystemExit):
        measure.Table("t", {"a": part("a"), "b": part("b", fails=True)}).measure(again=False)
    whole = measure.Table("t", {"a": part("a"), "b": part("b")})
    whole.measure(again=False)
    assert done == ["a", "b"]
    stored = json.loads((results / "t.json").read_text())
    assert [stored[name]["name"] for name in "ab"] == ["a", "b"]
    assert stored["a"]["on"]["python"].startswith("3.")
    whole.measure(again=True)
    assert done == ["a", "b", "a", "b"]


def test_the_tables_are_those_of_the_page(tmp_path: Path) -> None:
    (tmp_path / measure.QWEN.file).touch()
    found = list(measure.all_tables(measure.Bench(tmp_path, ""), None))
    assert [table.name for table in found] == list(tables.TABLES)
    assert list(found[0].parts) == [measure.QWEN.name]  # the models that are there


def test_a_part_is_a_bench_command(tmp_path: Path) -> None:
    bench = measure.Bench(tmp_path, "2", "/peer/python", "x86-64-v3")
    command = bench.command(measure.LLAMA_8B, "--depth", "0,9")
    assert command[1:5] == ["-m", "clients", "bench", "--json"]
    assert command[-2:] == ["--depth", "0,9"]
    for flag, value in (("--threads", "2"), ("--prompt", "64"), ("--decode", "12")):
        assert command[command.index(flag) + 1] == value
    assert {"--no-answer-check", "--vs-llama-cpp", "/peer/python"} <= set(command)
    assert bench.environment["RUSHLIGHT_CPU_PROFILE"] == "x86-64-v3"
    assert "--no-answer-check" not in bench.command(measure.SMOLLM2)
