"""What a stopped or killed `apply` leaves behind: nothing, or what it says; and what the next run removes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ggferry.formats.files.partial_names import partial_path
from ggferry.formats.packed.scratch import LOCK, PREFIX
from ggferry.service.apply.job import Settings, run_job
from ggferry.service.records.ledger import QUARANTINED, Job
from ggferry.service.records.plan_file import read_plan
from ggferry.service.workers.supervisor import Limits, Supervisor
from ggferry.support.progress import Phase
from helpers.archive_tools import GGFERRY, command, plan, rows, write
from helpers.builders import Llama
from helpers.processes import below

pytestmark = pytest.mark.attack


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    for seed in range(4):
        write(tmp_path / "in" / f"{seed}.bin", Llama(seed=seed))
    path = tmp_path / "plan.jsonl"
    plan(tmp_path / "in", path, "--dest", tmp_path / "out", "-j", "1", "--no-digest")
    return path


def partials(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "out").rglob("*") if path.name.endswith(".partial")]


@contextmanager
def writing(path: Path, tmp_path: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """`apply` at the moment when an unfinished output stands there."""
    run = subprocess.Popen(
        [*GGFERRY, "apply", path, "-j", "2", "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **options,
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "out").exists() or not partials(tmp_path):
            assert run.poll() is None and time.monotonic() < deadline, run.communicate()
            time.sleep(0.005)
        yield run
    finally:
        if run.poll() is None:
            run.kill()
        run.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    "signals", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGINT] * 3, [signal.SIGTERM, signal.SIGTERM]]
)
def test_a_stopped_run_leaves_nothing_and_says_so(signals: list[int], planned: Path, tmp_path: Path) -> None:
    with writing(planned, tmp_path) as run:
        workers = [pid for pid, arguments in below(run.pid).items() if "ggferry.service.workers.process" in arguments]
        for number in signals:
            run.send_signal(number)
            time.sleep(0.03)
        _, errors = run.communicate(timeout=30)
    assert run.returncode == 130, errors
    assert not partials(tmp_path) and "stopped: nothing unfinished was left behind" in " ".join(errors.split())
    assert workers and not any(os.path.exists(f"/proc/{pid}") for pid in workers)
    assert {row["state"] for row in rows(f"{planned}.ledger").values()} <= {"queued", "done"}


@pytest.mark.slow
def test_what_a_killed_run_left_is_removed_by_the_next(planned: Path, tmp_path: Path) -> None:
    with writing(planned, tmp_path) as run:
        run.kill()
        run.wait()
    command("apply", planned, "-j", "2", "--threads", "1")
    assert not partials(tmp_path) and len(list((tmp_path / "out").glob("*.gguf"))) == 4


def left_behind(target: Path, token: str) -> list[Path]:
    """What a writer of `target` that was killed leaves: an output and the receipt claimed with it."""
    target.parent.mkdir(exist_ok=True)
    made = [Path(partial_path(str(target) + more, token)) for more in ("", ".receipt.json")]
    for path in made:
        path.write_bytes(b"unfinished")
    return made


@pytest.mark.slow
def test_leftovers_of_finished_jobs_and_of_no_one_else_are_removed(planned: Path, tmp_path: Path) -> None:
    command("apply", planned, "-j", "2", "--threads", "1")
    ours = left_behind(tmp_path / "out" / "0.gguf", "0" * 16)
    strangers = left_behind(tmp_path / "out" / "other.gguf", "1" * 16)
    living = left_behind(tmp_path / "out" / "1.gguf", "2" * 16)
    with living[0].open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        command("apply", planned, "-j", "1")
    assert not any(path.exists() for path in ours)
    assert all(path.exists() for path in (*strangers, *living))


def test_what_a_killed_worker_left_is_removed_by_its_coordinator(planned: Path, tmp_path: Path) -> None:
    head, entries = read_plan(str(planned))
    entry = {**asdict(entries[0]), "recipe": entries[0].recipe(head)}
    seen: list[str] = []

    class LedgerClient:
        def key(self, job: Job, key: str) -> str | None:
            return None

        def verifying(self, job: Job) -> None: ...
        def confirm(self, job: Job) -> None: ...

        def event(self, job: Job, event: Any) -> None:
            if event["event"] == "stage" and event["title"] == Phase.VERIFYING:
                seen.extend(partials(tmp_path))
                assert supervisor.pid is not None
                os.kill(supervisor.pid, signal.SIGKILL)

    with Supervisor(Limits(threads=1)) as supervisor:
        outcome = run_job(Job("0" * 32, entry, 1, "me"), supervisor, LedgerClient(), Settings(attempts=1))
    assert outcome.state == QUARANTINED and outcome.error is not None and outcome.error["class"] == "WorkerDied"
    assert seen and not partials(tmp_path)


@pytest.mark.slow
def test_temporary_folders_of_the_dead_are_removed_wherever_they_are(planned: Path, tmp_path: Path) -> None:
    """Below --scratch, and below the system's folder, which workers use too."""
    scratch, system = tmp_path / "scratch", tmp_path / "system"
    dead, alive = [], []
    for parent in (scratch, system):
        parent.mkdir()
        for kind in (dead, alive):
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            (folder / LOCK).write_bytes(b"")
            (folder / "block").write_bytes(b"of a model")
            kind.append(folder)
    held = [(folder / LOCK).open("r+b") for folder in alive]
    try:
        for file in held:
            fcntl.flock(file, fcntl.LOCK_EX)
        command("apply", planned, "-j", "1", "--scratch", scratch, TMPDIR=str(system))
    finally:
        for file in held:
            file.close()
    assert not any(folder.exists() for folder in dead) and all(folder.exists() for folder in alive)
