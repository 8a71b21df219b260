"""Places that nothing can be written to are found before a model is read, and are a person's turn."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ggferry.formats.errors import AccessError
from ggferry.service.apply.job import Settings, run_job
from ggferry.service.apply.migration import Migration, MigrationRequest
from ggferry.service.records.ledger import FAILED, QUEUED, Job
from ggferry.service.records.plan_file import read_plan
from ggferry.service.workers.supervisor import Limits, Supervisor
from helpers.archive_tools import GGFERRY, plan, write
from helpers.builders import Llama

pytestmark = pytest.mark.attack


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write(tmp_path / "in" / name / "x.bin", Llama(seed=ord(name)))
    path = tmp_path / "plan.jsonl"
    plan(tmp_path / "in", path, "--dest", tmp_path / "out", "-j", "1", "--verify", "none")
    return path


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_every_folder_is_tried_before_anything_is_read(
    number: int, planned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root, to whom modes say nothing: the system's answer is put in its mouth."""
    bad = tmp_path / "out" / "b"
    bad.mkdir(parents=True)
    whole = tempfile.TemporaryFile

    def refusing(*arguments: Any, dir: Any = None, **named: Any) -> Any:
        if str(dir) == str(bad):
            raise OSError(number, os.strerror(number), f"{dir}/x")
        return whole(*arguments, dir=dir, **named)

    monkeypatch.setattr(tempfile, "TemporaryFile", refusing)
    migration = Migration(MigrationRequest(str(planned), str(tmp_path / "ledger")), lambda event: None)
    with pytest.raises(AccessError, match="nothing can be written here; nothing was done") as caught:
        migration.prepare()
    assert caught.value.path == str(bad) and caught.value.exit_code == 3
    assert migration.ledger.counts()[QUEUED] == 2
    assert not list((tmp_path / "out").rglob("*.gguf"))
    migration.ledger.close()


def test_a_folder_without_permission_is_told_at_once(planned: Path, tmp_path: Path) -> None:
    """The whole command, without the capability by which root passes over modes."""
    folder = tmp_path / "out"
    folder.mkdir(mode=0o555)
    obey = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    done = subprocess.run([*obey, *GGFERRY, "apply", planned, "-j", "1"], capture_output=True, text=True, check=False)
    folder.chmod(0o755)
    assert done.returncode == 3 and "nothing can be written here" in done.stderr, done.stderr
    assert str(folder) in done.stderr and "internal" not in done.stderr and "running" not in done.stdout


class LedgerClient:
    """Says yes."""

    def key(self, job: Job, key: str) -> str | None:
        return None

    def verifying(self, job: Job) -> None: ...
    def confirm(self, job: Job) -> None: ...
    def event(self, job: Job, event: Any) -> None: ...


@pytest.mark.parametrize("above", ["file", "/proc/1"])
def test_what_becomes_unwritable_later_is_a_persons_turn(above: str, planned: Path, tmp_path: Path) -> None:
    """A folder that cannot be made: failed, not quarantined, and not tried again by itself."""
    from dataclasses import asdict

    (tmp_path / "file").write_text("")
    head, entries = read_plan(str(planned))
    output = f"{tmp_path / above}/sub/x.gguf"
    entry = {**asdict(entries[0]), "recipe": entries[0].recipe(head), "output": output}
    with Supervisor(Limits(threads=1)) as supervisor:
        outcome = run_job(Job("0" * 32, entry, 1, "me"), supervisor, LedgerClient(), Settings())
    assert outcome.state == FAILED and outcome.again is None, outcome
    assert outcome.error is not None and outcome.error["fault"] == "person"
    assert outcome.error["class"] in ("AccessError", "NotFoundError", "GgferryError", "UsageError"), outcome.error
