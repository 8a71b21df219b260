"""The queue of a server: which jobs are converted next, and one of them put before or after others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ggferry.formats.errors import RefusedError
from ggferry.service.records.ledger import QUEUED
from ggferry.service.records.ledger_tables import claim_order
from ggferry.service.server.store.database import Store
from ggferry.support.heavy import sa

TOP, UP, DOWN, BOTTOM = PLACES = ("top", "up", "down", "bottom")
QUEUE_LOCK = 0x67676A76  # of PostgreSQL's advisory locks, as in `tables`
WAITS_NO_MORE = "the job does not wait any more"


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits.

    Attributes:
        position: Its number in the queue, from 1.
        id: Its id.
        source: Path or URL.
        bytes_in: Bytes of the source.
        asked_by: Name of the token that asked for it; None where nobody is known.
        owner: Id of that token.
    """

    position: int
    id: str
    source: str
    bytes_in: int
    asked_by: str | None
    owner: str | None


def waiting(store: Store, offset: int = 0, limit: int | None = None) -> list[QueuedJob]:
    """Return the jobs that wait for this server, in the order in which they will be claimed."""
    jobs, requests = store.jobs, store.t.asked
    query = (
        sa.select(jobs.c.id, jobs.c.source, jobs.c.bytes_in, requests.c.name, requests.c.token)
        .select_from(jobs.outerjoin(requests, requests.c.job == jobs.c.id))
        .where(*_is_waiting(store))
        .order_by(*claim_order(jobs))
        .offset(offset)
        .limit(limit)
    )
    return [
        QueuedJob(number, row["id"], row["source"], int(row["bytes_in"] or 0), row["name"], row["token"])
        for number, row in enumerate(store.all(query), offset + 1)
    ]


def length(store: Store) -> int:
    """Return how many jobs wait for this server."""
    query = sa.select(sa.func.count().label("n")).select_from(store.jobs).where(*_is_waiting(store))
    return int((store.first(query) or {"n": 0})["n"])


def overtaken(queue: Sequence[QueuedJob], job: str, place: str) -> list[QueuedJob]:
    """Return the jobs that would come later if a job was put somewhere. Raises RefusedError where it does not wait."""
    here = _index(queue, job)
    return list(queue[_target(here, place, len(queue)) : here])


def move(store: Store, queue: Sequence[QueuedJob], job: str, place: str) -> int:
    """Put a job somewhere in the queue as it was found, and return its position now.

    Raises RefusedError where it, or the job that it is put before or after, does not wait any more.
    """
    here = _index(queue, job)
    there = _target(here, place, len(queue))
    if there < here:
        store.do(lambda connection: _put_before(connection, store, job, queue[there].id))
    elif place == DOWN and there > here:
        store.do(lambda connection: _put_before(connection, store, queue[there].id, job))
    elif there > here:
        store.do(lambda connection: _put_last(connection, store, job))
    return next((each.position for each in waiting(store) if each.id == job), 0)


def _index(queue: Sequence[QueuedJob], job: str) -> int:
    found = next((number for number, each in enumerate(queue) if each.id == job), None)
    if found is None:
        raise RefusedError(WAITS_NO_MORE, found=job, expected=QUEUED)
    return found


def _target(here: int, place: str, count: int) -> int:
    return {TOP: 0, UP: max(0, here - 1), DOWN: min(count - 1, here + 1), BOTTOM: count - 1}[place]


def _is_waiting(store: Store) -> tuple[Any, Any]:
    return store.jobs.c.state == QUEUED, store.jobs.c.plan.in_(store.submitted())


def _put_before(connection: Any, store: Store, job: str, other: str) -> None:
    """Give a job a priority by which it comes right before another; those that come before both stay there.

    Done a second time, it changes nothing.
    """
    jobs = store.jobs
    _lock(connection, store)
    columns = (jobs.c.id, jobs.c.priority, (jobs.c.attempts + jobs.c.losses).label("tried"), jobs.c.bytes_in)
    found = {
        row.id: row
        for row in connection.execute(sa.select(*columns).where(jobs.c.id.in_((job, other)), *_is_waiting(store)))
    }
    if len(found) < 2:
        raise RefusedError(WAITS_NO_MORE, found=job if job not in found else other, expected=QUEUED)
    anchor = found[other]
    if _key(found[job]) < _key(anchor):
        return
    first = (jobs.c.id != job) & _comes_before(jobs, anchor)
    close = sa.select(jobs.c.id).where(*_is_waiting(store), first, jobs.c.priority <= anchor.priority + 1)
    if connection.execute(close.limit(1)).first() is not None:
        raised = sa.update(jobs).where(*_is_waiting(store), first).values(priority=jobs.c.priority + 2)
        connection.execute(raised)
    connection.execute(sa.update(jobs).where(jobs.c.id == job).values(priority=anchor.priority + 1))


def _put_last(connection: Any, store: Store, job: str) -> None:
    """Give a job a priority by which it comes last; done a second time, it stays there."""
    jobs = store.jobs
    _lock(connection, store)
    others = sa.select(sa.func.min(jobs.c.priority)).where(*_is_waiting(store), jobs.c.id != job)
    lowest = int(connection.execute(others).scalar() or 0)
    change = sa.update(jobs).where(jobs.c.id == job, *_is_waiting(store)).values(priority=lowest - 1)
    if not connection.execute(change).rowcount:
        raise RefusedError(WAITS_NO_MORE, found=job, expected=QUEUED)


def _key(row: Any) -> tuple[int, int, int, str]:
    """Return what `claim_order` sorts by."""
    return -row.priority, row.tried, -(row.bytes_in or 0), row.id


def _comes_before(jobs: Any, row: Any) -> Any:
    """Return the condition that a job is claimed before that of a row."""
    tried, size = jobs.c.attempts + jobs.c.losses, jobs.c.bytes_in
    return (jobs.c.priority > row.priority) | (
        (jobs.c.priority == row.priority)
        & (
            (tried < row.tried)
            | ((tried == row.tried) & ((size > row.bytes_in) | ((size == row.bytes_in) & (jobs.c.id < row.id))))
        )
    )


def _lock(connection: Any, store: Store) -> None:
    """Let one at a time change the order: SQLite has one writer anyway."""
    if not store._sqlite:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(QUEUE_LOCK)))
