"""Plots hold what was measured, where the axes say it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import plots
import pytest

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("highest", "expected"),
    [(4096, [0, 1000, 2000, 3000, 4000, 5000]), (8, [0, 1, 2, 3, 4, 5, 6, 7, 8])],
)
def test_ticks_are_round_and_reach_beyond(highest: float, expected: list[float]) -> None:
    assert plots.ticks(highest) == expected


@pytest.mark.parametrize("highest", [0.07, 1, 3.2, 9.9, 12, 99, 160])
def test_ticks_are_few(highest: float) -> None:
    ticks = plots.ticks(highest)
    assert ticks[-2] < highest <= ticks[-1] * (1 + 1e-9)
    assert 4 <= len(ticks) <= 9


def test_every_result_is_drawn_at_its_place(tmp_path: Path) -> None:
    row = {"llama_cpp_token_ms": 3.0, "ceiling_ms": 0.5}
    depths = [row | {"depth": n, "token_ms": ms} for n, ms in ((0, 1.0), (1000, 2.0), (2000, 4.0))]
    parts = {"A & B": {"depths": depths}, "C": {"depths": depths}}
    (tmp_path / "depth.json").write_text(json.dumps(parts))
    plots.draw(tmp_path, tmp_path)
    assert not (tmp_path / "batch.svg").exists()
    root = ElementTree.parse(tmp_path / "depth.svg").getroot()
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert texts.count("A & B: ms") == 1
    assert texts.count("what memory allows") == 2
    marks = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in root.iter(f"{SVG}circle")]
    assert len(marks) == 2 * 2 * 3
    (x0, y0), (x1, y1), (x2, y2) = marks[:3]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)  # 0, 1000, 2000
    assert 2 * (y0 - y1) == pytest.approx(y1 - y2, abs=0.2)  # 1, 2, 4: upwards
    width = float(re.findall(r"[\d.]+", root.get("viewBox", ""))[2])
    assert all(0 < x < width for x, _ in marks)
