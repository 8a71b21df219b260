"""Two holders of one job: a coordinator that was asleep, or an answer of the database that was lost on its way."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ggferry.formats.errors import UsageError
from ggferry.service.apply.job import Settings
from ggferry.service.apply.local_engine import LedgerDesk, Run, run_local
from ggferry.service.apply.migration import Migration, MigrationRequest
from ggferry.service.records.ledger import DONE, FAILED, QUEUED, RUNNING, Job, LeaseLost, Ledger
from ggferry.service.records.ledger_tables import SCHEMA
from ggferry.service.records.owners import owner_name
from ggferry.service.workers.supervisor import Limits
from helpers import old_ledgers
from helpers.archive_tools import plan, write
from helpers.builders import Llama

pytestmark = pytest.mark.attack


@pytest.fixture
def ledger(ledger_place: str) -> Iterator[Ledger]:
    found = Ledger(ledger_place, retry_timeout=5)
    entry = {"verdict": "convert", "bytes_in": 1, "bytes_out": 1, "output": "/out/1"}
    found.register("plan", [{"id": f"{1:032x}", "source": "/in/1", "entry": entry, "state": QUEUED}])
    yield found
    found.close()


def claimed(ledger: Ledger, lease: float = 60) -> Job:
    job = ledger.claim("somewhere/else/1:1:1", "plan", lease)
    assert job is not None
    return job


def changes(ledger: Ledger, job: Job) -> list[Callable[[], Any]]:
    return [
        lambda: ledger.confirm(job),
        lambda: ledger.verifying(job),
        lambda: ledger.bind(job, "key"),
        lambda: ledger.put_back(job, 0),
        lambda: ledger.finish(job, FAILED),
        lambda: ledger.finish(job, DONE),
    ]


def test_one_owner_with_one_attempt_number_twice_is_two_holders(ledger: Ledger) -> None:
    """The very case: a lease runs out while its coordinator sleeps, and the same coordinator claims the job again."""
    first = claimed(ledger, -1)
    assert ledger.reclaim() == ["/in/1"]
    second = claimed(ledger)
    assert (first.owner, first.attempt) == (second.owner, second.attempt)
    for change in changes(ledger, first):
        with pytest.raises(LeaseLost):
            change()
    assert ledger.beat([first, second], 60) == [first]
    ledger.finish(second, DONE)
    assert [each["outcome"] for each in ledger.job(second.id)["tried"]] == ["lost", DONE]


def test_the_token_only_grows(ledger: Ledger) -> None:
    tokens = []
    for end in (
        lambda job: ledger.put_back(job, 0, counts=False),
        lambda job: ledger.put_back(job, 0),
        lambda job: ledger.finish(job, FAILED),
        lambda job: ledger.beat([job], -1) or ledger.reclaim(),
        lambda job: ledger.finish(job, DONE),
    ):
        ledger.retry("plan")
        job = claimed(ledger)
        tokens.append(job.token)
        end(job)
    assert tokens == sorted(set(tokens)) and ledger.claim("x", "plan", 60) is None


class LostAnswers:
    """Every transaction takes effect, and its answer is lost, the first time that it is asked for."""

    def __init__(self, ledger: Ledger, patch: pytest.MonkeyPatch) -> None:
        self.whole, self.lose = ledger.transaction, True
        patch.setattr(ledger, "transaction", self)

    def __call__(self) -> Any:
        return self

    def __enter__(self) -> Any:
        self.inner = self.whole()
        return self.inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.inner.__exit__(*error)
        self.lose = not self.lose
        if error[0] is None and not self.lose:
            raise sa.exc.OperationalError("COMMIT", {}, Exception("server closed the connection unexpectedly"))


@pytest.mark.parametrize("end", ["finish", "put_back"])
def test_an_answer_that_was_lost_is_no_lost_lease(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    LostAnswers(ledger, monkeypatch)
    job = claimed(ledger)
    assert ledger.bind(job, "content") is None
    ledger.verifying(job)
    ledger.confirm(job)
    if end == "finish":
        ledger.finish(job, DONE, receipt={"a": 1})
    else:
        ledger.put_back(job, 0, counts=False)
    monkeypatch.undo()
    row = ledger.job(job.id)
    assert (row["state"], row["attempts"]) == ((DONE, 1) if end == "finish" else (QUEUED, 0))
    assert [each["outcome"] for each in row["tried"]] == [DONE if end == "finish" else "put back"]


def test_a_ledger_from_before_tokens_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(old_ledgers.VERSION_1)
    ledger = Ledger(str(path), must_exist=True)
    assert ledger.counts()[RUNNING] == 1 and ledger.reclaim() == ["/in/1"]
    job = claimed(ledger)
    assert job.token > 3, "three claims were made before they were counted"
    ledger.finish(job, DONE)
    ledger.close()
    again = Ledger(str(path), must_exist=True)
    assert again.counts()[DONE] == 1
    again.close()


def test_a_ledger_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    Ledger(str(path)).close()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("UPDATE ggferry_schema SET version = ?", (SCHEMA + 1,))
        newer.commit()
    with pytest.raises(UsageError, match="newer ggferry"):
        Ledger(str(path), must_exist=True)


@pytest.mark.slow
def test_a_job_that_was_taken_away_is_left_at_once(tmp_path: Path) -> None:
    """Its worker ends with its partial while it works, not when it has done all for nothing."""
    write(tmp_path / "in" / "a.bin", Llama())
    path, dest = tmp_path / "plan.jsonl", tmp_path / "out"
    plan(tmp_path / "in", path, "--dest", dest, "-j", "1", "--verify", "none")
    told: list[dict[str, Any]] = []
    migration = Migration(MigrationRequest(str(path), str(tmp_path / "ledger"), jobs=1, lease=3), told.append)
    migration.prepare()
    other, taken = Ledger(str(tmp_path / "ledger")), []

    def watch(event: dict[str, Any]) -> None:
        told.append(event)
        if event["event"] == "stage" and event["title"] == "writing" and not taken:
            with other.transaction() as connection:
                connection.execute(sa.update(other.jobs).values(lease_until=0.0))
            taken.extend(other.reclaim())
            deadline = time.monotonic() + 20
            while not run.lost and time.monotonic() < deadline:  # until a heartbeat finds it
                time.sleep(0.02)

    migration.emit = watch
    settings = Settings(Limits(threads=1))
    run = Run(migration.ledger, migration.head.id, 1, settings, watch, lease=3)
    run_local(run)
    states = [event["state"] for event in told if event["event"] == "job"]
    assert taken and states == ["running", "lost", "running", DONE], states
    assert sum(event.get("title") == "writing" and event["event"] == "stage" for event in told) == 2
    assert [path.name for path in dest.iterdir() if path.suffix != ".json"] == ["a.gguf"]
    assert not run.held and not run.lost
    other.close()
    migration.ledger.close()


def test_what_is_over_is_not_told_further(tmp_path: Path) -> None:
    """The desk's word, which uploads ask with every part."""
    ledger = Ledger(str(tmp_path / "ledger"))
    run = Run(ledger, "plan", 1, Settings(), lambda event: None)
    job = Job("id", {}, 1, owner_name(), 7)
    desk = LedgerDesk(ledger, run.emit, run.is_over)
    desk.event(job, {"event": "progress"})
    run.lost.add(("id", 7))
    with pytest.raises(LeaseLost):
        desk.event(job, {"event": "progress"})
    ledger.close()
