"""The ledger with the server's tables: the same database, the same patience, so that several servers can share it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from ggferry.formats.errors import NotFoundError, RefusedError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.records.fields import TriedRow
from ggferry.service.records.ledger import DONE, FAILED, HELD, QUARANTINED, QUEUED, SKIPPED, Ledger
from ggferry.service.records.ledger_database import LedgerDatabase
from ggferry.service.records.plan_file import CONVERT
from ggferry.service.records.schema.upgrade import History, prepare
from ggferry.service.server.store.tables import TRIGGERS, server_tables
from ggferry.support.heavy import sa

T = TypeVar("T")
VERSIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "versions")
SERVER = History(VERSIONS, "ggferry_server_version", "ggferry_tokens", "0006", "server's part of the ledger")
REPLACED = "the ledger's file was removed or replaced while the server runs"
CANCELLED = {"class": "Cancelled", "message": "cancelled by a user", "hint": "retry queues it again"}
EXPIRED = {"class": "Expired", "message": "its files were removed", "hint": "convert it again"}


class Store(Ledger):
    """The ledger at a place, as `Ledger`, and the server's tables in it (`t`)."""

    def __init__(self, place: str, *, retry_timeout: float = 10.0) -> None:
        super().__init__(place, retry_timeout=retry_timeout)
        self._opened = self._file()

    t: SimpleNamespace

    @property
    def is_in_place(self) -> bool:
        """Whether the file of the ledger is the one that was opened, not removed or replaced since.

        SQLite goes on to write into a removed file, and all of it is lost when the last program closes it.
        """
        return self._file() == self._opened

    def fault(self) -> str | None:
        """Return why no writes are taken, or None. Raises UnreachableError where the database is away."""
        if not self.is_in_place:
            return REPLACED
        self.counts()
        return None

    def _file(self) -> tuple[int, int] | None:
        """Return device and inode of the ledger's file; None where there is none, as with PostgreSQL."""
        try:
            found = os.stat(self.url.partition("///")[2]) if self._sqlite else None
        except OSError:
            found = None
        return (found.st_dev, found.st_ino) if found is not None else None

    def _make_tables(self, connection: Any) -> None:
        if "ggferry_tokens" not in self._meta.tables:  # this is asked again while the database is away
            self.t = server_tables(self._meta)
        LedgerDatabase._make_tables(self, connection)
        prepare(connection, SERVER, vars(self.t).values(), "0001", self.shown)
        for statement in TRIGGERS[connection.dialect.name]:
            connection.exec_driver_sql(statement)

    def do(self, work: Callable[[Any], T]) -> T:
        """Do `work` in a transaction, again while the database is away; it must be safe to do twice."""
        return self._do(work)

    def all(self, query: Any) -> list[JSONObject]:
        """Return the rows of a query as plain data."""
        return self._do(lambda connection: [dict(row._mapping) for row in connection.execute(query)], reads=True)

    def first(self, query: Any) -> JSONObject | None:
        """Return the first row of a query, or None."""
        return next(iter(self.all(query)), None)

    def run(self, change: Any) -> int:
        """Carry out a change and return how many rows it touched."""
        return int(self._do(lambda connection: connection.execute(change).rowcount))

    def put(self, table: Any, **values: Any) -> None:
        """Insert a row, unless one with its key is there."""
        insert = self._insert(table).values(**values).on_conflict_do_nothing()
        self._do(lambda connection: connection.execute(insert))

    def truncate_log(self) -> None:
        """Have SQLite write all changes into its file, and empty the log that still holds what they replaced."""
        if self._sqlite:  # past the engine, which begins a transaction with every connection
            with closing(sqlite3.connect(self.url.partition("///")[2], timeout=60)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _insert(self, table: Any) -> Any:
        from sqlalchemy.dialects import postgresql, sqlite

        return sqlite.insert(table) if self._sqlite else postgresql.insert(table)

    def row(self, job: str) -> TriedRow:
        """Return a job by its id, with its attempts. Raises NotFoundError."""
        found = self.first(sa.select(self.jobs).where(self.jobs.c.id == job))
        if found is None:
            raise NotFoundError("no such job", found=job)
        tried = sa.select(self.attempts).where(self.attempts.c.job == job).order_by(self.attempts.c.id)
        return cast("TriedRow", {**found, "tried": self.all(tried)})

    def cancel(self, job: str) -> None:
        """End a job that has not ended. Whoever holds it loses its lease, and so publishes nothing.

        Raises NotFoundError, and RefusedError for one that has ended.
        """
        jobs = self.jobs
        values: dict[str, Any] = {
            "state": SKIPPED,
            "error": CANCELLED,
            "owner": None,
            "lease_until": None,
            "key": None,
            "same_as": None,
        }
        values |= {"finished": time.time(), "updated": time.time()}

        def work(connection: Any) -> bool:
            is_open = (jobs.c.id == job) & jobs.c.state.in_((QUEUED, *HELD))
            if not connection.execute(sa.update(jobs).where(is_open).values(**values)).rowcount:
                return False
            waiting = (jobs.c.state == QUEUED) & (jobs.c.same_as == job)
            connection.execute(sa.update(jobs).where(waiting).values(same_as=None))
            ended = (self.attempts.c.job == job) & self.attempts.c.outcome.is_(None)
            change = sa.update(self.attempts).where(ended)
            connection.execute(change.values(outcome="cancelled", error=CANCELLED, ended=time.time()))
            return True

        if not self._do(work):
            state = self.row(job)["state"]
            if self.row(job)["error"] != CANCELLED:
                raise RefusedError("the job has ended", found=state)

    def requeue(self, job: str) -> None:
        """Queue a job again that failed, was cancelled or has no files any more.

        Raises NotFoundError, RefusedError for any other.
        """
        row = self.row(job)
        ended = (row["error"] or {}).get("class") in (CANCELLED["class"], EXPIRED["class"])
        again = row["state"] in (FAILED, QUARANTINED) or (row["state"] == SKIPPED and ended)
        if row["state"] == QUEUED:
            return
        if again and row["entry"].get("verdict") != CONVERT:
            words = "planning found what is wrong: its source has to be planned again"
            raise RefusedError(words, found=row["entry"].get("verdict"), hint="POST /plans with the same source")
        if not again or "edit_of" in row["entry"]:
            raise RefusedError("only a model that failed or was cancelled can be tried again", found=row["state"])
        jobs = self.jobs
        values = {"state": QUEUED, "attempts": 0, "losses": 0, "not_before": 0.0, "key": None, "same_as": None}
        values["priority"] = 0
        same = (jobs.c.id == job) & (jobs.c.state == row["state"]) & (jobs.c.claims == row["claims"])
        self.run(sa.update(jobs).where(same).values(**values, error=None, updated=time.time()))

    def submitted(self) -> Any:
        """Return a query for the ids under which the ledger knows the plans that were submitted to servers."""
        return sa.select(self.t.plans.c.run).where(self.t.plans.c.submitted.is_not(None))

    def bytes_done(self) -> dict[str, int]:
        """Return the bytes of the sources of what is done, and of what it became."""
        jobs = self.jobs
        sums = (sa.func.sum(jobs.c.bytes_in).label("bytes_before"), sa.func.sum(jobs.c.bytes_out).label("bytes_after"))
        found = self.first(sa.select(*sums).where(jobs.c.state == DONE)) or {}
        return {name: int(value or 0) for name, value in found.items()}
