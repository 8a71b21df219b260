"""Measure what a start costs: processor time of whole processes, the least of many."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

FIXTURES = Path(__file__).parent.parent / "fixtures"
FILES = {
    "GGUF": "hf/out/llama/llama.q8_0.gguf",
    "GGJT v1": "legacy-llama/ggjt1-0.1.25/q4_0.bin",
    "safetensors": "hf/ckpt/llama",
    "PyTorch": "hf/ckpt/llama_bin_shards/pytorch_model-00005-of-00005.bin",
}


def main() -> None:
    """Print a row a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", default=str(Path(sys.executable).parent / "ggferry"))
    parser.add_argument("--runs", type=int, default=15)
    asked = parser.parse_args()
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "python -c 'import typer'": [sys.executable, "-c", "import typer"],
        "ggferry --help": [asked.command, "--help"],
    }
    for name, file in FILES.items():
        commands[f"ggferry inspect, {name}"] = [asked.command, "inspect", str(FIXTURES / file)]
    for name, command in commands.items():
        print(f"{name:<28} {1000 * min(_seconds(command) for _ in range(asked.runs)):4.0f} ms")


def _seconds(command: list[str]) -> float:
    """Return user and system seconds of one run."""
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {started.returncode}")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
