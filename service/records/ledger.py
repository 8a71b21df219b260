"""The truth about a migration: one row for each job, in SQLite or PostgreSQL. What it states survives any kill.

A job is held by a lease that its coordinator renews. Every change to a held job names the holder and the claim's token,
a number that only grows; it fails once anybody, even the same holder, has claimed the job again. Each change can be
made twice without harm, because what is asked while the database is away is asked again (`ledger_database`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ggferry.formats.errors import CorruptError, GgferryError, NotFoundError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.records.fields import AttemptRow, LedgerRow, NewRow, TriedRow
from ggferry.service.records.ledger_database import LedgerDatabase
from ggferry.service.records.ledger_rows import check_row
from ggferry.service.records.ledger_tables import (
    DONE,
    FAILED,
    HELD,
    LONGEST_DELAY,
    QUARANTINED,
    QUEUED,
    RUNNING,
    SKIPPED,
    STATES,
    VERIFYING,
)
from ggferry.service.records.owners import is_dead
from ggferry.service.records.plan_file import outputs_of
from ggferry.support.heavy import sa

__all__ = [
    "DONE",
    "FAILED",
    "HELD",
    "LONGEST_DELAY",
    "LOST_AT_MOST",
    "QUARANTINED",
    "QUEUED",
    "RUNNING",
    "SAME",
    "SKIPPED",
    "STATES",
    "VERIFYING",
    "Duplicate",
    "Job",
    "LeaseLost",
    "Ledger",
    "LedgerAway",
    "bucket",
]
BUCKETS = 1 << 30
LOST_AT_MOST = 10  # leases of one job that may run out before it is taken to be what ends its machines


class LeaseLost(Exception):
    """The job is no longer held by the one who wants to change it."""


class LedgerAway(LeaseLost):
    """Whether the job is still held cannot be determined; `error` says why. The run has to end."""

    def __init__(self, error: GgferryError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Job:
    """A claimed job.

    Attributes:
        id: Its id.
        entry: The plan's line, as data.
        attempt: Number of the attempt, from 1.
        owner: Name of the holder.
        token: Number of this claim and no other, from 1.
    """

    id: str
    entry: Mapping[str, Any]
    attempt: int
    owner: str
    token: int = 0


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Another job of the same content and recipe.

    `done`: its output exists; else it is being worked on and may yet fail.
    """

    id: str
    done: bool


SAME = {"class": "Same", "message": "the same content as another, which is done"}


class Ledger(LedgerDatabase):
    """The jobs in a database, as LedgerDatabase opens it; every method raises UnreachableError as it does."""

    # --- filling -----------------------------------------------------------------------------------------------

    def register(self, plan: str, rows: Sequence[NewRow]) -> None:
        """Enter the jobs of a plan: rows of id, source, entry, state and, for bad ones, error.

        Jobs that were ever tried stay as they are; queued jobs of this plan that are no longer among `rows` are
        skipped.
        """
        self._do(lambda connection: self._register(connection, plan, rows))

    def _register(self, connection: Any, plan: str, rows: Sequence[NewRow]) -> None:
        jobs = self.jobs
        self._alone(connection)
        tried = jobs.c.attempts + jobs.c.losses
        columns = (jobs.c.id, jobs.c.state, jobs.c.plan, tried.label("tried"))
        known = {row.id: row for row in connection.execute(sa.select(*columns))}
        fresh = [self._row(plan, row) for row in rows if row["id"] not in known]
        if fresh:
            connection.execute(sa.insert(jobs), fresh)
        ids = {row["id"] for row in rows}
        untried = [r for r in rows if r["id"] in known and not known[r["id"]].tried]
        moved = [i for i in ids if i in known and known[i].plan != plan and known[i].state not in HELD]
        gone = [i for i, row in known.items() if row.plan == plan and row.state == QUEUED and i not in ids]
        for row in untried:
            values = {"state": row["state"], "error": row.get("error"), "entry": row["entry"]}
            if known[row["id"]].state != row["state"]:  # the plan was edited
                connection.execute(sa.update(jobs).where(jobs.c.id == row["id"]).values(**values))
        for i in moved:
            connection.execute(sa.update(jobs).where(jobs.c.id == i).values(plan=plan))
        for i in gone:
            left = {"state": SKIPPED, "same_as": None, "error": {"class": "Left", "message": "no longer in the plan"}}
            connection.execute(sa.update(jobs).where(jobs.c.id == i).values(**left))

    def _row(self, plan: str, row: NewRow) -> Mapping[str, Any]:
        now = time.time()
        entry = row["entry"]
        return {
            "id": row["id"],
            "plan": plan,
            "source": _plain(row["source"]),
            "output": _plain(entry.get("output")),
            "entry": entry,
            "state": row["state"],
            "bucket": bucket(row["id"]),
            "bytes_in": entry.get("bytes_in", 0),
            "bytes_out": entry.get("bytes_out", 0),
            "error": row.get("error"),
            "attempts": 0,
            "losses": 0,
            "claims": 0,
            "priority": 0,
            "not_before": 0.0,
            "created": now,
            "updated": now,
            "deleted": False,
        }

    def retry(self, plan: str, states: Sequence[str] = (FAILED, QUARANTINED), fault: str | None = None) -> int:
        """Queue again the jobs whose conversion failed, and return how many; what the plan itself found bad stays.

        `fault`: only what ended with an error of that kind (`errors.Fault`).
        """
        jobs = self.jobs
        condition = (jobs.c.plan == plan) & jobs.c.state.in_(states) & (jobs.c.attempts + jobs.c.losses > 0)
        if fault is not None:
            condition &= jobs.c.error["fault"].as_string() == fault
        values = {"state": QUEUED, "attempts": 0, "losses": 0, "not_before": 0.0, "key": None, "same_as": None}
        values["priority"] = 0
        change = sa.update(jobs).where(condition).values(**values)
        return int(self._do(lambda connection: connection.execute(change).rowcount))

    # --- holding -----------------------------------------------------------------------------------------------

    def claim(self, owner: str, plan: Any, lease: float, shard: tuple[int, int] = (0, 1)) -> Job | None:
        """Return a queued job, now held by `owner` for `lease` seconds; None when none is available.

        `plan` is the id of a plan, or a query for the ids of several. Jobs of the highest priority come first, then
        those with the fewest attempts, then the largest. `shard` is (i, n): only jobs of share i of n, from 0.
        """
        ticket, retried = os.urandom(8).hex(), False

        def work(connection: Any) -> Job | None:
            nonlocal retried
            again, retried = retried, True
            return self._claim(connection, ticket if again else None, ticket, owner, plan, lease, shard)

        return self._do(work)

    def _claim(
        self,
        connection: Any,
        former: str | None,
        ticket: str,
        owner: str,
        plan: Any,
        lease: float,
        shard: tuple[int, int],
    ) -> Job | None:
        jobs, (share, shares) = self.jobs, shard
        if former is not None:
            columns = (jobs.c.id, jobs.c.entry, jobs.c.attempts, jobs.c.claims)
            condition = (jobs.c.ticket == former) & (jobs.c.owner == owner) & (jobs.c.state == RUNNING)
            row = connection.execute(sa.select(*columns).where(condition)).first()
            if row is not None:  # claimed when this was asked before, and the answer was lost
                return Job(row.id, row.entry, row.attempts, owner, row.claims)
        now = self._now(connection)
        given = {"now": now, "share": share, "shares": shares}
        statements = self.statements
        query, more = (
            (statements.next_of_plan, {"of": plan}) if isinstance(plan, str) else (statements.next(self._of(plan)), {})
        )
        row = connection.execute(query, {**given, **more}).first()
        if row is None:
            return None
        check_row(row._mapping, self.shown)
        job = Job(row.id, row.entry, row.attempts + 1, owner, row.claims + 1)
        claimed = {
            "state": RUNNING,
            "owner": owner,
            "lease_until": now + lease,
            "attempts": job.attempt,
            "claims": job.token,
            "ticket": ticket,
            "started": now,
            "updated": now,
            "stage": None,
            "error": None,
        }
        connection.execute(statements.change, {"of": row.id, **claimed})
        tried = {"job": job.id, "attempt": job.attempt, "owner": owner, "token": job.token, "started": now}
        connection.execute(statements.tried, tried)
        return job

    def _of(self, plan: Any) -> Any:
        return self.jobs.c.plan == plan if isinstance(plan, str) else self.jobs.c.plan.in_(plan)

    def beat(self, held: Sequence[Job], lease: float) -> list[Job]:
        """Renew the leases of claims that are being worked on; return those that somebody else holds by now."""
        jobs = self.jobs

        def work(connection: Any) -> list[Job]:
            until, lost = self._now(connection) + lease, []
            for job in held:
                renewed = sa.update(jobs).where(self._holds(job)).values(lease_until=until, updated=time.time())
                if connection.execute(renewed).rowcount != 1:
                    lost.append(job)
            return lost

        return self._do(work) if held else []

    def bind(self, job: Job, key: str) -> Duplicate | None:
        """Record the content and recipe of the job.

        Returns another job that has the same and is done or being worked on; this one is then not to be done, or not
        yet (`wait`). Raises LeaseLost.
        """
        jobs = self.jobs
        try:
            self._do(lambda connection: self._change(connection, job, key=key))
            return None
        except sa.exc.IntegrityError:
            query = sa.select(jobs.c.id, jobs.c.state).where(jobs.c.key == key)
            found = self._do(lambda connection: connection.execute(query).first())
            return Duplicate(found.id, found.state == DONE) if found is not None else self.bind(job, key)

    def verifying(self, job: Job) -> None:
        """Record that the output is written and being proved. Raises LeaseLost."""
        self._do(lambda connection: self._change(connection, job, state=VERIFYING))

    def confirm(self, job: Job) -> None:
        """Raise LeaseLost unless the job is still held; this is asked before anything is published.

        It says what `verifying` does, too: the proof of a tiny model is over before that is worth a transaction.
        """
        self._do(lambda connection: self._change(connection, job, state=VERIFYING))

    def finish(self, job: Job, state: str, **values: Any) -> list[Job]:
        """End an attempt. Raises LeaseLost.

        A job that is not done releases its key: jobs are skipped only for a twin that is done. Returns the jobs that
        waited for this one and are skipped with it.
        """
        if state != DONE:
            values["key"] = None

        def work(connection: Any) -> list[Job]:
            if state == SKIPPED and self._state(connection, str(values.get("same_as"))) != DONE:
                raise ValueError(f"{job.id} is skipped for {values.get('same_as')!r}, which is not done")
            return self._end(connection, job, state, state, finished=self._now(connection), **values)

        return self._do(work)

    def wait(self, job: Job, duplicate: str) -> None:
        """Queue the job again until `twin`, which is working on the same content, has ended. Raises LeaseLost."""

        def work(connection: Any) -> None:
            held = self._state(connection, duplicate) in HELD
            values: dict[str, Any] = {"key": None, "error": None, "attempts": job.attempt - 1}
            self._end(
                connection, job, QUEUED, "put back", same_as=duplicate if held else None, not_before=0.0, **values
            )

        self._do(work)

    def _state(self, connection: Any, job: str) -> str | None:
        """Return the state of a job, which cannot change before the end of the transaction."""
        query = sa.select(self.jobs.c.state).where(self.jobs.c.id == job).with_for_update()
        found: str | None = connection.execute(query).scalar()
        return found

    def put_back(
        self, job: Job, delay: float, error: Mapping[str, Any] | None = None, counts: bool = True, lost: bool = False
    ) -> None:
        """Queue the job again, not before `delay` seconds, LONGEST_DELAY at most. Raises LeaseLost.

        `counts`: as one of the job's attempts; `lost`: as one of its leases that ended with its machine.
        """
        jobs = self.jobs

        def work(connection: Any) -> None:
            losses = connection.execute(sa.select(jobs.c.losses).where(jobs.c.id == job.id)).scalar_one() + lost
            state = QUEUED if losses < LOST_AT_MOST else QUARANTINED
            self._end(
                connection,
                job,
                state,
                "put back",
                key=None,
                same_as=None,
                not_before=self._now(connection) + min(delay, LONGEST_DELAY),
                losses=losses,
                attempts=job.attempt if counts else job.attempt - 1,
                error=error,
            )

        self._do(work)

    def reclaim(self) -> list[str]:
        """Queue the jobs that nobody works on any more; return the sources of those that were held.

        These are held jobs whose lease ran out or whose holder is a dead process of this machine, and jobs that were
        skipped or wait for a twin that is neither done nor being worked on.
        """
        return self._do(self._reclaim)

    def _reclaim(self, connection: Any) -> list[str]:
        jobs, freed, now = self.jobs, [], self._now(connection)
        names = ("id", "owner", "claims", "lease_until", "updated", "losses", "source", "attempts")
        held = sa.select(*(jobs.c[name] for name in names)).where(jobs.c.state.in_(HELD)).order_by(jobs.c.id)
        for row in connection.execute(held).all():
            if row.lease_until > now and not is_dead(row.owner):
                self._shorten(connection, row, now)
                continue
            lost = {"class": "LeaseLost", "message": f"held by {row.owner}, which is gone"}
            state = QUEUED if row.losses + 1 < LOST_AT_MOST else QUARANTINED
            values = {"state": state, "owner": None, "lease_until": None, "key": None, "error": lost}
            values |= {"losses": row.losses + 1, "attempts": max(0, row.attempts - 1)}
            job = Job(row.id, {}, row.attempts, row.owner, row.claims)
            if connection.execute(sa.update(jobs).where(self._holds(job)).values(**values)).rowcount:
                freed.append(row.source)
                self._end_attempt(connection, job, "lost", lost, now)
        self._queue_orphans(connection)
        return freed

    def _shorten(self, connection: Any, row: Any, now: float) -> None:
        """Have a lease end when it would have, had the clock not been set back since it was renewed.

        That is for SQLite, where the holder's clock is this one; its holder, if it lives, renews it again.
        """
        if self._sqlite and row.updated > now:
            until = now + row.lease_until - row.updated
            condition = self._holds(Job(row.id, {}, row.attempts, row.owner, row.claims))
            connection.execute(sa.update(self.jobs).where(condition).values(lease_until=until, updated=now))

    def _queue_orphans(self, connection: Any) -> None:
        jobs, twins = self.jobs, self.jobs.alias()
        for state, needed, values in (
            (QUEUED, HELD, {}),
            (SKIPPED, (DONE,), {"state": QUEUED, "error": None, "attempts": 0, "losses": 0}),
        ):
            duplicate = sa.exists().where(twins.c.id == jobs.c.same_as, twins.c.state.in_(needed))
            left = (jobs.c.state == state) & jobs.c.same_as.is_not(None) & ~duplicate
            connection.execute(sa.update(jobs).where(left).values(same_as=None, **values))

    def _end_waiting(self, connection: Any, duplicate: str, state: str) -> list[Job]:
        """End the wait for `twin`, which ended as `state`; return the jobs that are skipped.

        They are skipped when it is done, and queued otherwise.
        """
        found = connection.execute(self.statements.waiting, {"of": duplicate}).all()
        if not found:
            return []
        waiting = (self.jobs.c.state == QUEUED) & (self.jobs.c.same_as == duplicate)
        values = (
            {"state": SKIPPED, "error": SAME, "finished": self._now(connection)} if state == DONE else {"same_as": None}
        )
        connection.execute(sa.update(self.jobs).where(waiting).values(**values))
        return [Job(row.id, row.entry, row.attempts, "", row.claims) for row in found] if state == DONE else []

    def _holds(self, job: Job) -> Any:
        """Return the condition that `job` is held by this very claim."""
        jobs = self.jobs
        condition = (jobs.c.id == job.id) & (jobs.c.owner == job.owner) & (jobs.c.claims == job.token)
        return condition & jobs.c.state.in_(HELD)

    def _change(self, connection: Any, job: Job, **values: Any) -> None:
        held = {"of": job.id, "by": job.owner, "token": job.token}
        values = {"updated": time.time(), **values}
        if connection.execute(self.statements.change_held, {**values, **held}).rowcount != 1:
            raise LeaseLost(job.id)

    def _end(self, connection: Any, job: Job, state: str, outcome: str, **values: Any) -> list[Job]:
        """End a claim; return the jobs that are skipped with it.

        If it has ended so already, this is asked for the second time because the answer was lost.
        """
        try:
            self._change(connection, job, state=state, owner=None, lease_until=None, **values)
        except LeaseLost:
            jobs = self.jobs
            ended = (jobs.c.id == job.id) & (jobs.c.claims == job.token) & (jobs.c.state == state)
            if connection.execute(sa.select(jobs.c.id).where(ended)).first() is None:
                raise
            return []
        self._end_attempt(connection, job, outcome, values.get("error"), self._now(connection))
        return self._end_waiting(connection, job.id, state)

    def _end_attempt(self, connection: Any, job: Job, outcome: str, error: Any, now: float) -> None:
        ended = {"of": job.id, "claim": job.token, "outcome": outcome, "error": error, "ended": now}
        connection.execute(self.statements.end_attempt, ended)

    def now(self) -> float:
        """Return the time by which leases end and jobs are put back, in seconds since 1970."""
        return self._do(self._now)

    # --- reading -----------------------------------------------------------------------------------------------

    def counts(self, plan: str | None = None) -> dict[str, int]:
        """Return the number of jobs by state, of one plan or all."""
        jobs = self.jobs
        query = sa.select(jobs.c.state, sa.func.count()).group_by(jobs.c.state)
        query = query if plan is None else query.where(jobs.c.plan == plan)
        found: dict[str, int] = self._do(lambda connection: dict(connection.execute(query).all()))
        return {state: found.get(state, 0) for state in STATES}

    def rows(self, plan: str | None = None, states: Iterable[str] | None = None, full: bool = True) -> list[LedgerRow]:
        """Return jobs as plain data, ordered by source; without `full`, entry and receipt are left out.

        Then `further` lists the outputs of a job besides its first, as its line has them.
        """
        jobs = self.jobs
        columns = [c for c in jobs.c if full or c.name not in ("entry", "receipt")]
        columns += [] if full else [jobs.c.entry["further"].label("further")]
        query = sa.select(*columns).order_by(jobs.c.source, jobs.c.id)
        if plan is not None:
            query = query.where(jobs.c.plan == plan)
        if states is not None:
            query = query.where(jobs.c.state.in_(list(states)))
        found = cast("list[LedgerRow]", self._plain_rows(query))
        for row in found:
            check_row(row, self.shown)
        return found

    def sound_rows(
        self, plan: str | None = None, states: Iterable[str] | None = None
    ) -> tuple[list[LedgerRow], list[CorruptError]]:
        """Return what `rows` does, without the jobs whose row is damaged, and an error that names each of these."""
        try:
            return self.rows(plan, states), []
        except CorruptError:
            jobs = self.jobs
            query = sa.select(jobs.c.id).order_by(jobs.c.id)
            query = query if plan is None else query.where(jobs.c.plan == plan)
            query = query if states is None else query.where(jobs.c.state.in_(list(states)))
            ids = self._do(lambda connection: connection.execute(query).scalars().all(), reads=True)
            found, errors = self.read_each(ids)
            rows = cast("list[LedgerRow]", found)
            return sorted(rows, key=lambda row: (row["source"], row["id"])), errors

    def job(self, name_or_path: str) -> TriedRow:
        """Return one job with its attempts, by the beginning of its id, its source or its output.

        Raises NotFoundError.
        """
        name = _plain(name_or_path)
        found = [
            row
            for row in self.rows()
            if row["id"].startswith(name_or_path)
            or name in (row["source"], row["output"])
            or name in map(_plain, outputs_of(row["entry"]))
        ]
        if len(found) != 1:
            raise NotFoundError(f"{len(found)} jobs go by this name", path=self.shown, found=name_or_path)
        table = self.attempts
        query = sa.select(table).where(table.c.job == found[0]["id"]).order_by(table.c.id)
        return {**found[0], "tried": cast("list[AttemptRow]", self._plain_rows(query))}

    def _plain_rows(self, query: Any) -> list[JSONObject]:
        return self._do(lambda connection: [dict(row._mapping) for row in connection.execute(query)])

    def note_deleted(self, job: str) -> None:
        """Record that the source of a finished job was deleted deliberately."""
        change = sa.update(self.jobs).where(self.jobs.c.id == job).values(deleted=True)
        self._do(lambda connection: connection.execute(change))


def bucket(job: str) -> int:
    """Return a number that distributes jobs over shards; ids are digests."""
    return int(job[:8], 16) % BUCKETS


def _plain(text: str | None) -> str | None:
    """Return a path as a database can store it: bytes that are not UTF-8 become escapes."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
