"""The commands of archives, which work in several processes: each of their calls is interfered with, too.

Unlike sweep.py this starts the command anew for every point: coordinator and workers load the shim and count together.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.interference import VARIABLE, Fault, create, shared

from helpers.builders import Llama

EXISTS, SLOW = 7, 120
STOPS = (0, 1, 3)
"""What a command of an archive ends with when something went wrong that it has words for: a model failed, no access."""
MODELS = 2
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
    """One command, in a folder of its own."""

    def __init__(self, name: str, library: Path, work: Path) -> None:
        self.command, self.folder, self.clean = COMMANDS[name], work / "d", work / "clean"
        self.file = work / "orders"
        create(self.file)
        self.environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            VARIABLE: str(self.file),
            "TMPDIR": str(work / "tmp"),
        }
        os.environ[VARIABLE] = str(self.file)
        self.orders = shared()
        self.orders.folder = os.fsencode(f"{self.folder}/")
        (work / "tmp").mkdir()
        self._make()
        code, said = self.run(None, 0)
        assert code == 0, said
        self.calls = self.orders.count
        self.after = self.outputs()

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
        child = subprocess.Popen(
            arguments, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            said = child.communicate(timeout=SLOW)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return 99, f"still running after {SLOW} seconds: {child.communicate()[0].decode(errors='replace')}"
        return child.returncode, said.strip()

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


def sweep(name: str, fault: Fault, library: Path, work: Path, points: range | None = None) -> dict[str, Any]:
    """Interfere with the calls `points` of a command; return how many there were, and what was wrong."""
    archive = Archive(name, library, work)
    chosen = range(1, archive.calls + 1)[points.start :: points.step] if points else range(1, archive.calls + 1)
    started = time.monotonic()
    wrong = [problem for at in chosen for problem in archive.point(fault, at)]
    seconds = round(time.monotonic() - started, 1)
    facts = {"scenario": name, "fault": fault.name, "calls": archive.calls, "points": len(chosen), "seconds": seconds}
    return {**facts, "wrong": wrong}


def main() -> None:
    """python -m faults.archives COMMAND FAULT LIBRARY WORK [EVERY [FROM]]"""
    from faults.interference import FAULTS

    name, fault, library, work, *more = sys.argv[1:]
    every, begin = [*map(int, more), *(1, 0)[len(more) :]]
    found = sweep(name, FAULTS[fault], Path(library), Path(work), range(begin, 1 << 30, every))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
