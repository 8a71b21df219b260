"""Importance matrices: ggferry against llama-imatrix, as ratios in one run.

    python benchmarks/imatrix.py [--imatrix llama-imatrix] [--outtypes f16,q8_0] [--chunks 8] [--layers 22]

The model is that of `hf.py`, TinyLlama's shapes with random weights (1.1 · 10⁹ of them); the text is the project's own
pages. Both sides run over the same chunks of 512 tokens with as many threads as there are cores. The largest relative
difference of the two matrices is stated: the programs round differently.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from hf import CONFIG, make, pages
from measured import PREFIX, best, measure

from ggferry.formats.imatrix.read import read_imatrix


def sums(path: Path) -> dict[str, np.ndarray]:
    """The sums of squares that a matrix holds, by name."""
    with read_imatrix(str(path)) as matrix:
        return {name: matrix.sums(name) for name in matrix.entries}


def apart(one: Path, other: Path) -> str:
    """How far two matrices lie apart."""
    a, b = sums(one), sums(other)
    both = a.keys() & b.keys()
    worst = max(float(np.linalg.norm(a[name] - b[name]) / np.linalg.norm(b[name])) for name in both)
    return f"{len(both)} of {len(a.keys() | b.keys())} entries in both, largest relative RMS difference {worst:.2g}"


def main() -> None:
    """Print a row for each side and type."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--imatrix", type=Path, help="llama-imatrix")
    parser.add_argument("--outtypes", default="f16,q8_0")
    parser.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", help="where the model is made; 6 GB are used")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=arguments.folder))
    try:
        make(folder / "checkpoint", arguments.layers)
        text, model = folder / "text.txt", folder / "model.gguf"
        text.write_text(pages(), encoding="utf-8")
        ggferry = [sys.executable, "-m", "ggferry"]
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        print(f"{arguments.chunks} chunks of 512 tokens, {os.cpu_count()} CPUs, load before {load}")
        for outtype in arguments.outtypes.split(","):
            command = [*ggferry, "convert", folder / "checkpoint", "-o", model, "--force", "--outtype", outtype]
            measure(model, *command, "--verify", "none")
            theirs, costs = folder / "theirs.gguf", {}
            print(f"\n{outtype}")
            for precision in ("auto", "f32"):
                mine = folder / f"{precision}.gguf"
                own = [*ggferry, "imatrix", model, "--text", text, "-o", mine, "--precision", precision, "--chunks"]
                measure(mine, *own, 1)  # compiles what is compiled on first use
                costs[mine] = best([measure(mine, *own, arguments.chunks) for _ in range(arguments.rounds)])
                print(f"  {f'ggferry, {precision}':<22}{costs[mine]}", flush=True)
            print(f"  auto and f32: {apart(*costs)}")
            if arguments.imatrix:
                words = [arguments.imatrix, "-m", model, "-f", text, "-o", theirs, "-c", 512, "-t", os.cpu_count()]
                runs = [measure(theirs, *words, "--chunks", arguments.chunks) for _ in range(arguments.rounds)]
                print(f"  {'llama-imatrix':<22}{best(runs)}")
                for mine, cost in costs.items():
                    print(f"  {mine.stem}: {cost.against(best(runs))}\n  {apart(mine, theirs)}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
