"""The commands of archives, which work in several processes: each of their calls is interfered with, too.

Coordinator and workers load the shim and count together. Several archives are worked on side by side (`Lanes`): most of
a point is waiting, for a lease to end or for the next try of a job.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from faults.interference import VARIABLE, Fault, create, shared

from helpers.builders import Llama

EXISTS, SLOW = 7, 120
STOPS = (0, 1, 3)
"""What a command of an archive ends with when something went wrong that it has words for: a model failed, no access."""
MODELS = 2
SIDE_BY_SIDE = 6
Popen = Callable[..., Any]
"""subprocess.Popen or launcher.Launcher.popen."""
_TIMES = re.compile(rb'("(?:seconds|when|date|started|finished|at)[a-z_]*": )[^,}\n]*')


@dataclass(frozen=True)
class Command:
    """A command of an archive.

    Attributes:
        words: Its arguments; `@` stands for the folder.
        before: Commands that run first, undisturbed.
        deletes: Whether sources go when their outputs are proved.
    """

    words: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = field(default=())
    deletes: bool = False


PLAN = ("plan", "@/in", "-o", "@/plan.jsonl", "--dest", "@/out", "-j", "1", "--verify", "fast", "--outtype", "q8_0")
APPLY = ("apply", "@/plan.jsonl", "-j", "2", "--threads", "1", "--lease", "2", "--patience", "1")
COMMANDS = {
    "plan": Command(PLAN),
    "apply": Command(APPLY, (PLAN,)),
    "apply-delete-source": Command((*APPLY, "--delete-source", "--yes"), (PLAN,), deletes=True),
    "apply-ray": Command((*APPLY, "--engine", "ray"), (PLAN,)),
    "recheck": Command(("ledger", "recheck", "@/plan.jsonl.ledger"), (PLAN, APPLY)),
}


class Archive:
    """One command, in a folder of its own; `popen` starts it."""

    def __init__(self, name: str, library: Path, work: Path, popen: Popen = subprocess.Popen) -> None:
        self.command, self.folder, self.clean = COMMANDS[name], work / "d", work / "clean"
        self.said, self.popen = work / "said", popen
        create(work / "orders")
        self.environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            VARIABLE: str(work / "orders"),
            "TMPDIR": str(work / "tmp"),
        }
        self.orders = shared(work / "orders")
        self.orders.folder = os.fsencode(f"{self.folder}/")
        (work / "tmp").mkdir()
        self._make()
        code, said = self.run(None, 0)
        assert code == 0, said
        self.after = self.outputs()

    def calls(self, fault: Fault) -> int:
        """Return how many calls of an undisturbed run a fault can change."""
        self.lay()
        code, said = self.run(fault, 0)
        assert code == 0, said
        return int(self.orders.count)

    def _make(self) -> None:
        """What lies there before the command runs, kept to be laid out again."""
        (self.folder / "in").mkdir(parents=True)
        for seed in range(MODELS):
            Llama(seed=seed, kind="F16", version=1).write(self.folder / "in" / f"{seed}.bin")
        self.sources = digests(self.folder / "in")
        for words in self.command.before:
            code, said = self._run(words)
            assert code == 0, said
        shutil.copytree(self.folder, self.clean)

    def lay(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.clean, self.folder)

    def run(self, fault: Fault | None, at: int) -> tuple[int, str]:
        """Run the command; return its exit code, and what it said."""
        self.orders.begin(fault, at)
        self.orders.armed = 1
        try:
            return self._run(self.command.words)
        finally:
            self.orders.armed = 0

    def _run(self, words: tuple[str, ...]) -> tuple[int, str]:
        arguments = [sys.executable, "-m", "ggferry", *(word.replace("@", str(self.folder)) for word in words)]
        with self.said.open("wb") as said:
            child = self.popen(
                arguments, env=self.environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            return int(child.wait(timeout=SLOW)), self.said.read_text(errors="replace").strip()
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return 99, f"still running after {SLOW} seconds: {self.said.read_text(errors='replace')}"

    def outputs(self) -> dict[str, str]:
        """The digests of what has a final name: outputs, and receipts without times."""
        return digests(self.folder / "out") if (self.folder / "out").exists() else {}

    def point(self, fault: Fault, at: int) -> list[str]:
        """Interfere with call number `at`, check what is left, run the command again, and check again."""
        self.lay()
        code, said = self.run(fault, at)
        wrong = [*self._of_sources(), *self._of_names()]
        if code not in STOPS and not (fault.kills and code == -signal.SIGKILL):
            wrong.append(f"ended with {code}")
        deadline = time.monotonic() + SLOW
        again, then = self.run(None, 0)
        while again == 1 and "another run" in then and time.monotonic() < deadline:
            again, then = self.run(None, 0)
        if again == 1 and "--retry-failed" in then and fault.error == errno.EPERM:  # a person puts that right
            again, then = self._run((*self.command.words, "--retry-failed"))
        if again not in (0, EXISTS):
            wrong.append(f"run again it ends with {again}: {then[-300:]}")
        wrong += [*self._of_sources(finished=True), *self._unlike_the_end(), *self._left_over()]
        return [f"{fault.name} {at}: {problem} [{code}: {said[-300:]}]" for problem in wrong]

    def _of_sources(self, finished: bool = False) -> list[str]:
        """A source is as it was, or gone where that was asked for and its output is whole."""
        found, outputs = digests(self.folder / "in"), self.outputs()
        changed = [f"the source {name} changed" for name in found if found[name] != self.sources[name]]
        lost = [name for name in self.sources if name not in found and not self._is_made(name, outputs)]
        kept = [name for name in found if finished and self.command.deletes]
        return [*changed, *(f"the source {n} is gone" for n in lost), *(f"{n} was not deleted" for n in kept)]

    def _is_made(self, source: str, outputs: dict[str, str]) -> bool:
        own = [name for name in self.after if name.startswith(Path(source).stem)]
        return self.command.deletes and len(own) == 2 and all(outputs.get(name) == self.after[name] for name in own)

    def _of_names(self) -> list[str]:
        strange = [name for name, digest in self.outputs().items() if self.after.get(name) != digest]
        return [f"{name} holds other bytes than those of an undisturbed run" for name in strange]

    def _unlike_the_end(self) -> list[str]:
        found = self.outputs()
        return [f"{name} is missing or differs" for name in self.after if found.get(name) != self.after[name]]

    def _left_over(self) -> list[str]:
        hidden = [path for path in self.folder.rglob(".*") if "lock" not in path.name]
        return [f"{path.relative_to(self.folder)} is left over" for path in hidden]


def digests(folder: Path) -> dict[str, str]:
    """The digest of every file by its name below a folder; of a receipt, without times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            data = path.read_bytes()
            found[str(path.relative_to(folder))] = hashlib.blake2b(_TIMES.sub(rb"\1", data)).hexdigest()
    return found


class Interfered(Protocol):
    """What has calls that a fault can change: an archive, an upload."""

    def calls(self, fault: Fault) -> int: ...
    def point(self, fault: Fault, at: int) -> list[str]: ...


class Lanes:
    """Folders side by side in which the calls of one scenario are interfered with; `make` lays out each.

    They serve every fault: what lies there before the command runs is made once.
    """

    def __init__(self, scenario: str, work: Path, make: Callable[[Path], Interfered]) -> None:
        self.scenario, self.work, self.make = scenario, work, make
        self.lanes: list[Interfered] = []

    def _lane(self, number: int) -> Interfered:
        while len(self.lanes) <= number:
            folder = self.work / f"{len(self.lanes)}"
            folder.mkdir(parents=True)
            self.lanes.append(self.make(folder))
        return self.lanes[number]

    def sweep(self, fault: Fault, points: slice = slice(None)) -> dict[str, Any]:
        """Interfere with the calls `points`; return how many there were, and what was wrong."""
        started = time.monotonic()
        calls = self._lane(0).calls(fault)
        chosen = range(1, calls + 1)[points]
        many = min(SIDE_BY_SIDE, max(1, len(chosen) // 3))
        lanes, left, wrong = [self._lane(number) for number in range(many)], iter(chosen), list[str]()

        def work(lane: Interfered) -> None:
            for at in left:
                wrong.extend(lane.point(fault, at))

        with ThreadPoolExecutor(many) as pool:
            for done in [pool.submit(work, lane) for lane in lanes]:
                done.result()
        facts = {"scenario": self.scenario, "fault": fault.name, "calls": calls, "points": len(chosen)}
        return {**facts, "seconds": round(time.monotonic() - started, 1), "wrong": wrong}


def lanes_of(name: str, library: Path, work: Path, popen: Popen = subprocess.Popen) -> Lanes:
    """Return where a command of COMMANDS is swept."""
    return Lanes(name, work, lambda folder: Archive(name, library, folder, popen))


def main(arguments: Sequence[str]) -> None:
    """python -m faults.archives COMMAND,… FAULT,… LIBRARY WORK [EVERY [FROM]]; `upload` is a command, too."""
    from faults import uploads
    from faults.interference import FAULTS
    from faults.launcher import Launcher

    names, faults, library, work, *more = arguments
    every, begin = [*map(int, more), *(1, 0)[len(more) :]]
    Path(work).mkdir()
    launcher = Launcher(Path(library), Path(work))
    for name in names.split(","):
        given = Path(library), Path(work, name), launcher.popen
        lanes = uploads.lanes(*given) if name == "upload" else lanes_of(name, *given)
        for fault in faults.split(","):
            print(json.dumps(lanes.sweep(FAULTS[fault], slice(begin, None, every))), flush=True)
    launcher.close()


if __name__ == "__main__":
    main(sys.argv[1:])
