"""How long `ggferry plan` takes over ten thousand files: python benchmarks/plan.py [--files 10000] [--jobs 2]

An archive of tiny models: GGML-era files of every container, a sixth of them copies of others, and four files that are
no models in each folder. Tiny models make the headers the whole work, as they are of large ones; vocabularies of 32,000
pieces take longer (`--vocabulary`).
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

from builders import Llama

ERAS = (("ggml", None, "F32"), ("ggmf", 1, "F16"), ("ggjt", 1, "F16"), ("ggjt", 3, "Q4_0"), ("ggjt", 3, "Q8_0"))


def build(root: Path, files: int, vocabulary: int) -> int:
    """Fill `root` with about `files` files; how many there are."""
    base = {
        era: bytearray(Llama(container=era[0], version=era[1], kind=era[2], n_vocab=vocabulary).bytes()) for era in ERAS
    }
    made = 0
    while made < files:
        folder = root / f"{made:06}"
        folder.mkdir(parents=True)
        for number, (era, data) in enumerate(base.items()):
            data[-8:-4] = made.to_bytes(4, "little")  # another model: the end of the last tensor
            for copy in range(1 + (number == 0)):
                (folder / f"{era[0]}-{number}-{copy}.bin").write_bytes(data)
                made += 1
        for name in ("README.md", "config.txt", "notes.txt", "picture.png"):
            (folder / name).write_text(f"{name} {made}\n")
            made += 1
    return made


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--files", type=int, default=10000)
    options.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--vocabulary", type=int, default=300)
    options.add_argument("--folder")
    asked = options.parse_args()
    root = Path(tempfile.mkdtemp(prefix="ggferry-bench-", dir=asked.folder))
    try:
        files = build(root / "in", asked.files, asked.vocabulary)
        plan = root / "plan.jsonl"
        start = time.monotonic()
        command = [sys.executable, "-m", "ggferry", "plan", root / "in", "-o", plan, "-j", str(asked.jobs), "--json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        wall, used = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        verdicts = json.loads(done.stdout)["verdicts"]
        print(f"{files} files, {verdicts}: {wall:.1f} s wall, {used.ru_utime:.1f} s user CPU, {asked.jobs} processes")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
