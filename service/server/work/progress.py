"""How far jobs are: from the events of those that run here, and from what other servers note in the ledger."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ggferry.service.records.fields import ProgressRecord, RunProgress
from ggferry.service.records.ledger import HELD
from ggferry.service.server.store.database import Store
from ggferry.service.workers.messages import Event
from ggferry.support.heavy import sa
from ggferry.support.progress import Phase

COUNTED = (Phase.READING, Phase.WRITING, Phase.VERIFYING)
"""A model is read once to identify it, written once, and read once more for the proof."""
WINDOW = 30.0  # seconds over which a rate is taken
NOTED_EVERY = 2.0  # seconds between notes in the ledger


@dataclass
class Going:
    """A job at work: bytes done by phase, and when how many were done."""

    total: int
    phase: str = ""
    phases: dict[str, int] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    marks: list[tuple[float, int]] = field(default_factory=lambda: [(time.monotonic(), 0)])
    noted: float = 0.0

    @property
    def done(self) -> int:
        """Bytes done so far."""
        return min(self.total, sum(self.phases.get(phase, 0) for phase in COUNTED))

    def mark(self) -> None:
        """Note how much is done now."""
        now = time.monotonic()
        recent = [mark for mark in self.marks if now - mark[0] <= WINDOW][-60:]
        self.marks = [*(recent or self.marks[-1:]), (now, self.done)]

    def as_dict(self) -> ProgressRecord:
        """Return it for people: phase, bytes done and in all, of the phase too, bytes a second, seconds left."""
        (then, before), (now, done) = self.marks[0], self.marks[-1]
        rate = (done - before) / (now - then) if now > then else 0.0
        left = (self.total - done) / rate if rate > 0 else None
        return {
            "phase": self.phase,
            "done": self.done,
            "total": self.total,
            "phase_done": self.phases.get(self.phase, 0),
            "phase_total": self.totals.get(self.phase),
            "rate": round(rate, 1),
            "eta": None if left is None else round(left, 1),
        }


class ProgressBoard:
    """What each running job has done."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._going: dict[str, Going] = {}
        self._lock = threading.Lock()

    def see(self, event: Event) -> None:
        """Take an event of an engine into account."""
        job = str(event.get("id", ""))
        with self._lock:
            if event["event"] == "job" and event["state"] == "running":
                self._going[job] = Going(int(event["bytes_in"]) + 2 * int(event["bytes_out"]))
            elif event["event"] == "job":
                self._going.pop(job, None)
            elif event["event"] in ("stage", "progress") and job in self._going:
                note = self._step(self._going[job], event)
                if note is not None:
                    return self._note(job, note)
        return None

    def _step(self, going: Going, event: Event) -> ProgressRecord | None:
        """Take a step of a job into account; return what to note in the ledger, if it is time to."""
        going.phase = str(event["title"])
        if event["event"] == "stage":
            going.totals[going.phase] = int(event.get("total") or 0)
        else:
            done = int(event["done"])
            going.phases[going.phase] = going.phases.get(going.phase, 0) + done if event.get("more") else done
        going.mark()
        if time.monotonic() - going.noted < NOTED_EVERY:
            return None
        going.noted = time.monotonic()
        return going.as_dict()

    def _note(self, job: str, note: ProgressRecord) -> None:
        jobs = self.store.jobs
        condition = (jobs.c.id == job) & jobs.c.state.in_(HELD)
        self.store.run(sa.update(jobs).where(condition).values(stage=json.dumps(note)))

    def of(self, job: str, row: Mapping[str, Any]) -> ProgressRecord | None:
        """Return the progress of a job, whose row the caller has; None for one that is not at work."""
        with self._lock:
            if job in self._going:
                return self._going[job].as_dict()
        if row["state"] not in HELD:
            return None
        try:
            found = json.loads(row["stage"] or "null")
        except ValueError:
            found = None
        begun: ProgressRecord = {"phase": str(row["state"]), "done": 0, "total": 0, "rate": 0.0, "eta": None}
        return cast("ProgressRecord", found) if found else begun

    def whole(self) -> RunProgress:
        """Return the progress of all that runs here, and how much is queued."""
        with self._lock:
            going = {job: each.as_dict() for job, each in self._going.items()}
        jobs = self.store.jobs
        waits = sa.select(sa.func.count(), sa.func.sum(jobs.c.bytes_in + 2 * jobs.c.bytes_out))
        queued, left = self.store._do(
            lambda c: tuple(c.execute(waits.where(jobs.c.state == "queued")).one()), reads=True
        )
        done = sum(each["done"] for each in going.values())
        total = sum(each["total"] for each in going.values()) + int(left or 0)
        rate = sum(each["rate"] for each in going.values())
        eta = round((total - done) / rate, 1) if rate > 0 else None
        return {"running": len(going), "queued": int(queued), "done": done, "total": total, "rate": rate, "eta": eta}

    def running(self) -> dict[str, ProgressRecord]:
        """Return the progress of the jobs that run here, by id."""
        with self._lock:
            return {job: each.as_dict() for job, each in self._going.items()}
