"""Fuzz every target for a budget of time or of cases, and say what was reached: `make fuzz`.

A target that ends early (libFuzzer stops at a hang, at too much memory, or when the process dies) is started again
until its budget is spent. The corpus grows in .fuzz/corpus, so that the next run goes on; finds lie in .fuzz/finds.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import re
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SLOW = 20  # seconds; how much memory: `fuzz.one`
CASES = {"reader": 2_000_000, "tool": 100_000}
_DONE = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_COVERAGE = re.compile(r"cov: (\d+)")


def main() -> int:
    """Return 1 where anything was found."""
    options = _options()
    sys.path.insert(0, str(ROOT / "tests"))
    from fuzz.targets import TARGETS

    chosen = [TARGETS[name] for name in options.targets or TARGETS]
    report: dict[str, dict[str, int]] = _known(options.home / "report.json")
    for target in chosen:
        cases = CASES[target.kind] if options.whole else options.cases
        done, coverage, seconds = fuzz(target.name, options.home, options.seconds, cases)
        row = report.setdefault(target.name, {"cases": 0, "coverage": 0, "seconds": 0, "finds": 0})
        row["cases"] += done
        row["seconds"] += int(seconds)
        row["coverage"] = max(coverage, row["coverage"])
        row["finds"] = len(found(options.home, target.name))
        (options.home / "report.json").write_text(json.dumps(report, indent=1))
        print(
            f"{target.name:<14} {done:>10,} cases  {coverage:>6} edges  {seconds:>6.0f} s  {row['finds']} finds",
            flush=True,
        )
    return int(any(report[target.name]["finds"] for target in chosen))


def fuzz(name: str, home: Path, seconds: float, cases: int, seed: int = 0) -> tuple[int, int, float]:
    """Fuzz a target; return the cases that were done, the most edges covered, and the seconds it took.

    `seed`: of the mutations; 0 for another one each time.
    """
    corpus, finds = home / "corpus" / name, home / "finds" / name
    for folder in (corpus, finds):
        folder.mkdir(parents=True, exist_ok=True)
    done, coverage, begun = 0, 0, time.monotonic()
    while done < cases and (left := seconds - (time.monotonic() - begun)) > 1:
        limits = [f"-max_total_time={int(left)}", f"-runs={cases - done}", f"-timeout={SLOW}"]
        limits.append(f"-seed={seed}")
        said = _run(home / f"{name}.log", name, str(corpus), str(finds), *limits, "-print_final_stats=1")
        counted = _DONE.findall(said)
        if not counted:
            raise SystemExit(f"{name} did not run: {said[-2000:]}")
        done += int(counted[-1])
        coverage = max([coverage, *map(int, _COVERAGE.findall(said))])
    return done, coverage, time.monotonic() - begun


@cache
def _server() -> subprocess.Popen[str]:
    """Return the process of `fuzz.one` that serves all targets of this one."""
    command, pipe = [sys.executable, "-m", "fuzz.one"], subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=ROOT / "tests", env=_environment(), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    )
    atexit.register(process.communicate)  # its input ends, and it does
    return process


def _run(log: Path, *arguments: str) -> str:
    """Have a target fuzzed; return what was said."""
    log.unlink(missing_ok=True)
    server = _server()
    assert server.stdin and server.stdout
    print(json.dumps([str(log.absolute()), *arguments]), file=server.stdin, flush=True)
    if not server.stdout.readline():
        raise SystemExit("the process that fuzzes has ended")
    return log.read_text(errors="replace")


def found(home: Path, name: str) -> list[Path]:
    """Return the finds of a target: cases of ours, and libFuzzer's (timeout-…, oom-…, crash-…)."""
    return sorted(path for path in (home / "finds" / name).iterdir() if path.suffix != ".txt")


def _environment() -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**os.environ, **threads, "TOKENIZERS_PARALLELISM": "false"}


def _known(path: Path) -> dict[str, dict[str, int]]:
    return json.loads(path.read_text()) if path.exists() else {}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=float, default=60, help="of each target, at most")
    parser.add_argument("--cases", type=int, default=1 << 40, help="of each target, at most")
    parser.add_argument("--whole", action="store_true", help="2,000,000 cases a reader, 100,000 a tool")
    parser.add_argument("--home", type=Path, default=ROOT / ".fuzz")
    options = parser.parse_args()
    if options.whole:
        options.seconds = float("1e9")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
