"""One job from claim to outcome: its files are staged, its worker is supervised, its output goes where it belongs.

This runs wherever an engine wants it; it knows the ledger only through a `Desk`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ggferry.converters.conversion.options import is_sized
from ggferry.converters.metadata.beside import FOLDER_FORMATS, RECEIPT
from ggferry.converters.metadata.receipt_fields import KeptReceipts, Receipt
from ggferry.formats import errors
from ggferry.formats.errors import Fault, GgferryError, fault_of
from ggferry.formats.files.output_folder import sweep_folders
from ggferry.formats.files.partial_files import sweep
from ggferry.formats.gguf.shards import names_of_shards
from ggferry.formats.packed.scratch import Scratch
from ggferry.service.records.ledger import (
    DONE,
    FAILED,
    LONGEST_DELAY,
    QUARANTINED,
    QUEUED,
    SAME,
    SKIPPED,
    Duplicate,
    Job,
    LeaseLost,
)
from ggferry.service.records.ledger_rows import check_complete
from ggferry.service.records.option_paths import with_paths
from ggferry.service.records.plan_file import outputs_of, sizes_of
from ggferry.service.records.receipts import files_kept, kept, receipts_of
from ggferry.service.storage.mirror import Mirror
from ggferry.service.storage.publish import Writer, prepare, prepare_folder, publish_all, publish_files
from ggferry.service.storage.ranged_file import DATA_BLOCK
from ggferry.service.storage.stores import Found, check_unchanged, is_remote, local_path
from ggferry.service.storage.urls import Access, configure_access
from ggferry.service.workers.messages import Event, Question, Reply
from ggferry.service.workers.supervisor import Limits, Supervisor, WorkerDied, WorkerFailed, WorkerTimeout
from ggferry.support.progress import Phase

TIMEOUT_BASE, TIMEOUT_RATE = 900.0, 1 << 20  # seconds, and bytes a second, that no healthy job falls below
MEASURED = 4  # times the bytes of a source whose types are chosen: it is encoded in each type before
RETRY_AFTER = 2.0  # seconds; doubled with every attempt
WORTH_NOTING = 0.15  # seconds of proof after which the ledger says that a job is at it; progress comes every 0.2 s
TRANSIENT_FACTOR = 2  # passing trouble is tried that many times as often as what ends a worker: usually for a minute
HINTS = {"OutOfMemory": "--memory SIZE", "InternalError": "please report it"}


class LedgerClient(Protocol):
    """Where a job's questions go: the ledger, here or at the other end of a cluster.

    Every method may raise LeaseLost.
    """

    def key(self, job: Job, key: str) -> Duplicate | None: ...
    def verifying(self, job: Job) -> None: ...
    def confirm(self, job: Job) -> None: ...
    def event(self, job: Job, event: Event) -> None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run.

    Attributes:
        limits: Memory and threads of a worker.
        scratch: Folder for temporary files; None: the system's.
        timeout: Seconds for a job; None: according to its size.
        cache: Bytes of a remote source that are kept while it is converted.
        attempts: How often a model may end its worker; passing trouble is allowed twice as often.
        access: How files are reached.
        mark: Mark of the run's ledger, for the names of partial uploads (`publish.Writer`).
    """

    limits: Limits = field(default_factory=Limits)
    scratch: str | None = None
    timeout: float | None = None
    cache: int = 64 << 30
    attempts: int = 3
    access: Access = field(default_factory=Access)
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended.

    A job is skipped when its twin (`same_as`) is done, and queued again when its twin is being worked on.

    Attributes:
        state: State for the ledger.
        error: The error, as plain data.
        receipt: The receipt of the output; of several outputs as `receipts.kept` has them.
        same_as: Id of the job with the same content.
        adopted: Whether the output existed already.
        peak: The most memory its worker had, bytes.
        again: Seconds until it may be tried again; None: never.
        counts: Whether this counts as one of its attempts.
    """

    state: str
    error: Mapping[str, Any] | None = None
    receipt: KeptReceipts | None = None
    same_as: str | None = None
    adopted: bool = False
    peak: int = 0
    again: float | None = None
    counts: bool = True


def run_job(job: Job, supervisor: Supervisor, desk: LedgerClient, settings: Settings) -> Outcome:
    """Do `job` and return how it ended.

    Every end is an Outcome, except for LeaseLost: then somebody else holds the job, and nothing was done.
    """
    try:
        with ExitStack() as stack:
            return _Run(job, supervisor, desk, settings, stack).outcome()
    except WorkerFailed as failure:
        return _failed(job, failure.error, settings, failure.peak)
    except WorkerTimeout:
        limit = _timeout(job.entry, settings)
        message = f"no end after {limit:g} s"
        return Outcome(QUARANTINED, {"class": "Timeout", "message": message, "hint": "--timeout SECONDS"})
    except WorkerDied as death:
        error = {"class": "WorkerDied", "message": death.reason}
        if job.attempt < settings.attempts:
            return Outcome(QUARANTINED, error, again=_delay(job))
        return Outcome(QUARANTINED, {**error, "message": f"{death.reason} ({job.attempt} times)"})
    except GgferryError as error:
        return _failed(job, {**error.as_dict(), "class": type(error).__name__}, settings)
    except MemoryError:
        return Outcome(FAILED, {"class": "OutOfMemory", "message": "the coordinator ran out of memory"})
    except OSError as error:
        found = errors.of_os(error)
        return _failed(job, {**found.as_dict(), "class": type(found).__name__}, settings)


def _failed(job: Job, error: Mapping[str, Any], settings: Settings, peak: int = 0) -> Outcome:
    """Return the outcome of an error.

    An error of the file is final; one that a person must put right waits for `--retry-failed`; a passing one is tried
    again and, after the last attempt, by the next run.
    """
    name, fault = str(error.get("class", "")), fault_of(error)
    error = {**error, "fault": fault.value}
    if name in HINTS:
        error = {"hint": HINTS[name], **error}
    if name == errors.BusyError.__name__:
        return Outcome(FAILED, error, peak=peak, again=RETRY_AFTER, counts=False)
    if fault is Fault.FILE:
        return Outcome(QUARANTINED, error, peak=peak)
    more = fault is Fault.TRANSIENT and job.attempt < TRANSIENT_FACTOR * settings.attempts
    return Outcome(FAILED, error, peak=peak, again=_delay(job) if more else None)


def _delay(job: Job) -> float:
    return float(min(LONGEST_DELAY, RETRY_AFTER * 2 ** (job.attempt - 1)))


def _timeout(entry: Mapping[str, Any], settings: Settings) -> float:
    if settings.timeout is not None:
        return settings.timeout
    read = int(entry.get("bytes_in", 0)) * (MEASURED if is_sized(entry.get("recipe") or {}) else 1)
    return TIMEOUT_BASE + (read + int(entry.get("bytes_out", 0))) / TIMEOUT_RATE


class _Run:
    """The course of one job. What it creates is undone by `stack`."""

    def __init__(
        self, job: Job, supervisor: Supervisor, desk: LedgerClient, settings: Settings, stack: ExitStack
    ) -> None:
        check_complete(job.entry, job.id)
        self.job, self.entry, self.desk, self.settings = job, job.entry, desk, settings
        self.supervisor = supervisor
        self.files = [_found(record) for record in self.entry.get("files", ())]
        self.beside = [_found(record) for record in self.entry.get("beside", ())]
        self.outputs = [local_path(output) for output in outputs_of(self.entry)]
        scratch = Scratch(settings.scratch)
        stack.callback(scratch.close)
        self.folder = scratch.path
        self.is_folder = (self.entry.get("recipe") or {}).get("to") in FOLDER_FORMATS
        stack.callback(sweep_folders if self.is_folder else _sweep, self.outs)  # of a worker that was killed
        self.mirror = Mirror(os.path.join(self.folder, "from"))
        stack.callback(self.mirror.close)
        self.trouble: BaseException | None = None
        self.proving, self.noted = 0.0, False  # since when its output is being proved; whether the ledger knows
        self.writer = Writer(f"{settings.mark}{job.id[:12]}", job.token)
        configure_access(settings.access)
        self.twin: Duplicate | None = None

    def outcome(self) -> Outcome:
        for each in (*self.files, *self.beside):
            check_unchanged(each)
        for output, size in zip(self.outputs, sizes_of(self.entry), strict=True):
            if is_remote(output) and self.is_folder:
                prepare_folder(output, self.writer, self._tell)
            elif is_remote(output):  # of several shards, the size is that of all of them
                is_exact = names_of_shards(output) == [output] and not is_sized(self.entry["recipe"])
                prepare(output, size if is_exact else -1, self.writer, self._tell)
        remote = [each for each in (*self.files, *self.beside) if is_remote(each.path)]
        if remote:
            os.makedirs(self.mirror.folder)
            room = self.settings.cache // max(1, len(self.files))
            beside = [each for each in self.beside if is_remote(each.path)]
            self.mirror.name(each.path for each in remote)
            self.mirror.stage(beside, block=DATA_BLOCK, room=room, transport=True, beside=True)
            self.mirror.stage(remote, block=DATA_BLOCK, room=room, transport=True)
        try:
            answer = self.supervisor.run(
                self._command(), self._on_event, self._on_ask, _timeout(self.entry, self.settings)
            )
        except WorkerFailed as failure:
            if self.trouble is not None:
                raise self.trouble from None
            error = {**failure.error, "path": self._place(failure.error.get("path"))}
            raise WorkerFailed(error, failure.peak) from None
        if self.trouble is not None:  # the worker was stopped: what it says then is no result
            raise self.trouble
        if self.twin is not None:
            done = self.twin.done
            return Outcome(SKIPPED if done else QUEUED, SAME if done else None, same_as=self.twin.id)
        receipts: list[Receipt] = answer.result["receipts"]
        found = kept(receipts, answer.result.get("receipt_file"))
        adopted = self._upload(found) if is_remote(self.outputs[0]) else bool(answer.result["adopted"])
        return Outcome(DONE, receipt=found, adopted=adopted, peak=answer.peak)

    @property
    def outs(self) -> list[str]:
        """Where the worker writes: the outputs themselves, or local files that are uploaded when they are proved."""
        return [
            os.path.join(self.folder, "to", output.rpartition("/")[2]) if is_remote(output) else output
            for output in self.outputs
        ]

    def _command(self) -> Mapping[str, Any]:
        recipe = with_paths(self.entry["recipe"], self._here)
        return {
            "op": "convert",
            "source": self._here(self.entry["source"]),
            "outs": self.outs,
            "recipe": recipe,
            "files": [self._here(each.path) for each in self.files],
            "beside": self._beside(),
            "threads": self.supervisor.limits.threads,
            "mount": self.mirror.serve(),
            "trees": self.entry.get("trees"),
        }

    def _beside(self) -> dict[str, str]:
        """Return the files beside the weights by name; of several of one name, as of adapters, each has its place."""
        found: dict[str, str] = {}
        for each in self.beside:
            name = os.path.basename(each.path)
            found[name if name not in found else f"{name} {len(found)}"] = self._here(each.path)
        return found

    def _here(self, path: str) -> str:
        return self.mirror.path_of(path) if is_remote(path) else local_path(path)  # a worker stands elsewhere

    def _place(self, path: Any) -> Any:
        return self.mirror.url_of(path) if isinstance(path, str) else path

    def _on_event(self, event: Event) -> None:
        if event.get("title") == Phase.VERIFYING:
            self._note_verifying()
        self.desk.event(self.job, event)

    def _note_verifying(self) -> None:
        """Record that the output is being proved, unless that is over at once: a transaction takes as long."""
        now = time.monotonic()
        self.proving = self.proving or now
        if now - self.proving >= WORTH_NOTING and not self.noted:
            self.noted = True
            self.desk.verifying(self.job)

    def _on_ask(self, question: Question) -> Reply:
        try:
            if question["question"] == "key":
                return self._on_key(question["key"])
            for each in (*self.files, *self.beside):
                if not is_remote(each.path):
                    check_unchanged(each)
            self.mirror.check()
            self.desk.confirm(self.job)
            return {"ok": True}
        except (GgferryError, LeaseLost) as trouble:
            self.trouble = trouble
            return {"ok": False}

    def _on_key(self, key: str) -> Reply:
        """Answer whether the worker goes on: not when another job has the same content.

        The transport of the files is checked first, because the key is meaningful only if what was read is what the
        store has.
        """
        transport = self.mirror.transport(self._here(each.path) for each in self.files)
        self.twin = self.desk.key(self.job, key)
        return {"ok": self.twin is None, "transport": transport}

    def _upload(self, found: KeptReceipts) -> bool:
        """Upload the outputs; return whether they were there already."""
        files, receipts = files_kept(found), receipts_of(found)
        self.desk.event(
            self.job, {"event": "stage", "title": Phase.UPLOADING, "total": sum(int(file["bytes"]) for file in files)}
        )
        confirm = partial(self.desk.confirm, self.job)
        if self.is_folder:
            return publish_files(self.outputs[0], files, self.outs[0], self.folder, self.writer, confirm, self._sent)
        return publish_all(
            dict(zip(self.outputs, receipts, strict=True)),
            os.path.dirname(self.outs[0]),
            self.folder,
            self.writer,
            confirm,
            self._sent,
        )

    def _sent(self, count: int) -> None:
        self.desk.event(self.job, {"event": "progress", "title": Phase.UPLOADING, "done": count, "more": True})

    def _tell(self, words: str) -> None:
        self.desk.event(self.job, {"event": "warning", "message": words})


def _sweep(outs: Sequence[str]) -> None:
    """Remove what a killed worker left, but not what the next one needs to give the other shards their names."""
    for out in outs:
        files = names_of_shards(out)
        if not files[1:] or os.path.lexists(out + RECEIPT) or not any(map(os.path.lexists, files)):
            sweep(files, RECEIPT)


def _found(record: Mapping[str, Any]) -> Found:
    return Found(str(record["path"]), int(record["bytes"]), str(record["version"]))
