"""The truth about a migration: one row a job, in SQLite or PostgreSQL. What it says survives any kill.

A job is held through a lease that its coordinator renews; every change to a held job names the holder and fails once
somebody else has it. SQLite runs with WAL and synchronous=FULL: what was acknowledged is on the disk.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ggferry.formats.errors import GgferryError, NotFoundError, UsageError
from ggferry.quant.registry import lazy
from ggferry.service.ledger_tables import SCHEMA, prepare_sqlite, tables

if TYPE_CHECKING:
    import sqlalchemy as sa
else:
    sa = lazy("sqlalchemy")

QUEUED, RUNNING, VERIFYING, DONE, FAILED, QUARANTINED, SKIPPED = STATES = (
    "queued", "running", "verifying", "done", "failed", "quarantined", "skipped",
)  # fmt: skip
HELD = (RUNNING, VERIFYING)
BUCKETS = 1 << 30
LOST_AT_MOST = 10  # leases of one job that may run out before it is taken to be what ends its machines
LOCK = 0x67676A74  # of PostgreSQL's advisory locks; any number that is ours


class LeaseLost(Exception):
    """The job is no longer held by who wants to change it."""


@dataclass(frozen=True, slots=True)
class Job:
    """A claimed job. `entry`: the plan's line as data; `attempt` counts from 1."""

    id: str
    entry: Mapping[str, Any]
    attempt: int
    owner: str


def owner_name() -> str:
    """Names this process so that another on the same machine can tell when it is dead: host, boot and pid space, pid,
    start time."""
    return f"{_machine()}:{os.getpid()}:{_start_time(os.getpid())}:{os.urandom(4).hex()}"


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()[:8]
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        boot, space = "", 0
    return f"{socket.gethostname()}/{boot}/{space}".replace(":", "_")


def _start_time(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return "dead" if fields[0] in "ZX" else fields[19]
    except OSError:
        return "dead"


def is_dead(owner: str) -> bool:
    """Whether the process `owner` names is of this machine and gone. False where that cannot be known."""
    machine, _, rest = owner.partition(":")
    pid, start = (*rest.split(":"), "", "")[:2]
    return machine == _machine() and pid.isdecimal() and _start_time(int(pid)) != start


class Ledger:
    """The jobs at `url`: a path, `sqlite:///…` or `postgresql://user@host/name`. Raises UsageError, NotFoundError."""

    def __init__(self, url: str, *, must_exist: bool = False) -> None:
        self.url = _full_url(url)
        self._sqlite = self.url.startswith("sqlite")
        path = self.url.partition("///")[2]
        if self._sqlite and must_exist and not os.path.exists(path):
            raise NotFoundError("no such ledger", path=path)
        self._meta, self.jobs, self.attempts, self.schema = tables()
        try:
            options: dict[str, Any] = {"connect_args": {"timeout": 60}} if self._sqlite else {"pool_pre_ping": True}
            self.engine = sa.create_engine(self.url, **options)
            if self._sqlite:
                prepare_sqlite(self.engine)
            with self.transaction() as connection:
                self._alone(connection)
                self._meta.create_all(connection)
                self._check_schema(connection)
        except ImportError as error:
            raise UsageError(f"this ledger needs a package: {error}", hint="pip install 'ggferry[postgres]'") from None
        except sa.exc.SQLAlchemyError as error:
            message = str(getattr(error, "orig", error)).splitlines()[0]
            raise NotFoundError(f"the ledger cannot be opened: {message}", path=_shown(self.url)) from None

    def close(self) -> None:
        self.engine.dispose()

    # --- filling -----------------------------------------------------------------------------------------------

    def register(self, plan: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Put the jobs of a plan in: rows of id, source, entry, state and, of bad ones, error. What was ever tried
        stays as it is; queued jobs of this plan that are not among `rows` any more are skipped."""
        jobs = self.jobs
        with self.transaction() as connection:
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
                left = {"state": SKIPPED, "error": {"class": "Left", "message": "no longer in the plan"}}
                connection.execute(sa.update(jobs).where(jobs.c.id == i).values(**left))

    def _row(self, plan: str, row: Mapping[str, Any]) -> dict[str, Any]:
        now = time.time()
        entry = row["entry"]
        return {
            "id": row["id"], "plan": plan, "source": _plain(row["source"]), "output": _plain(entry.get("output")),
            "entry": entry,
            "state": row["state"], "bucket": bucket(row["id"]), "bytes_in": entry.get("bytes_in", 0),
            "bytes_out": entry.get("bytes_out", 0), "error": row.get("error"), "attempts": 0, "losses": 0,
            "not_before": 0.0, "created": now, "updated": now, "deleted": False,
        }  # fmt: skip

    def retry(
        self, plan: str, states: Sequence[str] = (FAILED, QUARANTINED), fault: str | None = None
    ) -> int:  # fmt: skip
        """Queue again what failed while being done (what the plan itself found bad stays); how many. `fault`: only
        what ended with an error of that kind (`errors.Fault`)."""
        jobs = self.jobs
        mine = (jobs.c.plan == plan) & jobs.c.state.in_(states) & (jobs.c.attempts + jobs.c.losses > 0)
        if fault is not None:
            mine &= jobs.c.error["fault"].as_string() == fault
        with self.transaction() as connection:
            values = {"state": QUEUED, "attempts": 0, "losses": 0, "not_before": 0.0, "key": None}
            return int(connection.execute(sa.update(jobs).where(mine).values(**values)).rowcount)

    # --- holding -----------------------------------------------------------------------------------------------

    def claim(self, owner: str, plan: str, lease: float, shard: tuple[int, int] = (0, 1)) -> Job | None:
        """A queued job, now held by `owner` for `lease` seconds; None when there is none to be had now. Fewest attempts
        first, then the largest. `shard`: (i, n), only jobs of share i of n, from 0."""
        jobs, (share, shares) = self.jobs, shard
        with self.transaction() as connection:
            now = self._now(connection)
            wanted = (
                sa.select(jobs.c.id, jobs.c.entry, jobs.c.attempts)
                .where(jobs.c.plan == plan, jobs.c.state == QUEUED, jobs.c.not_before <= now)
                .where(jobs.c.bucket % shares == share)
                .order_by(jobs.c.attempts + jobs.c.losses, jobs.c.bytes_in.desc(), jobs.c.id)
                .limit(1)
                .with_for_update(skip_locked=True)
            )
            row = connection.execute(wanted).first()
            if row is None:
                return None
            connection.execute(
                sa.update(jobs).where(jobs.c.id == row.id).values(
                    state=RUNNING, owner=owner, lease_until=now + lease, attempts=row.attempts + 1, started=now,
                    updated=now, stage=None, error=None,
                )
            )  # fmt: skip
            connection.execute(
                sa.insert(self.attempts).values(job=row.id, attempt=row.attempts + 1, owner=owner, started=now)
            )
        return Job(row.id, row.entry, row.attempts + 1, owner)

    def beat(self, owner: str, lease: float) -> None:
        """Renew every lease of `owner`."""
        jobs = self.jobs
        with self.transaction() as connection:
            now = self._now(connection)
            mine = (jobs.c.owner == owner) & jobs.c.state.in_(HELD)
            connection.execute(sa.update(jobs).where(mine).values(lease_until=now + lease, updated=now))

    def bind(self, job: Job, key: str) -> str | None:
        """Note what the job's content and recipe are. Returns the id of another job that has the same and is done or
        at work; then this one is not to be done. Raises LeaseLost."""
        jobs = self.jobs
        try:
            with self.transaction() as connection:
                self._change(connection, job, key=key)
                return None
        except sa.exc.IntegrityError:
            with self.transaction() as connection:
                row = connection.execute(sa.select(jobs.c.id).where(jobs.c.key == key)).first()
            return row.id if row is not None else self.bind(job, key)

    def verifying(self, job: Job) -> None:
        """The output is written and being proved. Raises LeaseLost."""
        with self.transaction() as connection:
            self._change(connection, job, state=VERIFYING)

    def confirm(self, job: Job) -> None:
        """Raises LeaseLost unless the job is still held: asked before anything is published."""
        with self.transaction() as connection:
            self._change(connection, job)

    def finish(self, job: Job, state: str, **values: Any) -> None:
        """End an attempt. A job that is not done gives its key free. Raises LeaseLost."""
        if state != DONE:
            values["key"] = None
        with self.transaction() as connection:
            now = self._now(connection)
            self._change(connection, job, state=state, owner=None, lease_until=None, finished=now, **values)
            self._end_attempt(connection, job, state, values.get("error"), now)

    def put_back(self, job: Job, delay: float, error: Mapping[str, Any] | None = None, counts: bool = True) -> None:
        """Queue again, not before `delay` seconds. `counts`: as one of the job's attempts. Raises LeaseLost."""
        with self.transaction() as connection:
            now = self._now(connection)
            attempts = job.attempt if counts else job.attempt - 1
            self._change(
                connection, job, state=QUEUED, owner=None, lease_until=None, key=None, not_before=now + delay,
                attempts=attempts, error=error,
            )  # fmt: skip
            self._end_attempt(connection, job, "put back", error, now)

    def reclaim(self) -> list[str]:
        """Queue every held job whose lease ran out or whose holder is a dead process of this machine; their sources."""
        jobs, freed = self.jobs, []
        with self.transaction() as connection:
            now = self._now(connection)
            columns = (jobs.c.id, jobs.c.owner, jobs.c.lease_until, jobs.c.losses, jobs.c.source, jobs.c.attempts)
            for row in connection.execute(sa.select(*columns).where(jobs.c.state.in_(HELD))).all():
                if row.lease_until > now and not is_dead(row.owner):
                    continue
                lost = {"class": "LeaseLost", "message": f"held by {row.owner}, which is gone"}
                state = QUEUED if row.losses + 1 < LOST_AT_MOST else QUARANTINED
                values = {"state": state, "owner": None, "lease_until": None, "key": None, "error": lost}
                values |= {"losses": row.losses + 1, "attempts": max(0, row.attempts - 1)}
                held = (jobs.c.id == row.id) & (jobs.c.owner == row.owner)
                if connection.execute(sa.update(jobs).where(held).values(**values)).rowcount:
                    freed.append(row.source)
                    job = Job(row.id, {}, row.attempts, row.owner)
                    self._end_attempt(connection, job, "lost", lost, now)
        return freed

    def _change(self, connection: Any, job: Job, **values: Any) -> None:
        jobs = self.jobs
        held = (jobs.c.id == job.id) & (jobs.c.owner == job.owner) & jobs.c.state.in_(HELD)
        held &= jobs.c.attempts == job.attempt
        values = {"updated": time.time(), **values}
        if connection.execute(sa.update(jobs).where(held).values(**values)).rowcount != 1:
            raise LeaseLost(job.id)

    def _end_attempt(self, connection: Any, job: Job, outcome: str, error: Any, now: float) -> None:
        table = self.attempts
        mine = (table.c.job == job.id) & (table.c.owner == job.owner) & table.c.outcome.is_(None)
        connection.execute(sa.update(table).where(mine).values(outcome=outcome, error=error, ended=now))

    # --- reading -----------------------------------------------------------------------------------------------

    def counts(self, plan: str | None = None) -> dict[str, int]:
        """Jobs by state, of one plan or all."""
        jobs = self.jobs
        query = sa.select(jobs.c.state, sa.func.count()).group_by(jobs.c.state)
        with self.engine.connect() as connection:
            found: dict[str, int] = dict(
                connection.execute(query if plan is None else query.where(jobs.c.plan == plan)).all()
            )
        return {state: found.get(state, 0) for state in STATES}

    def rows(
        self, plan: str | None = None, states: Iterable[str] | None = None, full: bool = True
    ) -> list[dict[str, Any]]:
        """Jobs as plain data by source; without `full` leaving out entry and receipt."""
        jobs = self.jobs
        columns = [c for c in jobs.c if full or c.name not in ("entry", "receipt")]
        query = sa.select(*columns).order_by(jobs.c.source, jobs.c.id)
        if plan is not None:
            query = query.where(jobs.c.plan == plan)
        if states is not None:
            query = query.where(jobs.c.state.in_(list(states)))
        with self.engine.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    def job(self, wanted: str) -> dict[str, Any]:
        """One job with its attempts, by the beginning of its id, its source or its output. Raises NotFoundError."""
        found = [row for row in self.rows() if row["id"].startswith(wanted) or wanted in (row["source"], row["output"])]
        if len(found) != 1:
            raise NotFoundError(f"{len(found)} jobs go by this name", path=_shown(self.url), found=wanted)
        table = self.attempts
        with self.engine.connect() as connection:
            tried = connection.execute(sa.select(table).where(table.c.job == found[0]["id"]).order_by(table.c.id))
            return {**found[0], "tried": [dict(row._mapping) for row in tried]}

    def note_deleted(self, job: str) -> None:
        """The source of a finished job is gone, deliberately."""
        with self.transaction() as connection:
            connection.execute(sa.update(self.jobs).where(self.jobs.c.id == job).values(deleted=True))

    # --- the database ------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A transaction that ends on the disk."""
        with self.engine.begin() as connection:
            yield connection

    def _now(self, connection: Any) -> float:
        """Seconds since 1970 by the clock all holders share: the server's, or this machine's for a file on it."""
        if self._sqlite:
            return time.time()
        return float(connection.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    def _check_schema(self, connection: Any) -> None:
        found = connection.execute(sa.select(self.schema.c.version)).scalars().all()
        if not found:
            connection.execute(sa.insert(self.schema).values(version=SCHEMA))
        elif found != [SCHEMA]:
            hint = "use the ggferry that made it, or a new ledger"
            raise GgferryError("a ledger of another version", path=_shown(self.url), found=found, hint=hint)

    def _alone(self, connection: Any) -> None:
        """Wait until nobody else registers jobs or makes tables: SQLite's transactions are like that anyway."""
        if not self._sqlite:
            connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({LOCK})"))


def bucket(job: str) -> int:
    """A number that spreads jobs over shards; ids are digests."""
    return int(job[:8], 16) % BUCKETS


def _full_url(url: str) -> str:
    if "://" not in url:
        return f"sqlite:///{os.path.abspath(url)}"
    scheme, _, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}" if scheme in ("postgres", "postgresql") else url


def _plain(text: str | None) -> str | None:
    """A path as a database can hold it: bytes that are not UTF-8 become escapes."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _shown(url: str) -> str:
    """A URL without its password."""
    head, sign, rest = url.partition("://")
    return f"{head}{sign}{rest.rpartition('@')[2]}" if "@" in rest else url
