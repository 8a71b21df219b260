"""What a command costs: wall time with an fsync of what it writes, processor time, peak memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PREFIX = "ggferry-bench-"
# A process starts with the peak of the one it was forked from, so the measuring one must be small.
WRAPPER = """
import json, os, sys, time
start = time.perf_counter()
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
code = os.waitstatus_to_exitcode(status)
if not code:
    for name in json.loads(sys.argv[1]):
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
wall = time.perf_counter() - start
print(json.dumps([code, wall, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024]))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds and bytes of one command, or of several run after one another."""

    wall: float
    user: float
    system: float
    peak: int

    @property
    def processor(self) -> float:
        """User and system seconds."""
        return self.user + self.system

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.wall + other.wall, self.user + other.user, self.system + other.system, max(self.peak, other.peak)
        )

    def __str__(self) -> str:
        return f"{self.wall:8.2f} s wall {self.user:8.2f} s user {self.system:6.2f} s sys {self.peak >> 20:6} MiB peak"

    def against(self, peer: Cost) -> str:
        peak = self.peak / peer.peak
        return f"{peer.wall / self.wall:.2f} × faster, user CPU {peer.user / self.user:.2f} × less, peak {peak:.2f}"


def measure(targets: Path | Sequence[Path], *command: str | Path) -> Cost:
    """Run a command that writes files in this benchmark's own folder, which are removed first. Exits with what the
    command said where it fails."""
    names = [targets] if isinstance(targets, Path) else targets
    for target in names:
        assert target.parent.name.startswith(PREFIX), target
        target.unlink(missing_ok=True)
    words = [sys.executable, "-S", "-c", WRAPPER, json.dumps([str(name) for name in names]), *map(str, command)]
    with tempfile.TemporaryFile("w+") as log:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=log, text=True, check=True)
        code, *cost = json.loads(done.stdout.splitlines()[-1])
        if code:
            log.seek(0)
            raise SystemExit(f"{command} failed\n{done.stdout}{log.read()[-3000:]}")
    return Cost(*cost)


def best(costs: Sequence[Cost]) -> Cost:
    return min(costs, key=lambda cost: cost.wall)
