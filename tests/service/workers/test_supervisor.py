"""Whatever a worker does, its supervisor lives: crash, memory, time, and an environment with nothing to steal."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ggferry.formats.packed import scratch
from ggferry.formats.packed.scratch import Scratch, sweep
from ggferry.service.apply.job import Settings, run_job
from ggferry.service.records.ledger import QUARANTINED, Job
from ggferry.service.workers import supervisor as supervise
from ggferry.service.workers.supervisor import Limits, Supervisor, WorkerDied, WorkerFailed, WorkerTimeout
from ggferry.support.platform import here
from helpers import as_system
from helpers.archive_tools import TOKENS
from helpers.builders import Llama


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Llama().write(tmp_path / "a.bin")


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(Limits(), str(tmp_path)) as found:
        yield found


def analyze(model: Path) -> dict[str, object]:
    return {"op": "analyze", "source": str(model), "recipe": {}, "threads": 1}


def test_errors_come_back_and_the_worker_goes_on(supervisor: Supervisor, model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.bin"
    cut.write_bytes(model.read_bytes()[:-1])
    with pytest.raises(WorkerFailed) as failed:
        supervisor.run(analyze(cut))
    assert failed.value.error["class"] == "TruncatedError" and failed.value.error["path"] == str(cut)
    pid = supervisor.pid
    answer = supervisor.run(analyze(model))
    # Linux counts KiB where macOS counts bytes: as macOS, a peak is shown 1024 times too small
    assert answer.result["architecture"] == "llama" and answer.peak > (
        1 << 10 if as_system.current() == "macos" else 1 << 20
    )
    assert supervisor.pid == pid
    with pytest.raises(WorkerFailed) as failed:
        supervisor.run({"op": "nonsense"})
    assert failed.value.error["class"] == "InternalError"


def test_a_worker_sees_no_token(supervisor: Supervisor, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)
    supervisor.run(analyze(model))
    seen = Path(f"/proc/{supervisor.pid}/environ").read_bytes().decode()
    assert "never" not in seen and f"HOME={os.environ.get('HOME')}\0" not in seen
    names = {item.partition("=")[0] for item in seen.split("\0") if item}
    allowed = {*supervise.KEPT, *supervise.THREADS, *here.home_variables(""), *supervise.PLAIN}
    assert {name for name in names if not name.startswith("LC_")} <= allowed


def test_a_worker_that_is_killed_is_replaced(supervisor: Supervisor, model: Path) -> None:
    supervisor.run(analyze(model))
    os.kill(supervisor.pid or 0, signal.SIGKILL)
    supervisor._process.wait()  # type: ignore[union-attr]
    assert supervisor.run(analyze(model)).result["architecture"] == "llama"

    def kill() -> None:
        time.sleep(0.3)
        os.kill(supervisor.pid or 0, signal.SIGSEGV)
        os.kill(supervisor.pid or 0, signal.SIGCONT)

    thread = threading.Thread(target=kill)
    os.kill(supervisor.pid or 0, signal.SIGSTOP)
    thread.start()
    with pytest.raises(WorkerDied, match="SIGSEGV"):
        supervisor.run(analyze(model))
    thread.join()
    assert supervisor.run(analyze(model)).result["architecture"] == "llama"


@pytest.mark.slow
def test_a_silent_worker_is_ended(supervisor: Supervisor, model: Path) -> None:
    supervisor.run(analyze(model))
    pid = supervisor.pid or 0
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(WorkerTimeout):
        supervisor.run(analyze(model), timeout=0.5)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_memory_is_capped(tmp_path: Path, model: Path) -> None:
    """600 MB of vocabulary claims in one JSON object do not fit into a worker of 200 MB."""
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    vocabulary = json.dumps({f"token number {n:020}": n for n in range(1 << 20)})
    (folder / "config.json").write_text(vocabulary)
    with Supervisor(Limits(200 << 20), str(tmp_path)) as small:
        with pytest.raises((WorkerFailed, WorkerDied)) as failed:
            small.run(analyze(folder))
        if isinstance(failed.value, WorkerFailed):
            assert failed.value.error["class"] == ("OutOfMemory" if here.CAPS else "MissingError")
        assert small.run(analyze(model)).result["architecture"] == "llama"


def test_a_worker_ends_with_its_parent(tmp_path: Path, model: Path) -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:  # a parent that is killed while its worker is idle
        found = Supervisor(Limits(), str(tmp_path))
        found.run(analyze(model))
        os.write(write, str(found.pid).encode())
        time.sleep(60)
        os._exit(0)
    pid = int(os.read(read, 32))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 10
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(pid)
    os.close(read)
    os.close(write)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class LedgerClient:
    """A ledger that agrees to everything."""

    def key(self, job: Job, key: str) -> str | None:
        return None

    def verifying(self, job: Job) -> None: ...
    def confirm(self, job: Job) -> None: ...
    def event(self, job: Job, event: object) -> None: ...


def test_deaths_are_tried_again_and_then_quarantined_with_the_reason(
    supervisor: Supervisor, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: object) -> None:
        raise WorkerDied("the worker was ended by SIGSEGV", signal.SIGSEGV)

    def late(*arguments: object) -> None:
        raise WorkerTimeout("late")

    status = model.stat()
    files = [{"path": str(model), "bytes": status.st_size, "version": str(status.st_mtime_ns)}]
    entry = {"source": str(model), "files": files, "output": str(tmp_path / "o.gguf"), "recipe": {}}
    monkeypatch.setattr(supervisor, "run", die)
    outcomes = [run_job(Job("id", entry, n, "me"), supervisor, LedgerClient(), Settings()) for n in (1, 2, 3)]
    assert [outcome.again is None for outcome in outcomes] == [False, False, True]
    assert outcomes[-1].state == QUARANTINED and "SIGSEGV (3 times)" in (outcomes[-1].error or {})["message"]
    monkeypatch.setattr(supervisor, "run", late)
    outcome = run_job(Job("id", entry, 1, "me"), supervisor, LedgerClient(), Settings(timeout=5))
    assert outcome.state == QUARANTINED and outcome.again is None
    assert outcome.error == {"class": "Timeout", "message": "no end after 5 s", "hint": "--timeout SECONDS"}
    assert len(list(tmp_path.glob("ggferry-tmp-*"))) == 1, "the supervisor's own"


def test_folders_of_the_dead_are_swept(tmp_path: Path) -> None:
    mine = Scratch(str(tmp_path))
    child = os.fork()
    if not child:
        (Path(Scratch(str(tmp_path)).path) / "large").write_bytes(b"left behind")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (tmp_path / "ggferry-tmp-not-ours").mkdir()
    assert len(list(tmp_path.iterdir())) == 3
    sweep(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["ggferry-tmp-not-ours", Path(mine.path).name])
    mine.close()
    assert not Path(mine.path).exists()


def test_a_sweeper_between_making_and_locking_a_folder_leaves_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had come and gone: the folder was believed to be there, and was not."""
    locked, swept = scratch._locked, []

    def late(descriptor: int) -> bool:
        if not swept:
            swept.append(descriptor)
            sweep(str(tmp_path))
        return locked(descriptor)

    monkeypatch.setattr(scratch, "_locked", late)
    found = Scratch(str(tmp_path))
    assert swept and Path(found.path).is_dir()
    found.close()
