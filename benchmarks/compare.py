"""KL divergence of a quantized model from its base: ggferry compare against llama-perplexity, as ratios in one run.

    python benchmarks/compare.py [--perplexity llama-perplexity] [--outtypes q8_0,q4_k_m] [--chunks 4] [--layers 22]

The model is that of `hf.py`, TinyLlama's shapes with random weights (1.1 · 10⁹ of them), its base in F16; the text
is the project's own pages. Both sides run over the same chunks of 512 tokens with as many threads as there are cores.
llama-perplexity runs twice: it writes the base's predictions to a file, and reads them beside the other model.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from hf import CONFIG, make, pages
from measured import PREFIX, best, measure


def main() -> None:
    """Print a row for each side and type."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--perplexity", type=Path, help="llama-perplexity")
    parser.add_argument("--outtypes", default="q8_0,q4_k_m")
    parser.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", help="where the models are made; 7 GB are used")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=arguments.folder))
    try:
        make(folder / "checkpoint", arguments.layers)
        text, base, model = folder / "text.txt", folder / "base.gguf", folder / "model.gguf"
        text.write_text(pages(), encoding="utf-8")
        ggferry = [sys.executable, "-m", "ggferry"]
        for path, outtype in ((base, "f16"), (model, "q8_0")):
            command = [*ggferry, "convert", folder / "checkpoint", "-o", path, "--force", "--outtype", outtype]
            measure(path, *command, "--verify", "none")
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        print(f"{arguments.chunks} chunks of 512 tokens, {os.cpu_count()} CPUs, load before {load}")
        rounds, chunks = range(arguments.rounds), ("--chunks", str(arguments.chunks))
        for outtype in arguments.outtypes.split(","):
            command = [*ggferry, "quantize", base, model, outtype, "--force", "--verify", "none"]
            measure(model, *command)
            table, kept = folder / "table.md", folder / "predictions"
            own = [*ggferry, "compare", base, model, "--text", text, "--markdown", table, *chunks]
            print(f"\n{outtype}")
            ours = best([measure(table, *own) for _ in rounds])
            print(f"  {'ggferry compare':<22}{ours}", flush=True)
            if arguments.perplexity:
                options = ["-f", text, "-c", "512", "-b", "512", "-t", str(os.cpu_count()), *chunks]
                peer = [arguments.perplexity, *options, "--kl-divergence-base", kept, "-m"]
                theirs = best([measure(kept, *peer, base) + measure((), *peer, model, "--kl-divergence")
                               for _ in rounds])  # fmt: skip
                print(f"  {'llama-perplexity':<22}{theirs}\n  {ours.against(theirs)}", flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
