"""KL divergence over size as points, a line for each rounding: an SVG without scripts or fonts of its own.

The rows are those of a table as `quality.py` prints it, and docs/quality.md has it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LEFT, TOP, WIDTH, HEIGHT = 70, 50, 560, 300
COLORS = {"stock": "#8a8a8a", "search": "#2a6f97", "feedback": "#c1121f"}
NAMES = {"stock": "llama-quantize (stock)", "search": "--rounding search", "feedback": "--rounding feedback"}
ENDING = ("Q4_0",)
"""Types whose names stand to the left of their points: another type has the same size."""
_ROW = re.compile(r"\| (\w+) \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \([\d.]+\) \| ([\d.]+) \([\d.]+\) \|.*")


@dataclass(frozen=True, slots=True)
class Point:
    """A file: its type, its bytes, and how far it lies from the model with each rounding, in nats."""

    type: str
    size: int
    divergences: Mapping[str, float]


def points_of(page: Path) -> list[Point]:
    """Return the rows of the first table of a page. Raises ValueError where it has none."""
    found: list[Point] = []
    for line in page.read_text(encoding="utf-8").splitlines():
        if match := _ROW.fullmatch(line):
            values = map(float, match.groups()[2:])
            found.append(Point(match[1], int(match[2].replace(",", "")), dict(zip(COLORS, values, strict=True))))
        elif found:
            return found
    raise ValueError(f"{page}: no table of types, bytes and divergences")


def plot(points: Sequence[Point], title: str) -> str:
    """The points of each rounding, from the smallest file to the largest; the divergences on a scale of decades."""
    sizes = [point.size for point in points]
    low, high = math.floor(min(sizes) / 5e6) * 5, math.ceil(max(sizes) / 5e6) * 5
    logs = [math.log10(value) for point in points for value in point.divergences.values()]
    bottom, top = math.floor(min(logs) * 4) / 4, math.ceil(max(logs) * 4) / 4

    def across(size: float) -> float:
        return LEFT + WIDTH * (size / 1e6 - low) / (high - low)

    def down(value: float) -> float:
        return TOP + HEIGHT * (top - math.log10(value)) / (top - bottom)

    lines = [f'<text x="8" y="24" font-size="14">{title}</text>']
    for megabytes in range(low, high + 1, 5):
        at = across(megabytes * 1e6)
        lines.append(f'<path d="M{at:.1f} {TOP}v{HEIGHT}" stroke="#e4e4e4"/>')
        lines.append(f'<text x="{at:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{megabytes} MB</text>')
    for mark in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2):
        if bottom <= math.log10(mark) <= top:
            lines.append(f'<path d="M{LEFT} {down(mark):.1f}h{WIDTH}" stroke="#e4e4e4"/>')
            lines.append(f'<text x="{LEFT - 8}" y="{down(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>')
    for number, (rounding, color) in enumerate(COLORS.items()):
        radius = 7.5 if rounding == "stock" else 4.5  # another point may lie upon it
        for point in points:
            x, y = across(point.size), down(point.divergences[rounding])
            lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}"/>')
            if rounding == "feedback":  # the lowest point of a type has its name
                side, shift = ("end", -9) if point.type in ENDING else ("start", 9)
                lines.append(f'<text x="{x + shift:.1f}" y="{y + 4:.1f}" text-anchor="{side}">{point.type}</text>')
        x, y = LEFT + WIDTH - 170, TOP + 16 + 20 * number
        lines.append(f'<circle cx="{x}" cy="{y - 4}" r="4.5" fill="{color}"/>')
        lines.append(f'<text x="{x + 12}" y="{y}">{NAMES[rounding]}</text>')
    size = f'width="{LEFT + WIDTH + 40}" height="{TOP + HEIGHT + 32}"'
    style = 'font-family="sans-serif" font-size="12" fill="#444"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', *lines, "</svg>", ""])
