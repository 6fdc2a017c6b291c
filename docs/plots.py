"""Draws docs/measurements as SVG: the cost of a token against the length of the context, and that
of a step against the chats that decode together, each beside what memory allows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

Record = dict[str, Any]

_WIDTH, _HEIGHT = 420, 300  # of a panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 60, 42  # around what is plotted
# As attributes and not as CSS, which not every program that shows SVG understands.
_FONT = 'font-family="sans-serif" font-size="11" fill="#333"'


@dataclass(frozen=True)
class Line:
    """Points to be joined. dash: as SVG writes it; "" = drawn through, with marks at the points."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    dash: str = ""


def draw(results: Path, folder: Path) -> None:
    """Draw what was measured."""
    for name, x_label, lines_of in (
        ("depth", "tokens in the cache", _depth_lines),
        ("batch", "chats that decode together", _batch_lines),
    ):
        path = results / f"{name}.json"
        if path.exists():
            parts: dict[str, Record] = json.loads(path.read_text(encoding="utf-8"))
            panels = [
                panel(i * _WIDTH, f"{model}: ms", x_label, lines_of(record))
                for i, (model, record) in enumerate(parts.items())
            ]
            (folder / f"{name}.svg").write_text(svg(panels), encoding="utf-8")


def _depth_lines(record: Record) -> list[Line]:
    rows = record["depths"]

    def points(key: str) -> list[tuple[float, float]]:
        return [(row["depth"], row[key]) for row in rows]

    lines = [
        Line("Rushlight", "#c0392b", points("token_ms")),
        Line("what memory allows", "#888", points("ceiling_ms"), "5 4"),
    ]
    if "llama_cpp_token_ms" in rows[0]:
        lines.append(Line("llama.cpp", "#2c5f9e", points("llama_cpp_token_ms")))
    return lines


def _batch_lines(record: Record) -> list[Line]:
    rows = record["batches"]
    steps = [(row["batch"], row["step_ms"]) for row in rows]
    least = [(row["batch"], row["ceiling_ms"]) for row in rows]
    return [
        Line("a step", "#c0392b", steps),
        Line("a token", "#2c5f9e", [(n, ms / n) for n, ms in steps]),
        Line("what memory allows a step", "#888", least, "5 4"),
    ]


def panel(left: float, title: str, x_label: str, lines: Sequence[Line]) -> str:
    """One plot, from x = left on; both axes begin at zero."""
    x_ticks = ticks(max(x for line in lines for x, _ in line.points))
    y_ticks = ticks(max(y for line in lines for _, y in line.points))
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def at_x(x: float) -> float:
        return round(left + _LEFT + x / x_ticks[-1] * width, 1)

    def at_y(y: float) -> float:
        return round(_TOP + height - y / y_ticks[-1] * height, 1)

    first_x, last_x, bottom = at_x(0), at_x(x_ticks[-1]), at_y(0)
    parts = [text(first_x, 18, title, "start", ' font-weight="bold"')]
    for y in y_ticks:
        parts.append(f'<path stroke="#ddd" d="M{first_x} {at_y(y)}H{last_x}"/>')
        parts.append(text(first_x - 6, at_y(y) + 4, f"{y:g}", "end"))
    for x in x_ticks:
        parts.append(f'<path stroke="#ddd" d="M{at_x(x)} {_TOP}V{bottom}"/>')
        parts.append(text(at_x(x), bottom + 16, f"{x:g}", "middle"))
    parts.append(text((first_x + last_x) / 2, bottom + 34, x_label, "middle"))
    legend_x = first_x
    for line in lines:
        path = "L".join(f"{at_x(x)} {at_y(y)}" for x, y in line.points)
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        stroke = f'fill="none" stroke="{line.colour}" stroke-width="2"{dash}'
        parts.append(f'<path {stroke} d="M{path}"/>')
        if not line.dash:
            parts += [
                f'<circle cx="{at_x(x)}" cy="{at_y(y)}" r="3" fill="{line.colour}"/>'
                for x, y in line.points
            ]
        parts.append(f'<path {stroke} d="M{legend_x} 38h18"/>')
        parts.append(text(legend_x + 23, 42, line.name, "start"))
        legend_x += 40 + 6 * len(line.name)
    return "\n".join(parts)


def svg(panels: Sequence[str]) -> str:
    """A drawing of panels side by side."""
    width = len(panels) * _WIDTH
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}">',
            f'<rect width="{width}" height="{_HEIGHT}" fill="#fff"/>',
            f"<g {_FONT}>",
            *panels,
            "</g>",
            "</svg>\n",
        ]
    )


def ticks(highest: float) -> list[float]:
    """From 0 to at least `highest`, in up to eight steps of 1, 2 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(highest))
    step = next(s for s in (power / 5, power / 2, power, 2 * power) if highest / s <= 8)
    return [i * step for i in range(math.ceil(highest / step - 1e-9) + 1)]


def text(x: float, y: float, content: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{more}>{escape(content)}</text>'


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    draw(here / "measurements", here)
