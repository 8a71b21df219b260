"""Nothing waits without a word and an end: clocks that are set back, writers that are frozen, endless servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ggferry.formats.errors import AmbiguousError, BusyError
from ggferry.formats.limits import MAX_PARTS
from ggferry.service.apply import local_engine
from ggferry.service.apply.job import RETRY_AFTER, Outcome, Settings
from ggferry.service.apply.local_engine import Run
from ggferry.service.records import ledger as ledgers
from ggferry.service.records import ledger_database
from ggferry.service.records.ledger import FAILED, LONGEST_DELAY, QUEUED, RUNNING, Ledger
from ggferry.service.sources import siblings
from ggferry.service.storage.stores import Found

pytestmark = pytest.mark.attack

HOUR = 3600.0


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Two jobs; a clock that `turn` sets is this file's alone."""
    found = Ledger(str(tmp_path / "ledger"))
    rows = [{"id": f"{n:032x}", "source": f"/in/{n}", "entry": {}, "state": QUEUED} for n in range(2)]
    found.register("p", rows)
    yield found
    found.close()


def turn(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the clock of this machine, as the ledger sees it."""
    clock = SimpleNamespace(time=lambda: time.time() + seconds, monotonic=time.monotonic)
    for module in (ledgers, ledger_database):
        monkeypatch.setattr(module, "time", clock)


def test_a_job_put_back_does_not_wait_for_a_clock_that_was_set_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn(monkeypatch, HOUR)
    for _ in range(2):
        job = ledger.claim("me", "p", 60)
        assert job
        ledger.put_back(job, 30)
    assert ledger.claim("me", "p", 60) is None, "it was put back for half a minute"
    turn(monkeypatch, 0)
    assert ledger.claim("me", "p", 60), "an hour later is no delay that anybody asked for"


def test_no_job_is_put_back_for_longer_than_can_be_told_from_a_leap(ledger: Ledger) -> None:
    job = ledger.claim("me", "p", 60)
    assert job
    ledger.put_back(job, 10 * HOUR)
    [row] = [row for row in ledger.rows("p") if row["id"] == job.id]
    assert row["not_before"] <= time.time() + LONGEST_DELAY
    other = ledger.claim("me", "p", 60)
    assert other and other.id != job.id and ledger.claim("me", "p", 60) is None


def test_a_lease_does_not_last_as_long_as_a_leap_of_the_clock(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder is of another machine, so nobody knows whether it lives."""
    turn(monkeypatch, HOUR)
    assert ledger.claim("elsewhere/boot/1:1:1:x", "p", 0.2)
    turn(monkeypatch, 0)
    assert ledger.reclaim() == []
    time.sleep(0.25)
    assert ledger.reclaim() == ["/in/0"]


def test_a_holder_that_lives_keeps_its_lease_over_a_leap(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    turn(monkeypatch, HOUR)
    job = ledger.claim("elsewhere/boot/1:1:1:x", "p", 60)
    assert job
    turn(monkeypatch, 0)
    assert ledger.reclaim() == [] and ledger.beat([job], 60) == [] and ledger.reclaim() == []
    [row] = ledger.rows("p", [RUNNING])
    assert row["lease_until"] <= time.time() + 60


# --- what a person is told ---


def running(ledger: Ledger) -> tuple[Run, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    return Run(ledger, "p", 1, Settings(), events.append), events


def told(events: list[dict[str, Any]]) -> list[str]:
    return [f"{event['source']}: {event['message']}" for event in events if event["event"] == "warning"]


def test_a_long_wait_is_told_once_with_its_end(ledger: Ledger) -> None:
    run, events = running(ledger)
    for _ in range(2):
        job = ledger.claim("me", "p", 60)
        assert job
        ledger.put_back(job, 40, {"class": "UnreachableError", "message": "the store is away"})
    due = time.time() + 40
    for _ in range(3):
        assert run.waiting() == 2
    [line] = told(events)
    clocks = {time.strftime("%H:%M:%S", time.localtime(due + late)) for late in (-2, -1, 0, 1)}
    assert line.startswith("/in/0: waiting and 1 more, until ") and line.endswith(": the store is away")
    assert any(clock in line for clock in clocks)


def test_a_wait_of_a_moment_is_not_told(ledger: Ledger) -> None:
    run, events = running(ledger)
    job = run.ledger.claim("me", "p", 60)
    assert job
    ledger.put_back(job, 1)
    assert run.waiting() == 2 and told(events) == []


def test_who_waits_for_a_twin_is_told_who_holds_it(ledger: Ledger) -> None:
    run, events = running(ledger)
    first, second = (ledger.claim("another:1:1:x", "p", 60) for _ in range(2))
    assert first and second
    ledger.bind(first, "content")
    ledger.bind(second, "content")
    ledger.wait(second, first.id)
    assert run.waiting() == run.waiting() == 1
    [line] = told(events)
    assert "another:1:1:x is converting the same content, unless its lease ends then" in line


def test_a_writer_that_is_frozen_is_waited_for_to_an_end(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP, or Ctrl-Z: the other one goes on holding its unfinished file."""
    monkeypatch.setattr(local_engine, "BUSY_AT_MOST", 0.3)
    run, events = running(ledger)
    busy = {"class": BusyError.__name__, "fault": "passing", "message": "another writer is at work on this file"}
    again = Outcome(FAILED, busy, again=RETRY_AFTER, counts=False)
    states = []
    for _ in range(3):
        with ledger.transaction() as connection:
            connection.exec_driver_sql("UPDATE ggferry_jobs SET not_before = 0 WHERE id LIKE '%0'")
        job = ledger.claim("me", "p", 60)
        assert job
        run.settle(job, again)
        states.append({row["id"]: row["state"] for row in ledger.rows("p")}[job.id])
        time.sleep(0.2)
    assert states == [QUEUED, QUEUED, FAILED]
    [line] = told(events)
    assert "another writer holds its output; asked again until " in line
    [row] = ledger.rows("p", [FAILED])
    assert "has held its output for" in row["error"]["message"] and "Ctrl-Z" in row["error"]["hint"]
    assert ledger.retry("p", [FAILED], "passing") == 1, "the next run takes it up again"


# --- a web server with an answer for everything ---


@pytest.mark.parametrize("name", ["m.bin", "m.00.pth"])
def test_parts_are_asked_for_up_to_the_most_a_model_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(url: str) -> Found:
        asked.append(url)
        assert len(asked) < 10_000, "without end"
        return Found(url, 1000, "v")

    monkeypatch.setattr(siblings, "stat", answer)
    monkeypatch.setattr(siblings, "listing", lambda url: iter([Found(url, 1000, "v")]))
    with pytest.raises(AmbiguousError, match="an answer for every path"):
        siblings.files_of(f"http://single.page/{name}")
    parts = [url for url in asked if url.rpartition(".")[2].isdecimal() or ".pth" in url]
    assert MAX_PARTS - 1 <= len(parts) <= MAX_PARTS + 1
