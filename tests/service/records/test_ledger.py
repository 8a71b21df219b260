"""The ledger's promises, on SQLite and on PostgreSQL: one holder a job, nothing acknowledged is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ggferry.formats.errors import UsageError
from ggferry.service.records.ledger import (
    DONE,
    FAILED,
    LOST_AT_MOST,
    QUARANTINED,
    QUEUED,
    RUNNING,
    SKIPPED,
    Duplicate,
    LeaseLost,
    Ledger,
)
from ggferry.service.records.owners import is_dead, owner_name
from helpers.archive_tools import command, plan, rows, write
from helpers.builders import Llama


@pytest.fixture
def ledger(ledger_place: str) -> Iterator[Ledger]:
    found = Ledger(ledger_place)
    yield found
    found.close()


def jobs(count: int, state: str = QUEUED) -> list[dict[str, Any]]:
    entry = {"verdict": "convert", "bytes_in": 1, "bytes_out": 1}
    return [
        {
            "id": f"{n * 0x1234567 % 2**32:08x}{n:024x}",
            "source": f"/in/{n}",
            "entry": {**entry, "output": f"/out/{n}"},
            "state": state,
        }
        for n in range(count)
    ]


def test_no_job_is_held_twice(ledger: Ledger) -> None:
    ledger.register("plan", jobs(60))
    held: list[str] = []

    def take(number: int) -> None:
        mine = Ledger(ledger.url)
        while job := mine.claim(f"owner-{number}", "plan", 60):
            held.append(job.id)
            mine.finish(job, DONE, receipt={"of": job.id})
        mine.close()

    threads = [threading.Thread(target=take, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(held) == sorted(job["id"] for job in jobs(60))
    assert ledger.counts("plan")[DONE] == 60 and ledger.claim("late", "plan", 60) is None
    assert all(row["receipt"] == {"of": row["id"]} for row in ledger.rows("plan"))


def test_a_lease_that_runs_out_frees_the_job_and_its_old_holder_can_change_nothing(ledger: Ledger) -> None:
    ledger.register("plan", jobs(1))
    first = ledger.claim("somewhere/else/1:1:1", "plan", -1)
    assert first and ledger.reclaim() == ["/in/0"]
    second = ledger.claim(owner_name(), "plan", 60)
    assert second and second.id == first.id and ledger.reclaim() == []
    for change in (
        lambda: ledger.finish(first, DONE),
        lambda: ledger.confirm(first),
        lambda: ledger.verifying(first),
        lambda: ledger.bind(first, "key"),
        lambda: ledger.put_back(first, 0),
    ):
        with pytest.raises(LeaseLost):
            change()
    ledger.verifying(second)
    ledger.finish(second, DONE)
    with pytest.raises(LeaseLost):
        ledger.finish(second, FAILED)
    assert [t["outcome"] for t in ledger.job(first.id)["tried"]] == ["lost", DONE]


def test_a_job_that_ends_its_machines_is_quarantined(ledger: Ledger) -> None:
    ledger.register("plan", jobs(1))
    for _ in range(LOST_AT_MOST):
        assert ledger.claim("somewhere/else/1:1:1", "plan", -1)
        ledger.reclaim()
    assert ledger.counts("plan")[QUARANTINED] == 1


def test_heartbeats_keep_a_lease(ledger: Ledger) -> None:
    ledger.register("plan", jobs(1))
    job = ledger.claim(owner_name(), "plan", -1)
    assert job
    assert ledger.beat([job], 60) == []
    assert ledger.reclaim() == [] and ledger.counts("plan")[RUNNING] == 1


def test_one_content_is_done_once(ledger: Ledger) -> None:
    ledger.register("plan", jobs(3))
    a, b, c = (ledger.claim("me", "plan", 60) for _ in range(3))
    assert a and b and c
    assert ledger.bind(a, "content") is None and ledger.bind(a, "content") is None
    assert ledger.bind(b, "content") == Duplicate(a.id, done=False)
    ledger.finish(b, FAILED, error={"class": "X", "message": "x"})
    ledger.finish(a, DONE)
    assert ledger.bind(c, "content") == Duplicate(a.id, done=True)
    ledger.finish(c, SKIPPED, same_as=a.id)
    assert ledger.retry("plan") == 1 and ledger.counts("plan")[QUEUED] == 1


def test_registering_again_keeps_what_is_known(ledger: Ledger) -> None:
    ledger.register("plan", jobs(4))
    job = ledger.claim("me", "plan", 60)
    assert job
    ledger.finish(job, DONE)
    edited, gone, kept = (row for row in jobs(4) if row["id"] != job.id)
    ledger.register("plan", [{**edited, "state": SKIPPED}, kept, *(row for row in jobs(4) if row["id"] == job.id)])
    states = {row["id"]: row["state"] for row in ledger.rows("plan")}
    assert states == {job.id: DONE, edited["id"]: SKIPPED, gone["id"]: SKIPPED, kept["id"]: QUEUED}
    ledger.register("plan", jobs(4))
    states = {row["id"]: row["state"] for row in ledger.rows("plan")}
    assert states == {job.id: DONE, edited["id"]: QUEUED, gone["id"]: QUEUED, kept["id"]: QUEUED}


def test_shards_share_nothing_and_leave_nothing(ledger: Ledger) -> None:
    ledger.register("plan", jobs(40))
    found: list[str] = []
    for share in range(3):
        while job := ledger.claim("me", "plan", 60, (share, 3)):
            found.append(job.id)
    assert len(found) == len(set(found)) == 40


def test_delays_and_attempts(ledger: Ledger) -> None:
    ledger.register("plan", jobs(2))
    job = ledger.claim("me", "plan", 60)
    assert job and job.attempt == 1
    ledger.put_back(job, 3600, {"class": "X", "message": "x"})
    other = ledger.claim("me", "plan", 60)
    assert other and other.id != job.id and ledger.claim("me", "plan", 60) is None
    ledger.put_back(other, 0, counts=False)
    again = ledger.claim("me", "plan", 60)
    assert again and again.id == other.id and again.attempt == 1


def test_a_dead_holder_is_known() -> None:
    assert not is_dead(owner_name())
    script = "from ggferry.service.records.owners import owner_name; print(owner_name())"
    gone = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert is_dead(gone) and not is_dead("another/boot/1:1:1:x") and not is_dead("")


def test_names_that_are_no_text(ledger: Ledger) -> None:
    row = {**jobs(1)[0], "source": "/in/\udcff\0.bin"}
    ledger.register("plan", [row])
    assert ledger.rows("plan")[0]["source"] == "/in/\\udcff\\0.bin"


@pytest.mark.parametrize("encoding", ["UTF8", "SQL_ASCII", "LATIN1"])
def test_databases_of_other_encodings(postgres: str, encoding: str) -> None:
    engine = sa.create_engine(postgres.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        words = f"CREATE DATABASE {encoding} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        connection.exec_driver_sql(words)
    engine.dispose()
    place = postgres.removesuffix("postgres") + encoding.lower()
    if encoding == "LATIN1":
        with pytest.raises(UsageError, match=r"cannot hold every name.*LATIN1.*createdb --encoding UTF8"):
            Ledger(place)
        return
    found = Ledger(place)
    try:
        found.register("plan", [{**jobs(1)[0], "source": "/in/模型é.bin"}])
        assert found.rows("plan")[0]["source"] == "/in/模型é.bin"
    finally:
        found.close()


@pytest.mark.slow
def test_a_migration_with_postgresql_as_ledger(postgres: str, tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path / "in" / f"{seed}.bin", Llama(seed=seed))
    (tmp_path / "in" / "cut.bin").write_bytes((tmp_path / "in" / "0.bin").read_bytes()[:-1])
    path = tmp_path / "plan.jsonl"
    plan(tmp_path / "in", path, "--dest", tmp_path / "out", "--verify", "fast", "-j", "1")
    command("apply", path, "-j", "2", "--ledger", postgres, code=1)
    found = {
        Path(source).name: row["state"] for source, row in rows(postgres).items() if source.startswith(str(tmp_path))
    }
    assert found == {"0.bin": DONE, "1.bin": DONE, "2.bin": DONE, "cut.bin": QUARANTINED}
    command("apply", path, "-j", "2", "--ledger", postgres, code=1)
    assert len(list((tmp_path / "out").glob("*.gguf"))) == 3


def _steps(ledger: Ledger, query: Any, **given: Any) -> str:
    """Return how SQLite carries a query out."""
    words = str(query.compile(ledger.engine, compile_kwargs={"literal_binds": False}))
    names = query.compile(ledger.engine).positiontup or ()
    with ledger.reading() as connection:
        asked = query.compile(ledger.engine).params | given
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {words}", tuple(asked[name] for name in names)).all()
    return "; ".join(str(row[-1]) for row in rows)


def test_a_claim_neither_sorts_nor_searches_the_whole_queue(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    ledger.register("plan", jobs(2000))
    given = {"now": 1.0, "share": 0, "shares": 1, "of": "plan"}
    assert _steps(ledger, ledger.statements.next_of_plan, **given) == (
        "SEARCH ggferry_jobs USING INDEX ggferry_jobs_next (plan=? AND state=?)"
    )
    assert "ggferry_jobs_waiting" in _steps(ledger, ledger.statements.waiting, of="x")
    ledger.close()


def test_a_ledger_of_an_earlier_version_gets_the_indexes(ledger: Ledger) -> None:
    indexes = [index.name for index in ledger.jobs.indexes]
    with ledger.transaction() as connection:
        for name in indexes:
            connection.exec_driver_sql(f"DROP INDEX {name}")
        connection.exec_driver_sql("ALTER TABLE ggferry_jobs DROP COLUMN priority")
        connection.exec_driver_sql("UPDATE ggferry_ledger_version SET version_num = '0002'")
    again = Ledger(ledger.url)
    with again.transaction() as connection:
        for name in indexes:
            connection.exec_driver_sql(f"DROP INDEX {name}")  # it is there
    again.close()


def test_jobs_come_by_attempts_then_by_size(ledger: Ledger) -> None:
    rows = jobs(6)
    for number, row in enumerate(rows):
        row["entry"] = {**row["entry"], "bytes_in": number % 3}
    ledger.register("plan", rows)
    first = ledger.claim("me", "plan", 60)
    assert first is not None and first.entry["bytes_in"] == 2
    ledger.put_back(first, 0)
    order = [job.entry["bytes_in"] for _ in range(6) if (job := ledger.claim("me", "plan", 60))]
    assert order == [2, 1, 1, 0, 0, 2]


def test_a_priority_comes_before_attempts_and_size(ledger: Ledger) -> None:
    rows = jobs(6)
    for number, row in enumerate(rows):
        row["entry"] = {**row["entry"], "bytes_in": number}
    ledger.register("plan", rows)
    with ledger.transaction() as connection:
        for number, priority in ((0, 2), (1, 1), (5, -1)):
            change = sa.update(ledger.jobs).where(ledger.jobs.c.id == rows[number]["id"]).values(priority=priority)
            connection.execute(change)
    order = [job.entry["bytes_in"] for _ in range(6) if (job := ledger.claim("me", "plan", 60))]
    assert order == [0, 1, 4, 3, 2, 5]


def test_the_answer_to_a_claim_is_lost(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same request, asked again, finds the job that it claimed."""
    ledger.register("plan", jobs(2))
    ledger.retry_timeout = 5
    whole, struck = Ledger.transaction, []

    @contextmanager
    def cut(mine: Ledger) -> Iterator[Any]:
        with whole(mine) as connection:
            yield connection
        if not struck:
            struck.append(True)
            raise sa.exc.OperationalError("COMMIT", {}, Exception("the connection ended"))

    monkeypatch.setattr(Ledger, "transaction", cut)
    job = ledger.claim("me", "plan", 60)
    assert job is not None and (job.attempt, job.token) == (1, 1)
    assert ledger.counts()[RUNNING] == 1
