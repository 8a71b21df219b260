"""Do the jobs of a ledger on a Ray cluster: one task for each job, with its memory and threads reserved.

Ray lets one of its processes do many tasks, and these keep the worker that reads model files for the next.

The ledger is the truth. Tasks do not know it and hold no password: their questions go to an actor at the coordinator.
Ray itself never repeats a task. A lost worker is recorded like any crash, a lost node like a lost lease, and the ledger
decides. Sources and outputs must be reachable from every node (a shared file system, or a store).
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from typing import Any

import ggferry
from ggferry.formats.errors import Fault, UnreachableError
from ggferry.formats.packed.scratch import sweep
from ggferry.service.apply.job import RETRY_AFTER, Outcome, Settings, run_job
from ggferry.service.apply.local_engine import Heartbeat, LedgerDesk, Run
from ggferry.service.apply.ray_cluster import Nodes, connected, first_line, gone, other_version
from ggferry.service.records.ledger import FAILED, QUARANTINED, Duplicate, Job, LeaseLost, Ledger, LedgerAway
from ggferry.service.records.ledger_url import with_environment
from ggferry.service.storage.urls import Access
from ggferry.service.workers.messages import Event
from ggferry.service.workers.supervisor import Limits, Supervisor
from ggferry.support.interrupts import interrupts_wait

POLL = 0.2  # seconds to wait for a task before looking at the queue again
TASKS_A_PROCESS = 200  # that Ray lets a process of its own do: to start one, and a worker in it, takes 3 s of a core
UNWINDING = 5.0  # seconds for tasks to remove what they began; then their processes are killed
OUTCOME, LOST, AWAY, SKEW = "outcome", "lost", "away", "skew"  # what a task may answer


def run_ray(run: Run, address: str | None = None) -> None:
    """Do what `local_engine.run_local` does, on a cluster.

    `address` is its address; None: RAY_ADDRESS, else a cluster of this machine.
    """
    with connected(address) as ray:
        run.connected()
        nodes = Nodes(ray, run.settings.limits.threads)
        nodes.compare(lambda words: run.emit({"event": "warning", "message": words}))
        with Heartbeat(run):
            _Cluster(ray, run, nodes).work()
    if run.failures:
        raise run.failures[0]


class _Cluster:
    """A coordinator's view: which task does which job."""

    def __init__(self, ray: Any, run: Run, nodes: Nodes) -> None:
        self.ray, self.run, self.nodes = ray, run, nodes
        here = ray.get_runtime_context().get_node_id()
        near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
        actor = ray.remote(num_cpus=0, max_concurrency=64, max_restarts=-1, max_task_retries=3)(_LedgerClient)
        self.desk = actor.options(scheduling_strategy=near).remote(with_environment(run.ledger.url), run.lease)
        several = {"max_calls": TASKS_A_PROCESS, "max_retries": 0, "retry_exceptions": False}
        self.task = ray.remote(**several)(_task(ggferry.__version__))
        self.tasks: dict[Any, Job] = {}

    def work(self) -> None:
        """Keep `run.jobs` tasks going until none is queued or being worked on here; end them all when stopped.

        A lasting run waits for further jobs; one that is drained begins none, and ends with those at work.
        """
        run = self.run
        try:
            while not run.stopping.is_set():
                self.nodes.check()
                if not run.drained.is_set():
                    self._fill()
                if not self.tasks and (run.drained.is_set() or not (run.lasting or run.waiting())):
                    return
                self._step()
        except BaseException as error:
            run.fail(error)
            raise
        finally:
            with interrupts_wait():
                self._end()

    def _fill(self) -> None:
        while len(self.tasks) < self.run.jobs and (job := self.run.claim()):
            why = self.nodes.lacking(self._needs(job))
            if why is None:
                self._submit(job)
            else:
                hint = "a larger node, --threads, or memory and gpus in the plan's line; then --retry-failed"
                error = {"class": "NoNode", "message": why, "hint": hint, "fault": Fault.PERSON.value}
                self._settle(job, Outcome(FAILED, error))

    def _step(self) -> None:
        """Handle tasks that have ended, and those that can never begin."""
        if not self.tasks:
            self.run.wait()
            return
        ended, _ = self.ray.wait(list(self.tasks), timeout=POLL)
        for task in ended:
            self._collect(task)
        for task, job in list(self.tasks.items()):
            if self.run.is_over(job):
                self._drop(task)
                self._settle(job, None)
            elif self.nodes.lacking(self._needs(job)) is not None:  # the node that could is gone: asked again, refused
                self._drop(task)
                self._give_back(job, {"class": "NodeGone", "message": "the node that could take it left the cluster"})

    def _needs(self, job: Job) -> dict[str, float]:
        """Return what a node must have free for the job: threads, bytes of memory, GPUs."""
        limits = self.run.settings.limits
        memory = int(job.entry.get("memory", 0)) or limits.memory
        return {"CPU": limits.threads, "memory": memory, "GPU": float(job.entry.get("gpus", 0))}

    def _submit(self, job: Job) -> None:
        needs = self._needs(job)
        task = self.task.options(num_cpus=needs["CPU"], memory=needs["memory"], num_gpus=needs["GPU"])
        self.run.tell(job, "running", attempt=job.attempt)
        self.tasks[task.remote(asdict(job), asdict(self.run.settings), self.desk)] = job

    def _collect(self, task: Any) -> None:
        job = self.tasks.pop(task)
        try:
            kind, found = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            self._died(job, error)
            return
        if kind == OUTCOME:
            self._settle(job, Outcome(**found))
        elif kind == LOST:
            self._settle(job, None)
        else:
            self._give_back(job, {"class": "Interrupted", "message": "the run was stopped"}, lost=False)
            raise other_version(*found) if kind == SKEW else UnreachableError(found, hint="the same command continues")

    def _died(self, job: Job, error: Any) -> None:
        """Handle a task without an answer.

        What its node or the cluster did is not the job's fault; what its own process did may be.
        """
        kinds = self.ray.exceptions
        cause = getattr(error, "cause", None) or error
        failure = {"class": "WorkerDied", "message": first_line(cause), "fault": Fault.TRANSIENT.value}
        if isinstance(error, kinds.LocalRayletDiedError):
            self._give_back(job, failure)
            raise gone("its raylet on this machine died")
        if isinstance(cause, _not_the_jobs(kinds)):
            self._give_back(job, failure)
            return
        failure["fault"] = Fault.FILE.value
        again = RETRY_AFTER * job.attempt if job.attempt < self.run.settings.attempts else None
        self._settle(job, Outcome(QUARANTINED, failure, again=again))

    def _settle(self, job: Job, outcome: Outcome | None) -> None:
        self.run.release(job)
        self.run.settle(job, outcome)

    def _give_back(self, job: Job, error: Mapping[str, Any], lost: bool = True) -> None:
        """Queue the job again as it was; `lost`: count it as a lease that ended with its machine."""
        self.run.release(job)
        with suppress(UnreachableError):
            try:
                self.run.ledger.put_back(job, RETRY_AFTER if lost else 0, error, counts=False, lost=lost)
                self.run.tell(job, "again", error=error, attempt=job.attempt)
            except LeaseLost:
                self.run.tell(job, "lost")

    def _drop(self, task: Any) -> None:
        self.tasks.pop(task)
        self._cancel([task])

    def _end(self) -> None:
        """End all tasks: by an interrupt, which lets them remove what they began, then by force."""
        tasks, self.tasks = self.tasks, {}
        if self.nodes.answers():
            self._cancel(list(tasks))
        for job in tasks.values():
            self._settle(job, Outcome("stopped"))

    def _cancel(self, tasks: list[Any]) -> None:
        for force in (False, True):
            for task in tasks:
                with suppress(self.ray.exceptions.RayError, ValueError, OSError):
                    self.ray.cancel(task, force=force)
            if tasks and not force:
                _, tasks = self.ray.wait(tasks, num_returns=len(tasks), timeout=UNWINDING)


def _not_the_jobs(kinds: Any) -> tuple[type[BaseException], ...]:
    """Return the errors that say nothing about the job: its node, an object of Ray, the desk or Ray itself is gone."""
    names = (
        "LocalRayletDiedError",
        "NodeDiedError",
        "RayActorError",
        "ActorUnschedulableError",
        "ObjectLostError",
        "ObjectFetchTimedOutError",
        "ObjectFreedError",
        "RaySystemError",
        "RpcError",
        "GetTimeoutError",
        "OutOfDiskError",
        "ObjectStoreFullError",
        "TaskUnschedulableError",
        "RuntimeEnvSetupError",
        "TaskCancelledError",
    )
    return tuple(kind for name in names if (kind := getattr(kinds, name, None)) is not None)


# --- at the coordinator's side -----------------------------------------------------------------------------------


class _LedgerClient:
    """The actor: the `job.Desk` at the ledger's end. It keeps no state, so Ray may start it again."""

    def __init__(self, url: str, retry_timeout: float) -> None:
        self._desk = LedgerDesk(Ledger(url, retry_timeout=retry_timeout), lambda event: None)

    def ask(self, question: str, job: Mapping[str, Any], *arguments: Any) -> tuple[str, Any]:
        """Return (OUTCOME, the answer), (LOST, ""), or (AWAY, why the ledger cannot be asked)."""
        try:
            return OUTCOME, getattr(self._desk, question)(Job(**job), *arguments)
        except LedgerAway as away:
            return AWAY, str(away)
        except LeaseLost:
            return LOST, ""


# --- at the node's -----------------------------------------------------------------------------------------------


class _FarDesk:
    """The `job.Desk` at a task's end."""

    def __init__(self, actor: Any, wait: Callable[[Any], Any]) -> None:
        self._actor, self._wait = actor, wait

    def key(self, job: Job, key: str) -> Duplicate | None:
        found: Duplicate | None = self._ask("key", job, key)
        return found

    def verifying(self, job: Job) -> None:
        self._ask("verifying", job)

    def confirm(self, job: Job) -> None:
        self._ask("confirm", job)

    def event(self, job: Job, event: Event) -> None:
        """Drop the event: the progress of a whole cluster would only slow the coordinator."""

    def _ask(self, question: str, job: Job, *arguments: Any) -> Any:
        kind, answer = self._wait(self._actor.ask.remote(question, asdict(job), *arguments))
        if kind == AWAY:
            raise LedgerAway(UnreachableError(answer))
        if kind == LOST:
            raise LeaseLost(job.id)
        return answer


def _task(version: str) -> Callable[..., tuple[str, Any]]:
    """Return the task, which Ray sends as it is: a node that joins later may have another ggferry."""

    def _do(job: dict[str, Any], settings: dict[str, Any], actor: Any) -> tuple[str, Any]:
        import socket

        try:
            import ggferry
        except ImportError:
            return "skew", (socket.gethostname(), "none")
        if ggferry.__version__ != version:
            return "skew", (socket.gethostname(), ggferry.__version__)

        return do_job(job, settings, actor)

    return _do


def do_job(job: dict[str, Any], settings: dict[str, Any], actor: Any) -> tuple[str, Any]:
    """Do a job in a worker process of this node."""
    import ray

    limits, settings["access"] = Limits(**settings.pop("limits")), Access(**settings["access"])
    supervisor = _supervisor(limits, settings["scratch"])
    try:
        outcome = run_job(Job(**job), supervisor, _FarDesk(actor, ray.get), Settings(limits, **settings))
    except LedgerAway as away:
        return AWAY, str(away)
    except LeaseLost:
        return LOST, ""
    return OUTCOME, asdict(outcome)


@cache
def _supervisor(limits: Limits, scratch: str | None) -> Supervisor:
    """Return the supervisor of this process, whose tasks are done one after another, all in its main thread."""
    for folder in {scratch, None}:
        sweep(folder)  # of tasks that were killed here
    supervisor = Supervisor(limits, scratch)
    atexit.register(supervisor.close)
    return supervisor
