"""The database goes away while a migration is at work: for a second, for good, or because the disk is full."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ggferry.formats.errors import UnreachableError
from ggferry.service.records.ledger import DONE, QUEUED, Ledger
from ggferry.service.records.owners import owner_name
from helpers.archive_tools import GGFERRY, command, plan, write
from helpers.builders import Llama
from helpers.postgres_server import PostgresServer, postgres_server
from helpers.processes import below, every

pytestmark = pytest.mark.attack

PASSWORD = "s3cret/PW@1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresServer]:
    with postgres_server(PASSWORD) as found:
        yield found


@pytest.fixture
def server(cluster: PostgresServer) -> PostgresServer:
    """Running, whatever the test before did, and without jobs."""
    if cluster.process is None:
        cluster.start()
    ledger = Ledger(with_password(cluster))
    with ledger.transaction() as connection:
        connection.execute(ledger.jobs.delete())
        connection.execute(ledger.attempts.delete())
    ledger.close()
    return cluster


@pytest.fixture
def url(server: PostgresServer) -> str:
    return with_password(server)


def with_password(server: PostgresServer) -> str:
    return server.url.replace("ggferry@", "ggferry:s3cret%2FPW%401@")


def fill(ledger: Ledger, count: int = 1) -> None:
    entry = {"verdict": "convert", "bytes_in": 1, "bytes_out": 1}
    rows = [{"id": f"{n:032x}", "source": f"/in/{n}", "entry": entry, "state": QUEUED} for n in range(count)]
    ledger.register("plan", rows)


@pytest.mark.slow
def test_every_question_is_asked_again_until_the_database_is_back(server: PostgresServer, url: str) -> None:
    told: list[str] = []
    ledger = Ledger(url, retry_timeout=20, on_away=told.append)
    fill(ledger)
    owner, held = owner_name(), []

    def away(ask: Callable[[], Any]) -> Any:
        server.stop()
        back = threading.Timer(0.3, server.start)
        back.start()
        try:
            return ask()
        finally:
            back.join()

    held.append(away(lambda: ledger.claim(owner, "plan", 60)))
    job = held[0]
    assert job is not None and away(lambda: ledger.bind(job, "key")) is None
    assert away(lambda: ledger.beat(held, 60)) == []
    away(lambda: ledger.confirm(job))
    away(lambda: ledger.finish(job, DONE))
    assert ledger.counts()[DONE] == 1 and ledger.job(job.id)["attempts"] == 1
    assert len(told) == 5 and not any(PASSWORD in words or "PW" in words for words in told), "once an outage"
    ledger.close()


def test_patience_ends(server: PostgresServer, url: str) -> None:
    ledger = Ledger(url, retry_timeout=0.5)
    fill(ledger)
    server.stop()
    began = time.monotonic()
    with pytest.raises(UnreachableError, match=r"could not be reached for 0\.5 s: .*refused") as caught:
        ledger.claim("owner", "plan", 60)
    assert 0.2 < time.monotonic() - began < 3 and "PW" not in str(caught.value)
    ledger.retry_timeout = 60
    ledger.hurry()
    with pytest.raises(UnreachableError):
        ledger.counts()
    assert time.monotonic() - began < 5
    ledger.close()


def start(path: Path, url: str, *options: str) -> subprocess.Popen[str]:
    apply = [*GGFERRY, "apply", path, "-j", "2", "--threads", "1", "--json", "--ledger", url, *options]
    return subprocess.Popen(apply, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def at_first(run: subprocess.Popen[str], state: str) -> None:
    assert run.stdout is not None
    for line in run.stdout:
        if json.loads(line).get("state") == state:
            return
    raise AssertionError(run.stderr and run.stderr.read())


def prepare(tmp_path: Path, count: int) -> tuple[Path, Path]:
    for seed in range(count):
        write(tmp_path / "in" / f"{seed}.bin", Llama(seed=seed))
    path, dest = tmp_path / "plan.jsonl", tmp_path / "out"
    plan(tmp_path / "in", path, "--dest", dest, "-j", "1", "--verify", "fast", "--no-digest")
    return path, dest


def workers_of(run: subprocess.Popen[str]) -> set[int]:
    """The workers of a run, once it has any. Each leads a session of its own and outlives a run that forgets it."""
    found: set[int] = set()
    while not found and run.poll() is None:
        found = {pid for pid, words in below(run.pid).items() if "ggferry.service.workers.process" in words}
    assert found
    return found


def left_of(workers: set[int]) -> set[int]:
    return workers & {process.pid for process in every()}


@pytest.mark.slow
def test_a_restart_within_the_lease_ends_nothing(server: PostgresServer, url: str, tmp_path: Path) -> None:
    path, dest = prepare(tmp_path, 8)
    run = start(path, url, "--lease", "30")
    at_first(run, "done")
    server.stop()
    time.sleep(3)
    assert run.poll() is None
    server.start()
    out, errors = run.communicate(timeout=60)
    assert run.returncode == 0, errors
    assert "PW" not in out + errors and "the ledger cannot be reached" in out
    ledger = Ledger(url)
    tried = Counter(row["job"] for row in _attempts(ledger) if row["outcome"] == DONE)
    assert ledger.counts()[DONE] == 8 and set(tried.values()) == {1} and len(tried) == 8
    assert len(list(dest.glob("*.gguf"))) == 8 and not list(dest.glob("*.partial*"))
    ledger.close()


def _attempts(ledger: Ledger) -> list[Any]:
    with ledger.transaction() as connection:
        return [row._mapping for row in connection.execute(sa.select(ledger.attempts))]


@pytest.mark.slow
def test_away_for_good_ends_the_run_by_a_stop_of_its_own(server: PostgresServer, url: str, tmp_path: Path) -> None:
    path, dest = prepare(tmp_path, 8)
    run = start(path, url, "--lease", "2")
    at_first(run, "running")
    workers = workers_of(run)
    server.stop()
    out, errors = run.communicate(timeout=40)
    assert run.returncode == 3, errors
    assert "could not be reached for 2 s" in errors and "refused" in errors and "the same command continues" in errors
    assert "internal" not in errors and "PW" not in out + errors
    assert not left_of(workers) and not list(dest.glob("*.partial*"))
    server.start()
    command("apply", path, "-j", "2", "--ledger", url)
    assert len(list(dest.glob("*.gguf"))) == 8


def test_a_full_disk_under_the_ledger_is_told_in_words(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger"), retry_timeout=0.3)
    fill(ledger, 50)

    def small(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA max_page_count=1")  # SQLite's own word for a disk without room

    sa.event.listen(ledger.engine, "connect", small)
    ledger.engine.dispose()
    more = [{"id": f"{n:032x}", "source": "x" * 900, "entry": {}, "state": QUEUED} for n in range(99, 999)]
    with pytest.raises(UnreachableError, match="database or disk is full"):
        ledger.register("other", more)
    ledger.close()


def test_a_locked_ledger_is_waited_for(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger"), retry_timeout=10)
    fill(ledger)

    def hasty(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA busy_timeout=10")

    sa.event.listen(ledger.engine, "connect", hasty)
    ledger.engine.dispose()
    with closing(sqlite3.connect(tmp_path / "ledger", isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        threading.Timer(0.4, other.execute, ("ROLLBACK",)).start()
        assert ledger.claim("owner", "plan", 60) is not None
        time.sleep(0.1)
    ledger.close()


@pytest.mark.parametrize("words", [("ledger", "status"), ("ledger", "list"), ("ledger", "recheck")])
def test_a_ledger_that_is_none_is_told_in_words(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "ledger").write_bytes(b"not a database at all" * 500)
    done = command(*words, tmp_path / "ledger", code=1)
    assert "file is not a database" in done.stderr and "internal" not in done.stderr


def test_ctrl_c_does_not_wait_for_a_database_that_is_away(server: PostgresServer, url: str, tmp_path: Path) -> None:
    path, dest = prepare(tmp_path, 3)
    run = start(path, url, "--lease", "60")
    at_first(run, "running")
    workers = workers_of(run)
    server.stop()
    time.sleep(0.3)
    began = time.monotonic()
    os.kill(run.pid, signal.SIGTERM)
    run.communicate(timeout=30)
    assert run.returncode == 130 and time.monotonic() - began < 8
    assert not list(dest.glob("*.partial*")) and not left_of(workers)
