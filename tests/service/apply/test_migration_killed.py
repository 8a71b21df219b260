"""kill -9 at random moments, of coordinators and workers: the end is the same, and no file lies.

Moments are random and the seed is printed; whatever they are, the end state must not depend on them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from blake3 import blake3

from ggferry.service.records.ledger import Ledger
from helpers.archive_tools import GGFERRY, command, plan, rows, spoil, write
from helpers.builders import Llama


@pytest.mark.slow
@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.kills)])
def test_killed_at_random_moments(kills: int, tmp_path: Path, fixtures: Path) -> None:
    seed = int(os.environ.get("GGFERRY_SEED") or random.SystemRandom().randrange(1 << 32))
    print("GGFERRY_SEED", seed)
    dice = random.Random(seed)
    root, dest, path = tmp_path / "in", tmp_path / "out", tmp_path / "plan.jsonl"
    states = spoil(root, fixtures, tmp_path / "canary")
    for number in range(12 * kills):  # more than is done between the kills
        write(root / "good" / f"{number}.bin", Llama(seed=number, kind="F16", version=1))
        states[f"good/{number}.bin"] = "done"
    plan(root, path, "--dest", dest, "-j", "2")
    ledger = f"{path}.ledger"
    killed = {"coordinator": 0, "worker": 0}
    order = ["coordinator", "worker", *dice.choices(["coordinator", "worker", "worker"], k=kills - 2)]
    run: subprocess.Popen[bytes] | None = None
    finished = False
    while sum(killed.values()) < kills and not finished:
        if run is None or run.poll() is not None:
            apply = [*GGFERRY, "apply", str(path), "-j", "2", "--threads", "1", "--attempts", "50"]
            run = subprocess.Popen(apply, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while not _children(run.pid) and run.poll() is None:
                time.sleep(0.01)
        time.sleep(dice.uniform(0.0, 1.0))
        whom = order[sum(killed.values())]
        victims = [run.pid] if whom == "coordinator" else _children(run.pid)
        if victims and run.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(dice.choice(victims), signal.SIGKILL)
                killed[whom] += 1
            if whom == "coordinator":
                run.wait()
        finished = run.poll() in (0, 1)
        _check_no_lies(dest)
    if run is not None and run.poll() is None:
        run.kill()
        run.wait()
    command("apply", path, "-j", "2", "--attempts", "50", code=1)
    print("killed", killed)
    assert sum(killed.values()) == kills and all(killed.values()), killed
    found = {os.path.relpath(source, root): row for source, row in rows(ledger).items()}
    assert {name: found[name]["state"] for name in states} == states
    _check_no_lies(dest)
    wanted = {Path(name).with_suffix(".gguf") for name, state in states.items() if state == "done"}
    assert {p.relative_to(dest) for p in dest.rglob("*.gguf")} == wanted
    assert not list(dest.rglob("*.partial")), "something was left lying about"
    book = Ledger(ledger)
    with book.engine.connect() as connection:
        tried = [tuple(row) for row in connection.execute(book.attempts.select())]
    done = [row[1] for row in tried if row[4] == "done"]
    assert len(done) == len(set(done)) == sum(state == "done" for state in states.values()), "a job was done twice"
    for row in book.rows(states=["done"]):
        assert len([t for t in tried if t[1] == row["id"] and t[4] == "done"]) == 1
    book.close()
    assert not (tmp_path / "canary").exists()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, tasks.read_text().split())
    return found


def _check_no_lies(dest: Path) -> None:
    """Whatever has a finished name has the bytes its receipt says."""
    for output in dest.rglob("*.gguf"):
        receipt = json.loads(Path(f"{output}.receipt.json").read_text())
        assert blake3(output.read_bytes()).hexdigest() == receipt["output"]["files"][0]["blake3"], output
