"""Doing the jobs of a ledger on a Ray cluster: one task a job, its memory and threads reserved, the ledger the truth.

Tasks know no ledger and hold no password: what they ask goes to an actor beside the coordinator. Ray itself never
repeats a task: a worker or node that is gone is noted like any crash, and the ledger decides. Sources and outputs must
be reachable from every node (a shared file system, or a store).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import chdir, closing
from dataclasses import asdict
from typing import Any

from ggferry.formats.errors import UsageError
from ggferry.service.engine import Heartbeat, LedgerDesk, Run
from ggferry.service.jobs import RETRY_AFTER, Outcome, Settings, run_job
from ggferry.service.ledger import QUARANTINED, Job, LeaseLost, Ledger
from ggferry.service.scratch import Scratch
from ggferry.service.supervise import Limits, Supervisor
from ggferry.service.urls import Access

POLL = 0.2  # seconds to wait for a task before looking at the queue again


def run_ray(run: Run, address: str | None = None) -> None:
    """As `engine.run_local`, on the cluster at `address` (None: RAY_ADDRESS, else a cluster of this machine)."""
    try:
        import ray
    except ImportError:
        raise UsageError("--engine ray needs Ray", hint="pip install 'ggferry[ray]'") from None
    if ray.is_initialized():
        _work(ray, run)
        return
    with closing(Scratch()) as home:  # Ray's processes import from the folder this one is in: it must not be a model's
        with chdir(home.path):
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        try:
            _work(ray, run)
        finally:
            ray.shutdown()


def _work(ray: Any, run: Run) -> None:
    with Heartbeat(run):
        _Cluster(ray, run).work()


class _Cluster:
    """A coordinator's view: which task does which job."""

    def __init__(self, ray: Any, run: Run) -> None:
        self.ray, self.run = ray, run
        here = ray.get_runtime_context().get_node_id()
        near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
        actor = ray.remote(num_cpus=0, max_concurrency=64, max_restarts=-1, max_task_retries=3)(_Desk)
        self.desk = actor.options(scheduling_strategy=near).remote(run.ledger.url)
        self.tasks: dict[Any, Job] = {}

    def work(self) -> None:
        """Keep `run.jobs` tasks going until none is queued or at work here; end them all when stopped."""
        run = self.run
        try:
            while not run.stopping.is_set():
                while len(self.tasks) < run.jobs and (
                    job := run.ledger.claim(run.owner, run.plan, run.lease, run.shard)
                ):
                    self._submit(job)
                if not self.tasks and not run.waiting():
                    return
                if not self.tasks:
                    time.sleep(POLL)
                    continue
                ended, _ = self.ray.wait(list(self.tasks), timeout=POLL)
                for task in ended:
                    self._collect(task)
        except BaseException:
            run.stopping.set()
            raise
        finally:
            for task, job in self.tasks.items():
                self.ray.cancel(task, force=True)  # ends the process, and its worker with it
                run.settle(job, Outcome("stopped"))

    def _submit(self, job: Job) -> None:
        limits = self.run.settings.limits
        memory = int(job.entry.get("memory", 0)) or limits.memory
        gpus = float(job.entry.get("gpus", 0))
        task = self.ray.remote(
            num_cpus=limits.threads, memory=memory, num_gpus=gpus, max_retries=0, max_calls=1, retry_exceptions=False
        )(_do)
        self.run.tell(job, "running", attempt=job.attempt)
        reference = task.remote(asdict(job), asdict(self.run.settings), self.desk)
        self.tasks[reference] = job

    def _collect(self, task: Any) -> None:
        job = self.tasks.pop(task)
        try:
            found = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else ""
            told = {"class": "WorkerDied", "message": f"{type(error).__name__}: {first}"[:400]}
            again = RETRY_AFTER * job.attempt if job.attempt < self.run.settings.attempts else None
            self.run.settle(job, Outcome(QUARANTINED, told, again=again))
            return
        if found is None:
            self.run.tell(job, "lost")
        else:
            self.run.settle(job, Outcome(**found))


class _Desk:
    """The actor: `jobs.Desk` at the ledger's end. It keeps nothing, so Ray may start it again."""

    def __init__(self, url: str) -> None:
        self._desk = LedgerDesk(Ledger(url), lambda event: None)

    def ask(self, question: str, job: Mapping[str, Any], *arguments: Any) -> tuple[bool, Any]:
        """(True, the answer), or (False, None) when the lease is lost."""
        try:
            return True, getattr(self._desk, question)(Job(**job), *arguments)
        except LeaseLost:
            return False, None


class _FarDesk:
    """`jobs.Desk` at a task's end."""

    def __init__(self, actor: Any, wait: Callable[[Any], Any]) -> None:
        self._actor, self._wait = actor, wait

    def key(self, job: Job, key: str) -> str | None:
        found = self._ask("key", job, key)
        return None if found is None else str(found)

    def verifying(self, job: Job) -> None:
        self._ask("verifying", job)

    def confirm(self, job: Job) -> None:
        self._ask("confirm", job)

    def event(self, job: Job, event: Mapping[str, Any]) -> None:
        """Progress stays where it is: a cluster's worth of it would only slow the coordinator."""

    def _ask(self, question: str, job: Job, *arguments: Any) -> Any:
        held, answer = self._wait(self._actor.ask.remote(question, asdict(job), *arguments))
        if not held:
            raise LeaseLost(job.id)
        return answer


def _do(job: dict[str, Any], settings: dict[str, Any], actor: Any) -> dict[str, Any] | None:
    """The task: a job done in a worker process of this node; its outcome, or None when the lease was lost."""
    import ray

    limits, settings["access"] = Limits(**settings.pop("limits")), Access(**settings["access"])
    with Supervisor(limits, settings["scratch"]) as supervisor:
        try:
            outcome = run_job(Job(**job), supervisor, _FarDesk(actor, ray.get), Settings(limits, **settings))
        except LeaseLost:
            return None
    return asdict(outcome)
