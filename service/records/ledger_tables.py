"""The ledger's tables, the statements that every job needs, and the settings that make SQLite keep its promises."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from ggferry.support.heavy import sa

QUEUED, RUNNING, VERIFYING, DONE, FAILED, QUARANTINED, SKIPPED = STATES = (
    "queued",
    "running",
    "verifying",
    "done",
    "failed",
    "quarantined",
    "skipped",
)
HELD = (RUNNING, VERIFYING)
LONGEST_DELAY = 60.0  # seconds that a job is put back for at most
SCHEMA = 2
"""What `ggferry_schema` states; a ggferry refuses a ledger that states more. It rises where an older ggferry, which may
run beside this one, could no longer work with the tables; every change of them is a module of `schema/versions/`."""


def tables() -> tuple[Any, Any, Any, Any]:
    """Return metadata and the tables jobs, attempts, schema.

    Times are seconds since 1970, sizes bytes. A job's `claims` only grows: its value at a claim is that claim's token.
    `ticket` is the request that made the last claim. Of queued jobs those of the largest `priority` come first.
    """
    meta = sa.MetaData()
    text, number, real, data, column = sa.Text, sa.BigInteger, sa.Double, sa.JSON, sa.Column
    jobs = sa.Table(
        "ggferry_jobs", meta,
        column("id", text, primary_key=True), column("plan", text, nullable=False), column("source", text),
        column("output", text), column("entry", data), column("state", text, nullable=False), column("bucket", number),
        column("key", text, unique=True), column("bytes_in", number), column("bytes_out", number),
        column("attempts", sa.Integer), column("losses", sa.Integer), column("owner", text),
        column("lease_until", real), column("not_before", real), column("stage", text),
        column("error", data(none_as_null=True)), column("receipt", data(none_as_null=True)), column("same_as", text),
        column("adopted", sa.Boolean), column("peak", number), column("deleted", sa.Boolean), column("created", real),
        column("started", real), column("finished", real), column("updated", real),
        column("claims", number, nullable=False, server_default="0"), column("ticket", text),
        column("priority", number, nullable=False, server_default="0"),
        # In whose order jobs are claimed: without it, each claim sorts all that are queued.
        sa.Index("ggferry_jobs_next", "plan", "state", sa.text("priority DESC"), sa.text("(attempts + losses)"),
                 sa.text("bytes_in DESC"), "id"),
        sa.Index("ggferry_jobs_waiting", "same_as"),
    )
    attempts = sa.Table(
        "ggferry_attempts", meta,
        column("id", sa.Integer, primary_key=True, autoincrement=True), column("job", text, index=True),
        column("attempt", sa.Integer), column("owner", text), column("outcome", text),
        column("error", data(none_as_null=True)), column("started", real), column("ended", real),
        column("token", number),
    )
    return meta, jobs, attempts, sa.Table("ggferry_schema", meta, column("version", sa.Integer, primary_key=True))


class Statements:
    """Statements that every job needs, made once: to make one anew takes longer than to carry it out.

    A change sets the columns that are among its parameters besides those named here.
    """

    def __init__(self, jobs: Any, attempts: Any) -> None:
        self._jobs, self._attempts = jobs, attempts

    def next(self, of_plan: Any) -> Any:
        """Return the query for the job to be claimed next; parameters: now, share, shares."""
        jobs = self._jobs
        return (
            sa.select(jobs.c.id, jobs.c.entry, jobs.c.attempts, jobs.c.claims)
            .where(of_plan, jobs.c.state == QUEUED, _is_due(jobs, sa.bindparam("now", type_=sa.Double)))
            .where(jobs.c.bucket % sa.bindparam("shares") == sa.bindparam("share"))
            .where(jobs.c.same_as.is_(None))  # those with one wait for it
            .order_by(*claim_order(jobs))
            .limit(1)
            .with_for_update(skip_locked=True)
        )

    @cached_property
    def next_of_plan(self) -> Any:
        """The same of the jobs of one plan; a further parameter: of."""
        return self.next(self._jobs.c.plan == sa.bindparam("of"))

    @cached_property
    def change(self) -> Any:
        """A change of a job; parameter: of."""
        return sa.update(self._jobs).where(self._jobs.c.id == sa.bindparam("of"))

    @cached_property
    def change_held(self) -> Any:
        """A change of a job that is held by a claim; parameters: of, by, token."""
        jobs = self._jobs
        condition = (jobs.c.id == sa.bindparam("of")) & (jobs.c.owner == sa.bindparam("by"))
        held = (jobs.c.state == RUNNING) | (jobs.c.state == VERIFYING)
        return sa.update(jobs).where(condition, jobs.c.claims == sa.bindparam("token"), held)

    @cached_property
    def tried(self) -> Any:
        """A further attempt."""
        return sa.insert(self._attempts)

    @cached_property
    def end_attempt(self) -> Any:
        """A change of an attempt that has not ended; parameters: of, claim."""
        table = self._attempts
        condition = (table.c.job == sa.bindparam("of")) & (table.c.token == sa.bindparam("claim"))
        return sa.update(table).where(condition, table.c.outcome.is_(None))

    @cached_property
    def waiting(self) -> Any:
        """The query for the jobs that wait for another; parameter: of."""
        jobs = self._jobs
        columns = (jobs.c.id, jobs.c.entry, jobs.c.attempts, jobs.c.claims)
        return sa.select(*columns).where(jobs.c.state == QUEUED, jobs.c.same_as == sa.bindparam("of"))


def claim_order(jobs: Any) -> tuple[Any, ...]:
    """Return the order in which queued jobs are claimed: as people ordered them, the fewest attempts, the largest."""
    return jobs.c.priority.desc(), jobs.c.attempts + jobs.c.losses, jobs.c.bytes_in.desc(), jobs.c.id


def _is_due(jobs: Any, now: Any) -> Any:
    """Return the condition that a job need not wait any more; one put back for longer is so by a clock set back."""
    return (jobs.c.not_before <= now) | (jobs.c.not_before > now + LONGEST_DELAY)


def prepare_sqlite(engine: Any) -> None:
    """Set WAL, commits to disk, and transactions that lock at once, so that no claim is based on stale data."""

    def on_connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours, below
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=60000"):
            connection.execute(f"PRAGMA {pragma}")

    def on_begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    sa.event.listen(engine, "connect", on_connect)
    sa.event.listen(engine, "begin", on_begin)
