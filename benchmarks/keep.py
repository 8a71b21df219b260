"""`convert --outtype keep` against `cp` of the same bytes, as a ratio in one run on one machine.

    python benchmarks/keep.py [--gib 2] [--folder DIR] [--rounds 3]

The model is a LLaMA of random F16 weights in GGJT v1. Both sides end with the bytes on disk (`cp` is followed by
fsync, as the converter ends with one); the plain `cp`, which returns with the bytes still in memory, is shown beside.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from helpers.builders import Llama, record


def make(path: Path, gib: float) -> int:
    """A model of about `gib` GiB: LLaMA-7B's shapes, as many layers as fit."""
    layer = (4 * 4096 * 4096 + 3 * 4096 * 11008) * 2
    layers = max(1, round((gib * 2**30 - 2 * 32000 * 4096 * 2) / layer))
    model = Llama(32000, 4096, 32, 32, layers, 11008, 256, kind="F16", version=1, ftype=1)
    noise = np.random.default_rng(0).normal(0, 0.02, 16 << 20).astype("<f2").tobytes()
    with path.open("wb") as file:
        file.write(model.prelude())
        for name, shape in model.tensors():
            size = 4 if len(shape) == 1 else 2
            head = record(name, int(len(shape) > 1), shape, b"", 32, file.tell())
            file.write(head)
            left = size * int(np.prod(shape))
            if size == 4:
                file.write(struct.pack("<f", 1.0) * shape[0])
                left = 0
            while left:
                left -= file.write(noise[: min(left, len(noise))])
    return path.stat().st_size


def timed(command: list[str], target: Path, sync: bool = False) -> float:
    target.unlink(missing_ok=True)
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if sync:
        fd = os.open(target, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ggferry-bench-", dir=arguments.folder))
    try:
        source, target = folder / "model.bin", folder / "copy"
        size = make(source, arguments.gib)
        ggferry = [sys.executable, "-m", "ggferry", "convert", str(source), "-o", str(target), "--force"]
        runs = {
            "cp": lambda: timed(["cp", str(source), str(target)], target),
            "cp + fsync": lambda: timed(["cp", str(source), str(target)], target, sync=True),
            "keep, --verify none": lambda: timed([*ggferry, "--verify", "none"], target),
            "keep, --verify fast": lambda: timed([*ggferry, "--verify", "fast"], target),
            "keep, --verify full": lambda: timed([*ggferry, "--verify", "full"], target),
        }
        best = {name: min(run() for _ in range(arguments.rounds)) for name, run in runs.items()}
        print(f"{size / 1e9:.2f} GB, best of {arguments.rounds}")
        for name, seconds in best.items():
            against = " ".join(f"{best[peer] / seconds:6.2f} × {peer}" for peer in ("cp", "cp + fsync"))
            print(f"{name:<20} {seconds:7.2f} s  {size / seconds / 1e9:6.2f} GB/s  {against}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
