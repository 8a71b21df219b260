"""Run a command again and again, interfere with another call each time, and check what is left. LD_PRELOADed.

Usage: python sweep.py SCENARIO MATERIAL WORK [FAULT…] [--every N] [--from N]

Every run is a fork of a process that has loaded the command already. It prints a JSON object a fault: how many calls
the command makes, how many points were tried, and what was found wrong, a line each.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from faults.interference import FAULTS, KINDS, Fault, Orders, shared  # noqa: E402
from faults.scenarios import SCENARIOS, Scenario  # noqa: E402

EXISTS, INTERNAL, SLOW = 7, 70, 120
State = dict[str, str]
"""Name below the folder → digest of its bytes."""


def state_of(folder: Path, claims: bool = False) -> State:
    """Return what lies in a folder; with `claims`, without empty files and folders, which only keep a name."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in files:
            path = Path(root, name)
            if path.stat().st_size == 0 and claims:
                continue
            found[str(path.relative_to(folder))] = hashlib.blake2b(path.read_bytes()).hexdigest()
        empty = (name for name in folders if not claims and not os.listdir(Path(root, name)))
        found |= {f"{Path(root, name).relative_to(folder)}/": "" for name in empty}
    return found


def is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


class Sweep:
    """One scenario, in a folder of its own."""

    def __init__(self, scenario: Scenario, material: Path, work: Path, orders: Orders) -> None:
        self.scenario, self.material, self.orders = scenario, material, orders
        self.folder, self.said = work / "d", work / "said.txt"
        self.modules = work / "modules.txt"
        self.wrong: list[str] = []
        orders.armed, orders.folder = 0, os.fsencode(f"{self.folder}/")

    def prepare(self) -> None:
        """Learn what the command makes of the folder where nothing interferes, and load what it loads."""
        self.lay()
        self.before = state_of(self.folder)
        log = self.folder.with_name("calls.txt")
        log.write_text("")
        self.orders.log = os.fsencode(log)
        code, said = self.run(None, 0)
        self.orders.log = b""
        self.kinds = [KINDS[line.split()[1]] for line in log.read_text().splitlines()]
        self.after = state_of(self.folder)
        if code != 0:
            raise SystemExit(f"the command itself ends with {code}: {said}")
        for name in self.modules.read_text().split():
            if name.split(".")[0] in (
                "ggferry",
                "numpy",
                "numba",
                "llvmlite",
                "typer",
                "click",
                "blake3",
                "sqlalchemy",
            ):
                importlib.import_module(name)

    def lay(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.scenario.lay(self.material, self.folder)

    def run(self, fault: Fault | None, at: int) -> tuple[int, str]:
        """Run the command in a fork; return its exit code (negative: the signal that ended it) and what it said."""
        orders = self.orders
        orders.begin(fault, at)
        orders.no_flags = int(self.scenario.no_flags)
        child = os.fork()
        if child == 0:
            self._child()
        status = os.waitpid(child, 0)[1]
        orders.armed = 0
        return os.waitstatus_to_exitcode(status), self.said.read_text(errors="replace").strip()

    def _child(self) -> None:
        code = 99
        try:
            said = os.open(self.said, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
            os.dup2(said, 1)
            os.dup2(said, 2)
            signal.alarm(SLOW)
            os.chdir(self.folder)
            from ggferry.service.cli.app import _run

            self.orders.armed = 1
            code = _run([word.replace("@", str(self.folder)) for word in self.scenario.command])
            self.orders.armed = 0
            sys.stdout.flush()
            sys.stderr.flush()
            if self.orders.at == 0:
                self.modules.write_text("\n".join(sys.modules))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def points(self, fault: Fault) -> list[int]:
        """The calls to interfere with, counted among those that the fault can change."""
        return [*range(1, 1 + sum(not fault.counted or bool(fault.counted & kind) for kind in self.kinds))]

    # --- what must hold -----------------------------------------------------------------------------------------

    def point(self, fault: Fault, at: int) -> None:
        """Interfere with call number `at`, check what is left, run the command again, and check again."""
        self.lay()
        code, said = self.run(fault, at)
        found = state_of(self.folder, claims=self.scenario.no_flags and fault.kills)
        problems = [*self._of_sources(found), *self._of_names(found)]
        if code == INTERNAL or code == 99 or (code < 0 and not fault.kills):
            problems.append(f"ended with {code}")
        if not fault.kills:
            problems += self._all_or_nothing(found)
        if code == 0:
            problems += [f"exit code 0, and {each}" for each in self._unlike_the_end(found, hidden=False)]
        else:
            again, then = self.run(None, 0)
            if again not in (0, EXISTS):
                problems.append(f"run again it ends with {again}: {then[-300:]}")
            problems += [
                f"after another run {each}" for each in self._unlike_the_end(state_of(self.folder), hidden=True)
            ]
        self.wrong += [f"{fault.name} {at}: {problem} [{code}: {said[-200:]}]" for problem in problems]

    def _of_sources(self, found: State) -> list[str]:
        kept = (name for name in self.before if name not in self.scenario.replaced)
        return [f"the source {name} changed" for name in kept if found.get(name) != self.before[name]]

    def _of_names(self, found: State) -> list[str]:
        """No name holds anything but what was there before or what the finished command leaves there."""
        known = {name: {self.before.get(name), self.after.get(name)} for name in found}
        strange = [name for name in found if not is_hidden(name) and found[name] not in known[name]]
        problems = [
            f"{name} holds neither the old nor the new bytes" for name in strange if not self._is_journaled(name)
        ]
        first = self.scenario.first
        if first in found:
            problems += self._mixed(found, first)
        return [*problems, *self._wrong_receipts(found)]

    def _is_journaled(self, name: str) -> bool:
        """Whether an edit in place marked the file as unfinished: no loader takes it (docs/edit-split-merge.md)."""
        path = self.folder / name
        if name.endswith("-journal"):
            return True
        beside = path.with_name(f"{path.name}.ggferry-journal")
        return beside.exists() and path.read_bytes()[:4] in (b"gguf", b"GGUF") and "--in-place" in self.scenario.command

    def _mixed(self, found: State, first: str) -> list[str]:
        generation = self.after if found[first] == self.after[first] else self.before
        others = [name for name in self.scenario.replaced if name.endswith(".gguf") and name in found]
        return [f"{first} and {name} are of two models" for name in others if found[name] != generation.get(name)]

    def _wrong_receipts(self, found: State) -> list[str]:
        """No receipt stands beside a file that it does not describe."""
        problems = []
        for name in found:
            output = name.removesuffix(".receipt.json")
            if output == name or is_hidden(name) or output not in found or self._is_journaled(output):
                continue
            states = [state for state in (self.before, self.after) if state.get(name) == found[name]]
            if not any(state.get(output) == found[output] for state in states):
                problems.append(f"{name} describes other bytes")
        return problems

    def _all_or_nothing(self, found: State) -> list[str]:
        """After an error, or none, either all is as before or all is as it should be."""
        seen = {name: digest for name, digest in found.items() if not is_hidden(name) and name[-1] != "/"}
        journals = any(name.endswith(".ggferry-journal") for name in seen)
        pending = any(".publication.ggferry-" in name for name in found)
        waiting = {
            f"{name.split('.')[1]}/{name.partition('/')[2]}": digest
            for name, digest in found.items()
            if ".older.ggferry-" in name
        }
        if waiting and waiting.items() >= {name: self.before[name] for name in self.scenario.replaced}.items():
            return []  # two renames replace a folder where none exchanges two, and all behind the first failed
        if journals or pending or seen in (self._seen(self.before), self._seen(self.after)):
            return []
        changed = {name for name in {*seen, *self.before} if seen.get(name) != self.before.get(name)}
        return [f"after an error some names are new and some are old: {sorted(changed)}"]

    @staticmethod
    def _seen(state: State) -> State:
        return {name: digest for name, digest in state.items() if name[-1] != "/"}

    def _unlike_the_end(self, found: State, *, hidden: bool) -> list[str]:
        names = sorted(name for name in {*found, *self.after} if found.get(name) != self.after.get(name))
        return [f"{name} {self._fault_of(name, found)}" for name in names if hidden or not is_hidden(name)]

    def _fault_of(self, name: str, found: State) -> str:
        if name not in self.after:
            return "is left over"
        return "has other bytes" if name in found else "is missing"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", choices=sorted(SCENARIOS))
    parser.add_argument("material", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("faults", nargs="*", default=list(FAULTS))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--from", dest="begin", type=int, default=1)
    parser.add_argument("--until", type=int, default=1 << 30)
    given = parser.parse_args(arguments)
    given.work.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = str(given.work)
    orders = shared()
    sweep = Sweep(SCENARIOS[given.scenario], given.material, given.work, orders)
    sweep.prepare()
    for name in given.faults:
        started, sweep.wrong = time.monotonic(), []
        points = [at for at in sweep.points(FAULTS[name]) if given.begin <= at <= given.until][:: given.every]
        for at in points:
            sweep.point(FAULTS[name], at)
        seconds = round(time.monotonic() - started, 1)
        facts = {"scenario": given.scenario, "fault": name, "calls": len(sweep.kinds), "points": len(points)}
        print(json.dumps({**facts, "seconds": seconds, "wrong": sweep.wrong}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
