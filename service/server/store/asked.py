"""Who asked for a job, and when: whose quota it counts for, and who may end or delete it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ggferry.service.records.ledger import DONE, HELD, QUEUED
from ggferry.service.server.store.database import Store
from ggferry.service.server.store.tokens import Token
from ggferry.support.heavy import sa

SOME = 500  # ids in a statement


@dataclass(frozen=True, slots=True)
class Requester:
    """Who asked for a job: the id and name of the token, and when, in seconds since 1970."""

    token: str
    name: str
    at: float


def note(store: Store, jobs: Sequence[str], token: Token, *, again: Sequence[str] = ()) -> None:
    """Record that a token asked for jobs. Whoever asked first stays their owner, but for those asked for `again`."""
    table, now = store.t.asked, time.time()
    rows = [{"job": job, "token": token.owner, "name": token.name, "at": now} for job in jobs]

    def work(connection: Any) -> None:
        for start in range(0, len(again), SOME):
            connection.execute(sa.delete(table).where(table.c.job.in_(again[start : start + SOME])))
        if rows:
            connection.execute(store._insert(table).on_conflict_do_nothing(), rows)

    store.do(work)


def of(store: Store, job: str) -> Requester | None:
    """Return who asked for a job; None for those of `ggferry apply`."""
    table = store.t.asked
    found = store.first(sa.select(table).where(table.c.job == job))
    return None if found is None else Requester(found["token"], found["name"], found["at"])


def bytes_of(store: Store, owner: str) -> int:
    """Return the bytes of the outputs, finished or to come, of the jobs that a token asked for."""
    jobs, table, plans = store.jobs, store.t.asked, store.t.plans
    going = jobs.c.state.in_((QUEUED, *HELD, DONE))
    known = sa.exists().where(table.c.job == jobs.c.id)
    condition = sa.exists().where(table.c.job == jobs.c.id, table.c.token == owner)
    # of an earlier version, which kept the owner of a plan alone
    runs = sa.select(plans.c.run).where(plans.c.token == owner, plans.c.submitted.is_not(None))
    query = sa.select(sa.func.sum(jobs.c.bytes_out).label("n")).where(
        going & (condition | (~known & jobs.c.plan.in_(runs)))
    )
    return int((store.first(query) or {}).get("n") or 0)
