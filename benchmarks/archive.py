"""Two workers against one: python benchmarks/archive.py [--models 30] [--mib 192] [--dry-run] [--outtype q4_k_m]

Quantizes an archive of F16 models, read from and written to this machine's disk, with one worker process of one thread
and then with two. The jobs are I/O-light: almost all of the time is arithmetic. What is to be shown: 1.8 times the
throughput. With fewer than two free cores it cannot be. `--dry-run` makes the archive, the plan and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from helpers.builders import Llama

WIDTH, HIDDEN = 1024, 2816


def build(root: Path, models: int, mib: int) -> None:
    """`models` files of about `mib` MiB of F16 weights each, all different."""
    layer = 2 * (4 * WIDTH * WIDTH + 3 * WIDTH * HIDDEN)
    layers = max(1, (mib << 20) // layer)
    root.mkdir()
    shape = Llama(
        n_vocab=2048,
        n_embd=WIDTH,
        n_head=16,
        n_head_kv=16,
        n_layer=layers,
        n_ff=HIDDEN,
        kind="F16",
        version=1,
        ftype=1,
    )
    data = bytearray(shape.bytes())
    for number in range(models):
        data[-4:-2] = number.to_bytes(2, "little")
        (root / f"{number:03}.bin").write_bytes(data)


def run(*arguments: object) -> tuple[float, float]:
    """Wall and user CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "ggferry", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", type=int, default=30)
    options.add_argument("--mib", type=int, default=192)
    options.add_argument("--outtype", default="q4_k_m")
    options.add_argument("--verify", default="fast")
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--dry-run", action="store_true")
    options.add_argument("--folder", help="where to work (default: the system's temporary folder)")
    asked = options.parse_args()
    root = Path(tempfile.mkdtemp(prefix="ggferry-bench-", dir=asked.folder))
    try:
        build(root / "in", asked.models, asked.mib)
        plan = root / "plan.jsonl"
        out = root / "out"
        run("plan", root / "in", "-o", plan, "--dest", out, "--outtype", asked.outtype, "--verify", asked.verify)
        head, *lines = map(json.loads, plan.read_text().splitlines())
        total = sum(line["bytes_in"] for line in lines)
        print(f"{len(lines)} models, {total / 2**20:.0f} MiB, to {head['outtype']}, proof {head['verify']}")
        print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
        if asked.dry_run:
            return
        best: dict[int, float] = {}
        for number in range(asked.rounds + 1):  # the first compiles the kernels
            for workers in (1, 2):
                shutil.rmtree(out, ignore_errors=True)
                ledger = root / f"ledger-{number}-{workers}"
                wall, user = run("apply", plan, "-j", workers, "--threads", 1, "--ledger", ledger)
                if number:
                    best[workers] = min(wall, best.get(workers, wall))
                    rate = total / wall / 2**20
                    print(f"{workers} worker(s): {wall:.1f} s wall, {user:.1f} s user CPU, {rate:.1f} MiB/s")
        print(f"two workers do {best[1] / best[2]:.2f} times the work of one")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
