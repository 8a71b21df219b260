"""Do the jobs of a ledger on this machine, in worker processes side by side.

(For a cluster: `service.apply.ray_engine`.)

The ledger is the truth. A coordinator holds leases on what its workers do and renews them; when it dies, the next one
takes over its jobs. When the ledger cannot be reached for as long as a lease lasts, the coordinator ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ggferry.formats.errors import BusyError, UnreachableError
from ggferry.service.apply.job import Outcome, Settings, run_job
from ggferry.service.records.fields import LedgerRow
from ggferry.service.records.ledger import (
    DONE,
    HELD,
    QUEUED,
    SAME,
    SKIPPED,
    Duplicate,
    Job,
    LeaseLost,
    Ledger,
    LedgerAway,
)
from ggferry.service.records.owners import owner_name
from ggferry.service.storage import retry
from ggferry.service.workers.messages import Event
from ggferry.service.workers.supervisor import Supervisor
from ggferry.support.interrupts import interrupts_wait

LEASE = 60.0  # seconds; renewed three times in it
IDLE = 0.1  # seconds between looks for a job while others are at work
LASTING_IDLE = 1.0  # the same, of a run that nobody waits for
BUSY_AT_MOST = 600.0  # seconds that another writer of a job's output is waited for; a frozen one would never end
WORTH_SAYING = 5.0  # seconds of waiting that are reported
STOPPING = 20.0  # seconds to wait for the end of all jobs after they were asked to stop
Emit = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What an engine is given.

    Attributes:
        ledger: The ledger.
        plan: Id of the plan, or a query for the ids of several.
        jobs: Worker processes.
        settings: Settings of each job.
        emit: Called with events.
        shard: Share i of n, from 0.
        lease: Seconds.
        done: Called with each finished job before the next.
        connected: Called when the cluster is connected; its library has taken over the signals of the process then.
        owner: Name of this coordinator in the ledger.
        lasting: Whether the run waits for further jobs until it is stopped.
        drained: Set when no further job is to be begun, and those at work are to end.
        stopping: Set when the run is to end.
        held: The claims being worked on, by job and token.
        lost: Those of them that somebody else holds by now.
        woken: Set when there may be a job for a lasting run.
        failures: Why the run has to end before its jobs.
        busy: By job, when its output was first found held by another writer, by the clock of this process.
        reported: The waits that were reported to a person.
    """

    ledger: Ledger
    plan: Any
    jobs: int
    settings: Settings
    emit: Emit
    shard: tuple[int, int] = (0, 1)
    lease: float = LEASE
    done: Callable[[Job, Outcome], None] = lambda job, outcome: None
    connected: Callable[[], None] = lambda: None
    owner: str = field(default_factory=owner_name)
    lasting: bool = False
    drained: threading.Event = field(default_factory=threading.Event)
    stopping: threading.Event = field(default_factory=threading.Event)
    held: dict[tuple[str, int], Job] = field(default_factory=dict)
    lost: set[tuple[str, int]] = field(default_factory=set)
    woken: threading.Event = field(default_factory=threading.Event)
    failures: list[BaseException] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)
    reported: set[tuple[str, Any]] = field(default_factory=set)

    def claim(self) -> Job | None:
        """Return a job to do, whose lease is renewed until `release`; None when there is none."""
        job = self.ledger.claim(self.owner, self.plan, self.lease, self.shard)
        if job is not None:
            self.held[job.id, job.token] = job
        return job

    def release(self, job: Job) -> None:
        """Stop renewing the lease of a job."""
        self.held.pop((job.id, job.token), None)
        self.lost.discard((job.id, job.token))

    def is_over(self, job: Job) -> bool:
        """Return whether nothing more is to be done for `job`: the run is ending, or somebody else holds it."""
        return self.stopping.is_set() or (job.id, job.token) in self.lost

    def stop(self) -> None:
        """Begin nothing more, and wait for nobody."""
        self.stopping.set()
        self.woken.set()
        retry.stopping.set()
        self.ledger.hurry()

    def fail(self, error: BaseException) -> None:
        """Note why the run has to end, and stop it."""
        self.failures.append(error)
        self.stop()

    def wait(self) -> None:
        """Wait a moment for a job to do."""
        if self.lasting:
            self.woken.wait(LASTING_IDLE)
            self.woken.clear()
        else:
            time.sleep(IDLE)

    def waiting(self) -> int:
        """Return how many jobs of this shard are queued, now or for later; a long wait is reported."""
        share, shares = self.shard
        rows = [row for row in self.ledger.rows(self.plan, [QUEUED], full=False) if row["bucket"] % shares == share]
        if rows:
            self._tell_wait(rows)
        return len(rows)

    def _tell_wait(self, rows: list[LedgerRow]) -> None:
        """Say once what is waited for and until when: a twin that is held elsewhere, or the next try of a job."""
        row = min(rows, key=lambda each: (each["same_as"] is not None, each["not_before"]))
        why, until = str((row["error"] or {}).get("message", "")), float(row["not_before"])
        if row["same_as"] is not None:
            held = [each for each in self.ledger.rows(None, HELD, full=False) if each["id"] == row["same_as"]]
            until = held[0]["lease_until"] or 0 if held else 0
            why = f"{held[0]['owner']} is converting the same content, unless its lease ends then" if held else ""
        left = until - self.ledger.now()
        mark = row["id"], row["same_as"] or until
        if left < WORTH_SAYING or mark in self.reported:
            return
        self.reported.add(mark)
        more = f" and {len(rows) - 1} more" if rows[1:] else ""
        self._warn(row["id"], row["source"], f"waiting{more}, until {_clock(left)}: {why}")

    def _warn(self, job: str, source: Any, message: str) -> None:
        self.emit({"event": "warning", "id": job, "source": source, "message": message})

    def settle(self, job: Job, outcome: Outcome | None) -> None:
        """Record how a job ended; None: somebody else holds it."""
        if outcome is None:
            self.tell(job, "lost")
            return
        try:
            if self.stopping.is_set() and outcome.state != DONE:
                with suppress(UnreachableError):  # then it is queued when its lease ends
                    stopped = {"class": "Interrupted", "message": "the run was stopped"}
                    self.ledger.put_back(job, 0, stopped, counts=False)
                return
            twins: list[Job] = []
            outcome = self._while_busy(job, outcome)
            if outcome.again is not None:
                self.ledger.put_back(job, outcome.again, outcome.error, outcome.counts)
            elif outcome.state == QUEUED:
                self.ledger.wait(job, str(outcome.same_as))
            else:
                twins = self.ledger.finish(
                    job,
                    outcome.state,
                    error=outcome.error,
                    receipt=outcome.receipt,
                    same_as=outcome.same_as,
                    adopted=outcome.adopted,
                    peak=outcome.peak,
                )
        except LeaseLost:
            self.tell(job, "lost")
            return
        state = "again" if outcome.again is not None else outcome.state
        self.tell(job, state, error=outcome.error, attempt=job.attempt)
        for duplicate in twins:
            self.tell(duplicate, SKIPPED, error=SAME)
        if outcome.state == DONE:
            self.done(job, outcome)

    def _while_busy(self, job: Job, outcome: Outcome) -> Outcome:
        """Return what becomes of a job whose output another writer holds.

        It is tried again for BUSY_AT_MOST seconds, and then left to the next run: a writer that is frozen holds its
        files without end.
        """
        if outcome.again is None or (outcome.error or {}).get("class") != BusyError.__name__:
            self.busy.pop(job.id, None)
            return outcome
        first = job.id not in self.busy
        waited = time.monotonic() - self.busy.setdefault(job.id, time.monotonic())
        if waited < BUSY_AT_MOST:
            if first:
                words = f"another writer holds its output; asked again until {_clock(BUSY_AT_MOST)}"
                self._warn(job.id, job.entry.get("source"), words)
            return outcome
        hint = "end that one, or let it go on where it was stopped (Ctrl-Z, SIGSTOP); the same command continues"
        message = f"another writer has held its output for {waited:.0f} s"
        return replace(outcome, again=None, error={**(outcome.error or {}), "message": message, "hint": hint})

    def tell(self, job: Job, state: str, **facts: Any) -> None:
        """Emit an event about a job."""
        entry = job.entry
        sizes = {"bytes_in": entry.get("bytes_in", 0), "bytes_out": entry.get("bytes_out", 0)}
        event = {"event": "job", "id": job.id, "source": entry.get("source"), "state": state, **sizes, **facts}
        self.emit(cast("Event", event))


def _clock(seconds: float) -> str:
    """Return the time of day in so many seconds."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))


class LedgerDesk:
    """The `job.Desk` of a coordinator that has the ledger itself; `is_over` says whether a job is to be left alone."""

    def __init__(self, ledger: Ledger, emit: Emit, is_over: Callable[[Job], bool] = lambda job: False) -> None:
        self._ledger, self._emit, self._is_over = ledger, emit, is_over

    def key(self, job: Job, key: str) -> Duplicate | None:
        with _away():
            return self._ledger.bind(job, key)

    def verifying(self, job: Job) -> None:
        with _away():
            self._ledger.verifying(job)

    def confirm(self, job: Job) -> None:
        with _away():
            self._ledger.confirm(job)

    def event(self, job: Job, event: Event) -> None:
        if self._is_over(job):
            raise LeaseLost(job.id)
        self._emit({**event, "id": job.id, "source": job.entry.get("source")})


@contextmanager
def _away() -> Iterator[None]:
    try:
        yield
    except UnreachableError as error:
        raise LedgerAway(error) from None


class Heartbeat:
    """Renews the leases of a run and takes over jobs of dead coordinators, until its context is left."""

    def __init__(self, run: Run) -> None:
        self._run, self._over = run, threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def _beat(self) -> None:
        run = self._run
        while not self._over.wait(run.lease / 3):
            try:
                lost = run.ledger.beat(list(run.held.values()), run.lease)
                run.lost.update((job.id, job.token) for job in lost)
                run.ledger.reclaim()
            except Exception as error:
                run.fail(error)
                return

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(STOPPING)


def run_local(run: Run) -> None:
    """Do every job of the run's shard in `run.jobs` worker processes.

    Returns when none is queued or being worked on here.
    """
    local = _Local(run)
    with Heartbeat(run):
        try:
            local.start()
            local.wait()
        finally:
            with interrupts_wait():  # a second Ctrl-C must not leave workers to be killed with their files
                local.end()
    if run.failures:
        raise run.failures[0]


class _Local:
    """The workers of this machine, each with a thread."""

    def __init__(self, run: Run) -> None:
        self.run, self.desk = run, LedgerDesk(run.ledger, run.emit, run.is_over)
        self.supervisors = [Supervisor(run.settings.limits) for _ in range(run.jobs)]
        self.busy, self.lock = 0, threading.Lock()
        self.running: list[Supervisor] = []

    def start(self) -> None:
        for supervisor in self.supervisors:
            self.running.append(supervisor)
            threading.Thread(target=self._serve, args=(supervisor,), daemon=True).start()

    def wait(self) -> None:
        """Wait until all have ended, or one in a way that ends the run.

        (Thread.join is of no use: after a Ctrl-C in it, Python 3.11 forgets the thread.)
        """
        while self.running and not self.run.failures:
            time.sleep(IDLE / 2)

    def end(self) -> None:
        """End all workers now, busy ones too."""
        if not self.running:
            return
        self.run.stop()
        for supervisor in self.supervisors:
            supervisor.kill()
        deadline = time.monotonic() + STOPPING
        while self.running and time.monotonic() < deadline:
            time.sleep(IDLE / 2)
        if self.running:  # an upload that does not answer
            words = f"{len(self.running)} jobs did not end within {STOPPING:g} s; what they began in stores may stay"
            self.run.emit({"event": "warning", "message": words})

    def _serve(self, supervisor: Supervisor) -> None:
        run = self.run
        try:
            while not run.stopping.is_set():
                if run.drained.is_set():
                    return
                with self.lock:
                    job = run.claim()
                    self.busy += job is not None
                if job is None:
                    if not (run.lasting or self.busy or run.waiting()):
                        return
                    run.wait()
                    continue
                try:
                    run.tell(job, "running", attempt=job.attempt)
                    run.settle(job, self._outcome(job, supervisor))
                finally:
                    run.release(job)
                    with self.lock:
                        self.busy -= 1
        except BaseException as error:
            run.fail(error)
        finally:
            supervisor.close()
            self.running.remove(supervisor)

    def _outcome(self, job: Job, supervisor: Supervisor) -> Outcome | None:
        """Return how the job ended; None: somebody else holds it."""
        try:
            return run_job(job, supervisor, self.desk, self.run.settings)
        except LedgerAway as away:
            raise away.error from None
        except LeaseLost:
            return Outcome("stopped") if self.run.stopping.is_set() else None
