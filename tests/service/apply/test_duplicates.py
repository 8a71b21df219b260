"""Of two models with the same content one is done; when it is not, the other is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ggferry.service.apply.migration import MigrationRequest, survey
from ggferry.service.records.ledger import DONE, FAILED, QUEUED, RUNNING, SKIPPED, Duplicate, LeaseLost, Ledger
from helpers.archive_tools import applied, planned, states, write
from helpers.builders import Llama

pytestmark = pytest.mark.attack

FIRST, SECOND, THIRD = (f"{n:08x}" for n in (1, 2, 3))


@pytest.fixture
def ledger(ledger_place: str) -> Iterator[Ledger]:
    """Three jobs of one plan, the largest first."""
    found = Ledger(ledger_place)
    entries = {job: {"bytes_in": 10 - n, "source": job} for n, job in enumerate((FIRST, SECOND, THIRD))}
    found.register("p", [{"id": job, "source": job, "entry": e, "state": QUEUED} for job, e in entries.items()])
    yield found
    found.close()


def state(ledger: Ledger) -> dict[str, str]:
    return {row["id"]: row["state"] for row in ledger.rows("p")}


def two_of_one_content(ledger: Ledger) -> tuple[Any, Any]:
    first, second = (ledger.claim("me", "p", 60) for _ in range(2))
    assert first and second and first.id == FIRST
    assert ledger.bind(first, "content") is None
    assert ledger.bind(second, "content") == Duplicate(FIRST, done=False)
    ledger.wait(second, FIRST)
    assert state(ledger)[SECOND] == QUEUED
    third = ledger.claim("me", "p", 60)
    assert third and third.id == THIRD and ledger.claim("me", "p", 60) is None, "who waits is not to be had"
    ledger.put_back(third, 60)
    return first, second


def test_a_twin_waits_and_is_skipped_once_the_other_is_done(ledger: Ledger) -> None:
    first, _ = two_of_one_content(ledger)
    (skipped,) = ledger.finish(first, DONE)
    assert skipped.id == SECOND and state(ledger) == {FIRST: DONE, SECOND: SKIPPED, THIRD: QUEUED}
    (row,) = ledger.rows("p", [SKIPPED])
    assert row["same_as"] == FIRST and row["error"]["class"] == "Same"


@pytest.mark.parametrize("end", ["failed", "put back", "lease lost"])
def test_a_twin_is_done_itself_when_the_other_is_not(end: str, ledger: Ledger) -> None:
    first, _ = two_of_one_content(ledger)
    if end == "failed":
        assert ledger.finish(first, FAILED, error={"class": "X", "message": "late"}) == []
    elif end == "put back":
        ledger.put_back(first, 60)
    else:
        with ledger.transaction() as connection:
            connection.execute(ledger.jobs.update().where(ledger.jobs.c.id == FIRST).values(lease_until=0))
        assert ledger.reclaim() == [FIRST]
    taken = [ledger.claim("me", "p", 60), ledger.claim("me", "p", 60)]
    found = next(job for job in taken if job and job.id == SECOND)
    assert ledger.bind(found, "content") is None and found.attempt == 1


def test_what_waits_for_somebody_who_is_gone_is_queued(ledger: Ledger) -> None:
    """The other ended between the question and the waiting, or an older version forgot about the one that waits."""
    first, second = (ledger.claim("me", "p", 60) for _ in range(2))
    assert first and second
    ledger.finish(first, FAILED)
    ledger.wait(second, FIRST)
    again = ledger.claim("me", "p", 60)
    assert again and again.id in (SECOND, THIRD)
    with ledger.transaction() as connection:
        connection.execute(ledger.jobs.update().where(ledger.jobs.c.state == QUEUED).values(same_as=FIRST))
    ledger.reclaim()
    assert ledger.claim("me", "p", 60) is not None


@pytest.mark.parametrize("twin", ["", FIRST, "unknown"])
def test_what_was_skipped_for_no_finished_twin_is_queued_again(twin: str, ledger: Ledger) -> None:
    """As earlier versions left it: skipped without a twin, or for one that failed."""
    first, second = (ledger.claim("me", "p", 60) for _ in range(2))
    assert first and second
    ledger.finish(first, FAILED)
    ledger.finish(second, FAILED)
    same = {"state": SKIPPED, "same_as": twin, "error": {"class": "Same", "message": "the same content"}}
    with ledger.transaction() as connection:
        connection.execute(ledger.jobs.update().where(ledger.jobs.c.id == SECOND).values(**same))
    ledger.reclaim()
    assert state(ledger)[SECOND] == QUEUED


def test_nothing_is_skipped_without_a_twin_that_is_done(ledger: Ledger) -> None:
    first, second = (ledger.claim("me", "p", 60) for _ in range(2))
    assert first and second
    for twin in (None, "", "unknown", FIRST):
        with pytest.raises(ValueError, match="not done"):
            ledger.finish(second, SKIPPED, same_as=twin)
    assert state(ledger)[SECOND] == RUNNING
    ledger.finish(first, DONE)
    ledger.finish(second, SKIPPED, same_as=FIRST)
    assert state(ledger)[SECOND] == SKIPPED


def test_a_job_that_waits_is_no_longer_held(ledger: Ledger) -> None:
    _, second = two_of_one_content(ledger)
    with pytest.raises(LeaseLost):
        ledger.confirm(second)


# --- through a whole run -------------------------------------------------------------------------------------


@pytest.fixture
def twins(tmp_path: Path) -> Path:
    """A plan with one content under two names; nothing can be written where a.bin is to go."""
    for name in ("a.bin", "b.bin"):
        write(tmp_path / "in" / name, Llama())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    other = str(tmp_path / "out" / "b.gguf")
    edits: dict[str, dict[str, Any]] = {
        "a": {"verdict": "convert", "output": str(tmp_path / "out" / "file" / "a.gguf")},
        "b": {"verdict": "convert", "output": other, "same_as": None, "proof": None},
    }
    planned(tmp_path / "in", tmp_path / "out", tmp_path / "plan", **edits)
    return tmp_path / "plan"


def test_the_twin_of_a_model_that_fails_late_is_converted(
    twins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was 'skipped: the same content' for ever. Both are at work when the second asks."""
    bound, asked, bind = threading.Event(), threading.Event(), Ledger.bind

    def in_turn(ledger: Ledger, job: Any, key: str) -> Duplicate | None:
        if job.entry["source"].endswith("b.bin") and not asked.is_set():
            assert bound.wait(30)
            found = bind(ledger, job, key)
            assert found is not None and not found.done
            asked.set()
            return found
        found = bind(ledger, job, key)
        bound.set()
        assert asked.wait(30)
        return found

    monkeypatch.setattr(Ledger, "bind", in_turn)
    migration, events = applied(twins, jobs=2)
    assert states(migration) == {"a.bin": "failed", "b.bin": "done"}
    assert (tmp_path / "out" / "b.gguf").exists() and migration.failed() == 1
    assert [e["state"] for e in events if e["event"] == "job" and e["source"].endswith("b.bin")] == [
        "running",
        "queued",
        "running",
        "done",
    ]
    monkeypatch.undo()
    migration, _ = applied(twins, retry=True)
    assert states(migration) == {"a.bin": "skipped", "b.bin": "done"}, "now its content is done"
    (row,) = migration.ledger.rows(None, ["skipped"])
    assert row["same_as"] == migration.ledger.rows(None, ["done"])[0]["id"]


@pytest.mark.slow
def test_a_ledger_of_an_earlier_version_is_set_right_by_the_next_run(twins: Path, tmp_path: Path) -> None:
    """Also when the model that failed is gone, and in a plan made again."""
    migration, _ = applied(twins)
    ledger = migration.ledger
    row = next(row for row in ledger.rows() if row["source"].endswith("a.bin"))
    done = next(row for row in ledger.rows() if row["source"].endswith("b.bin"))
    failed = {"state": "failed", "same_as": None, "key": None, "error": {"class": "RefusedError", "message": "late"}}
    with ledger.transaction() as connection:
        for job, values in ((row, failed), (done, {"state": "skipped", "same_as": row["id"], "key": None})):
            connection.execute(ledger.jobs.update().where(ledger.jobs.c.id == job["id"]).values(**values))
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    (tmp_path / "in" / "a.bin").unlink()
    asked = MigrationRequest(str(twins), f"{twins}.ledger")
    assert [entry.source for entry in survey(asked)[0]] == [done["source"]], "a dry run says so"
    edit: dict[str, Any] = {"output": str(tmp_path / "out" / "b.gguf")}
    planned(tmp_path / "in", tmp_path / "out", twins, b=edit)
    migration, _ = applied(twins)
    assert states(migration)["b.bin"] == "done" and (tmp_path / "out" / "b.gguf").exists()
