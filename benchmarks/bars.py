"""Wall times as bars: an SVG without scripts or fonts of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floor import Floor
from measured import Cost

LEFT, WIDTH, HEIGHT, TOP = 250, 420, 20, 40


@dataclass(frozen=True, slots=True)
class Row:
    """A bar: what was converted, by whom, its cost, and what it is held against."""

    outtype: str
    by: str
    cost: Cost
    peer: Cost | None = None
    floor: Floor | None = None

    @property
    def words(self) -> str:
        """The seconds, and how they stand to the peer's and to the floor."""
        times = f", {self.peer.wall / self.cost.wall:.1f} ×" if self.peer else ""
        return f"{self.cost.wall:.2f} s{times}" + (f", floor {self.floor.wall:.2f} s" if self.floor else "")


def plot(rows: Sequence[Row], title: str) -> str:
    """The bars, each with a line where its floor is."""
    most = max(row.cost.wall for row in rows)
    lines, at, before = [], TOP, ""
    for row in rows:
        name = row.outtype if "," not in row.outtype else f"{row.outtype.count(',') + 1} types at once"
        if row.outtype != before:
            at, before = at + 14, row.outtype
        else:
            name = ""
        long, color = WIDTH * row.cost.wall / most, "#2a6f97" if row.by.startswith("ggferry") else "#a0a0a0"
        lines += [
            f'<text x="8" y="{at + 14}" font-weight="bold">{name}</text>',
            f'<text x="{LEFT - 8}" y="{at + 14}" text-anchor="end">{row.by}</text>',
            f'<rect x="{LEFT}" y="{at + 3}" width="{long:.1f}" height="{HEIGHT - 6}" fill="{color}"/>',
            f'<text x="{LEFT + long + 6:.1f}" y="{at + 14}">{row.words}</text>',
        ]
        if row.floor:
            mark = LEFT + WIDTH * row.floor.wall / most
            lines.append(f'<path d="M{mark:.1f} {at + 1}v{HEIGHT - 2}" stroke="#c1121f" stroke-width="2"/>')
        at += HEIGHT
    size = f'width="{LEFT + WIDTH + 210}" height="{at + 16}"'
    style = 'font-family="sans-serif" font-size="12" fill="#444"'
    head = f'<text x="8" y="24" font-size="14">{title}</text>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', head, *lines, "</svg>", ""])
