"""Doing the jobs of a ledger: on this machine, worker processes side by side. (A cluster: `service.ray_engine`.)

The ledger is the truth. A coordinator holds leases on what its workers do and renews them; when it dies, the next one
takes over what it held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ggferry.service.jobs import Outcome, Settings, run_job
from ggferry.service.ledger import DONE, QUEUED, Job, LeaseLost, Ledger, owner_name
from ggferry.service.supervise import Supervisor

LEASE = 60.0  # seconds; renewed three times in it
IDLE = 0.1  # seconds between looks for a job while others are at work
Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What an engine is given. `shard`: (i, n) from 0; `done`: called with each finished job before the next."""

    ledger: Ledger
    plan: str
    jobs: int
    settings: Settings
    emit: Emit
    shard: tuple[int, int] = (0, 1)
    lease: float = LEASE
    done: Callable[[Job, Outcome], None] = lambda job, outcome: None
    owner: str = field(default_factory=owner_name)
    stopping: threading.Event = field(default_factory=threading.Event)

    def waiting(self) -> int:
        """Jobs of this shard that are queued, now or for later."""
        share, shares = self.shard
        rows = self.ledger.rows(self.plan, [QUEUED], full=False)
        return sum(row["bucket"] % shares == share for row in rows)

    def settle(self, job: Job, outcome: Outcome) -> None:
        """Write down how a job ended."""
        try:
            if self.stopping.is_set() and outcome.state != DONE:
                self.ledger.put_back(job, 0, {"class": "Interrupted", "message": "the run was stopped"}, counts=False)
                return
            if outcome.again is not None:
                self.ledger.put_back(job, outcome.again, outcome.error, outcome.counts)
            else:
                self.ledger.finish(
                    job, outcome.state, error=outcome.error, receipt=outcome.receipt, same_as=outcome.same_as,
                    adopted=outcome.adopted, peak=outcome.peak,
                )  # fmt: skip
        except LeaseLost:
            self.tell(job, "lost")
            return
        state = "again" if outcome.again is not None else outcome.state
        self.tell(job, state, error=outcome.error, attempt=job.attempt)
        if outcome.state == DONE:
            self.done(job, outcome)

    def tell(self, job: Job, state: str, **facts: Any) -> None:
        entry = job.entry
        sizes = {"bytes_in": entry.get("bytes_in", 0), "bytes_out": entry.get("bytes_out", 0)}
        self.emit({"event": "job", "id": job.id, "source": entry.get("source"), "state": state, **sizes, **facts})


class LedgerDesk:
    """`jobs.Desk` of a coordinator that has the ledger itself."""

    def __init__(self, ledger: Ledger, emit: Emit) -> None:
        self._ledger, self._emit = ledger, emit

    def key(self, job: Job, key: str) -> str | None:
        return self._ledger.bind(job, key)

    def verifying(self, job: Job) -> None:
        self._ledger.verifying(job)

    def confirm(self, job: Job) -> None:
        self._ledger.confirm(job)

    def event(self, job: Job, event: Mapping[str, Any]) -> None:
        self._emit({**event, "id": job.id, "source": job.entry.get("source")})


class Heartbeat:
    """Renews this coordinator's leases and takes over what dead ones held, until left."""

    def __init__(self, run: Run) -> None:
        self._run, self._over = run, threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def _beat(self) -> None:
        while not self._over.wait(self._run.lease / 3):
            try:
                self._run.ledger.beat(self._run.owner, self._run.lease)
                self._run.ledger.reclaim()
            except Exception as error:  # a database that is away for a moment: the lease has time
                self._run.emit({"event": "warning", "message": f"the ledger could not be reached: {error}"})

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def run_local(run: Run) -> None:
    """Do every job of the run's shard with `run.jobs` worker processes. Returns when none is queued or at work here."""
    desk, supervisors = LedgerDesk(run.ledger, run.emit), [Supervisor(run.settings.limits) for _ in range(run.jobs)]
    busy, lock = [0], threading.Lock()
    failures: list[BaseException] = []
    running: list[Supervisor] = []

    def serve(supervisor: Supervisor) -> None:
        try:
            while not run.stopping.is_set():
                with lock:
                    job = run.ledger.claim(run.owner, run.plan, run.lease, run.shard)
                    busy[0] += job is not None
                if job is None:
                    if not busy[0] and not run.waiting():
                        return
                    time.sleep(IDLE)
                    continue
                try:
                    run.tell(job, "running", attempt=job.attempt)
                    run.settle(job, _guarded(job, supervisor, desk, run))
                finally:
                    with lock:
                        busy[0] -= 1
        except BaseException as error:
            failures.append(error)
            run.stopping.set()
        finally:
            supervisor.close()
            running.remove(supervisor)

    def wait() -> None:
        """Until all have ended. (Thread.join is no use: Ctrl-C in it makes Python 3.11 forget the thread.)"""
        while running:
            time.sleep(IDLE / 2)

    threads = [threading.Thread(target=serve, args=(each,)) for each in supervisors]
    with Heartbeat(run):
        try:
            for supervisor, thread in zip(supervisors, threads, strict=True):
                running.append(supervisor)
                thread.start()
            wait()
        except BaseException:
            run.stopping.set()
            for supervisor in supervisors:
                supervisor.kill()
            wait()
            raise
    if failures:
        raise failures[0]


def _guarded(job: Job, supervisor: Supervisor, desk: LedgerDesk, run: Run) -> Outcome:
    try:
        return run_job(job, supervisor, desk, run.settings)
    except LeaseLost:
        return Outcome("lost")
