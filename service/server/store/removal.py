"""Jobs whose files are gone, and jobs that are to be forgotten; and the states that the ledger has no word for.

A cancelled job and one whose outputs were removed are 'skipped' to the ledger, with an error that says why. People and
programs are shown 'cancelled' and 'expired'.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.service.records.ledger import DONE, HELD, QUEUED, SKIPPED, STATES
from ggferry.service.server.store.database import CANCELLED, EXPIRED, Store
from ggferry.support.heavy import sa

SHOWN = {CANCELLED["class"]: "cancelled", EXPIRED["class"]: "expired"}
"""Class of the error of a skipped job → its state as it is shown."""


def shown_state(state: str, error: Mapping[str, Any] | None) -> str:
    """Return the state of a job as people and programs are shown it."""
    return SHOWN.get(str((error or {}).get("class")), state) if state == SKIPPED else state


def shown_state_of(jobs: Any) -> Any:
    """Return `shown_state` as SQL, of the ledger's table of jobs."""
    why = jobs.c.error["class"].as_string()
    cases = [((jobs.c.state == SKIPPED) & (why == kind), word) for kind, word in SHOWN.items()]
    return sa.case(*cases, else_=jobs.c.state)


def counts(store: Store) -> dict[str, int]:
    """Return the number of jobs by state, as they are shown."""
    state = shown_state_of(store.jobs)
    rows = store.all(sa.select(state.label("state"), sa.func.count().label("n")).group_by(state))
    found = {row["state"]: int(row["n"]) for row in rows}
    return {name: found.get(name, 0) for name in (*STATES, *SHOWN.values())}


def expire(store: Store, jobs: Sequence[str]) -> None:
    """Record that the outputs of done jobs are gone; models that are skipped as the same content have none, either."""
    table, outputs = store.jobs, store.t.outputs
    values = {"state": SKIPPED, "error": EXPIRED, "key": None, "same_as": None, "updated": time.time()}

    def work(connection: Any) -> None:
        same = (table.c.state == SKIPPED) & table.c.same_as.in_(jobs)
        connection.execute(sa.update(table).where(same).values(**values))
        connection.execute(sa.update(table).where(table.c.id.in_(jobs), table.c.state == DONE).values(**values))
        connection.execute(sa.delete(outputs).where(outputs.c.job.in_(jobs)))

    if jobs:
        store.do(work)


def forget(store: Store, jobs: Sequence[str]) -> None:
    """Remove jobs that have ended, and models that nobody submitted, from the ledger and the index."""
    table, t = store.jobs, store.t
    if not jobs:
        return
    expire(store, jobs)
    active = table.c.state.in_((QUEUED, *HELD))

    def work(connection: Any) -> None:
        held = set(connection.execute(sa.select(table.c.id).where(table.c.id.in_(jobs), active)).scalars())
        gone = [job for job in jobs if job not in held]
        for each, column in (
            (store.attempts, store.attempts.c.job),
            (t.outputs, t.outputs.c.job),
            (t.asked, t.asked.c.job),
            (t.qualities, t.qualities.c.job),
            (t.models, t.models.c.id),
            (table, table.c.id),
        ):
            connection.execute(sa.delete(each).where(column.in_(gone)))

    store.do(work)


def requeue_requested(store: Store, jobs: Sequence[str]) -> list[str]:
    """Queue those of the jobs again that were cancelled or whose outputs are gone, and return them."""
    table = store.jobs
    query = sa.select(table.c.id).where(table.c.id.in_(jobs), shown_state_of(table).in_(SHOWN.values()))
    found = [row["id"] for row in store.all(query)]
    for job in found:
        store.requeue(job)
    return found
