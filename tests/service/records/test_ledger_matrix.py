"""Every question to the ledger against every fault, as `ledger_matrix.txt` has it.

A fault befalls one transaction, or all from the first of its stage on, until the rerun.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ggferry.service.records.ledger import Ledger
from helpers.archive_tools import planned
from helpers.fault_cells import LEDGERS, Cell, read_cells
from helpers.faulty_runs import Workers, ggferry, hurried
from helpers.hf_llama import hf_llama

STAGES = {"claim": "claim", "bind": "bind", "confirm": "confirm", "finish": "finish", "renewal": "beat"}
FAULTS = ("cut", "slow", "403", "404", "429", "500", "wrong", "vanished", "changed", "killed")
MESSAGES = {
    "403": "attempt to write a readonly database",
    "404": "no such table: ggferry_jobs",
    "429": "database is locked",
    "500": "disk I/O error",
    "cut": "the connection ended",
}
TABLE = Path(__file__).with_name("ledger_matrix.txt")
DAMAGED = "database disk image is malformed"


KILL = """
import os, sys, threading, time
from ggferry.service.cli import app as cli
from ggferry.service.records.ledger import Ledger
written = threading.Event()

def confirm(*_):
    written.set()
    time.sleep(20)  # at work until its lease is to be renewed

def die(*_, **__):
    if sys.argv[1] == "beat":
        written.wait(20)
    os.kill(os.getpid(), 9)

Ledger.confirm = confirm
setattr(Ledger, sys.argv[1], die)
sys.exit(cli._run(sys.argv[2:]))
"""


def cells() -> list[Cell]:
    return read_cells(TABLE, LEDGERS)


class Trouble:
    """`fault` in the transactions of `stage`: the first, or all of any stage from then on (`lasting`)."""

    def __init__(self, patch: pytest.MonkeyPatch, stage: str, fault: str, lasting: bool) -> None:
        self.fault, self.lasting = fault, lasting
        self.here, self.whole = threading.local(), Ledger.transaction
        self.begun, self.struck = threading.Event(), threading.Event()
        asked = getattr(Ledger, STAGES[stage])
        confirm = Ledger.confirm

        def staged(ledger: Ledger, *arguments: Any, **named: Any) -> Any:
            self.here.stage = True
            try:
                return asked(ledger, *arguments, **named)
            finally:
                self.here.stage = False

        def later(ledger: Ledger, *arguments: Any) -> Any:
            self.struck.wait(10)  # the job is at work until its lease was to be renewed
            return confirm(ledger, *arguments)

        patch.setattr(Ledger, STAGES[stage], staged)
        if stage == "renewal":
            patch.setattr(Ledger, "confirm", later)
        patch.setattr(Ledger, "transaction", lambda ledger: self._transaction(ledger))

    def _befalls(self) -> bool:
        mine = getattr(self.here, "stage", False)
        now = (mine or (self.lasting and self.begun.is_set())) and (self.lasting or not self.begun.is_set())
        if now:
            self.begun.set()
        return now

    @contextmanager
    def _transaction(self, ledger: Ledger) -> Iterator[Any]:
        befalls = self._befalls()
        try:
            if befalls:
                self._before(ledger)
            with self.whole(ledger) as connection:
                yield connection
            if befalls and self.fault == "cut":
                raise sa.exc.OperationalError("COMMIT", {}, Exception(MESSAGES["cut"]))
        finally:
            if befalls:
                self.struck.set()

    def _before(self, ledger: Ledger) -> None:
        match self.fault:
            case "slow":
                time.sleep(0.2)
            case "403" | "404" | "429" | "500":
                raise sa.exc.OperationalError("", {}, Exception(MESSAGES[self.fault]))
            case "wrong":
                raise sa.exc.DatabaseError("", {}, Exception(DAMAGED))
            case "vanished" | "changed":
                self._take(ledger)

    def _take(self, ledger: Ledger) -> None:
        """The job's row is gone, or somebody else's."""
        jobs = ledger.jobs
        theirs = {
            "owner": "elsewhere/1:1:1",
            "claims": jobs.c.claims + 1,
            "state": "running",
            "lease_until": time.time() + 3,
        }
        with self.whole(ledger) as connection:
            connection.execute(jobs.delete() if self.fault == "vanished" else sa.update(jobs).values(**theirs))


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    found = Workers()
    yield found
    found.end()


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledgers")
    return planned(hf_llama(folder / "m"), folder / "to", folder / "plan.jsonl")


def command(plan: Path, ledger: Path) -> list[str]:
    options = ("-j", 1, "--threads", 1, "--attempts", 1, "--lease", 1, "--report", f"{ledger}.report")
    return [str(word) for word in ("apply", plan, "--ledger", ledger, *options)]


def run(cell: Cell, plan: Path, ledger: Path, patch: pytest.MonkeyPatch) -> int:
    """The exit code of a run that the fault befalls."""
    if cell.fault == "killed":
        words = [sys.executable, "-c", KILL, STAGES[cell.stage], *command(plan, ledger)]
        return subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode
    trouble = Trouble(patch, cell.stage, cell.fault, cell.often == "lasting")
    code = ggferry(*command(plan, ledger))
    assert trouble.begun.is_set(), "the stage was not reached"
    return code


def left(plan: Path) -> str:
    """What is in the destination, in words."""
    kinds = {".gguf": "output", ".json": "receipt"}
    dest = plan.parent / "to"
    names = sorted(dest.iterdir()) if dest.exists() else []
    return ", ".join("partial" if ".partial" in each.name else kinds[each.suffix] for each in names) or "nothing"


def state(ledger: Path) -> str:
    book = Ledger(str(ledger))
    rows = book.rows(full=False)
    book.close()
    return ", ".join(row["state"] for row in rows) or "none"


def owners(ledger: Path) -> set[str]:
    book = Ledger(str(ledger))
    rows = book.rows(full=False)
    book.close()
    return {row["owner"] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells(), ids=str)
def test_a_fault_of_the_ledger(
    cell: Cell, plan: Path, workers: Workers, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(plan.parent / "to", ignore_errors=True)
    ledger = tmp_path / "ledger"
    with hurried(workers) as patch:
        code = run(cell, plan, ledger, patch)
    said = "".join(capfd.readouterr())
    assert state(ledger) in cell.state.split("/") and (str(code) == cell.code and left(plan) in cell.left.split("/")), (
        said
    )
    assert cell.words in said and "internal" not in said, said
    with hurried(workers) as patch:
        gone = owners(ledger)  # the run before was of this very process
        patch.setattr("ggferry.service.records.ledger.is_dead", lambda owner: owner in gone)
        more = ["--retry-failed"] if cell.rerun == "retry-failed" else []
        assert ggferry(*command(plan, ledger), *more) == 0
    assert (state(ledger), left(plan)) == ("done", "output, receipt")


def test_no_combination_is_left_out() -> None:
    assert {(cell.stage, cell.fault) for cell in cells()} == {(stage, fault) for stage in STAGES for fault in FAULTS}
