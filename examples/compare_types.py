"""Convert a model to several types, compare what each costs, and draw it: python examples/compare_types.py [MODEL]

The model is read once. Every file is proved before it gets its name, and the errors are those of the proofs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import ggferry

MODEL = Path(__file__).resolve().parent.parent / "fixtures" / "hf" / "ckpt" / "llama"
BAR, LEFT, WIDTH, ROW = 14, 90, 300, 44


def convert(model: str, types: str, folder: str) -> list[ggferry.Conversion]:
    """Write the model in each type into a folder; return the conversions with their proofs."""
    return list(ggferry.convert_many(model, os.path.join(folder, "model-{outtype}.gguf"), outtype=types))


def costs(done: ggferry.Conversion) -> tuple[str, int, float]:
    """Return a conversion's type, bytes, and the largest relative error that rounding gave a tensor."""
    name = Path(done.output).stem.removeprefix("model-")
    worst = done.proof.worst.relative_rms if done.proof.worst else 0.0
    return name, os.path.getsize(done.output), worst


def draw(rows: Sequence[tuple[str, int, float]]) -> str:
    """Return a picture (SVG): two bars a type, its bytes and its error, each as a share of the largest."""
    most, worst = max(size for _, size, _ in rows), max(error for *_, error in rows) or 1.0
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="560" height="{ROW * len(rows) + 10}" '
        'font-family="sans-serif" font-size="12">'
    ]
    for place, (name, size, error) in enumerate(rows):
        top = place * ROW + 10
        bars = [(size / most, "#4477aa", f"{size:,} bytes"), (error / worst, "#cc6677", f"{error:.2g} relative RMS")]
        lines.append(f'<text x="{LEFT - 8}" y="{top + 19}" text-anchor="end">{name}</text>')
        for row, (share, color, label) in enumerate(bars):
            y, wide = top + row * (BAR + 2), max(1, round(share * WIDTH))
            lines.append(f'<rect x="{LEFT}" y="{y}" width="{wide}" height="{BAR}" fill="{color}"/>')
            lines.append(f'<text x="{LEFT + wide + 6}" y="{y + BAR - 3}">{label}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    """Convert, print a table, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=str(MODEL))
    parser.add_argument("--types", default="f16,q8_0,q5_0,q4_0")
    parser.add_argument("--svg", default="types.svg")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [costs(done) for done in convert(given.model, given.types, folder)]
    for name, size, error in rows:
        print(f"{name:8} {size:>12,} bytes   {error:.3g} relative RMS")
    Path(given.svg).write_text(draw(rows))


if __name__ == "__main__":
    main()
