"""A plan carried out: checked against its sources, entered in the ledger, done by an engine, reported."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from ggferry.converters.digests import digest
from ggferry.formats.errors import Fault, GgferryError, NotFoundError, RefusedError, UsageError, VerificationError
from ggferry.formats.sources import LocalFile
from ggferry.service import stores
from ggferry.service.adopt import output_intact
from ggferry.service.analyse import request_of
from ggferry.service.engine import LEASE, Emit, Run, run_local
from ggferry.service.jobs import Outcome, Settings
from ggferry.service.ledger import DONE, FAILED, QUARANTINED, QUEUED, SKIPPED, Job, Ledger, bucket
from ggferry.service.planfile import BAD, CONVERT, Entry, Head, read_plan
from ggferry.service.publish import check_destination, object_digest
from ggferry.service.scratch import sweep
from ggferry.service.stores import is_remote

ENGINES = ("local", "ray")
CHECKS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """An `apply` as asked for. `max_disk`: bytes this run may take where it writes; None: what is free."""

    plan: str
    ledger: str
    engine: str = "local"
    jobs: int = 1
    settings: Settings = field(default_factory=Settings)
    shard: tuple[int, int] = (0, 1)
    retry: bool = False
    max_disk: int | None = None
    delete_source: bool = False
    lease: float = LEASE
    address: str | None = None


class Migration:
    """One run of `apply`, from the plan to the last job."""

    def __init__(self, asked: Asked, emit: Emit) -> None:
        self.asked, self.emit = asked, emit
        self.head, self.entries = read_plan(asked.plan)
        if asked.engine not in ENGINES:
            raise UsageError("--engine", found=asked.engine, expected=", ".join(ENGINES))
        for entry in self.entries:
            if entry.verdict == CONVERT and entry.output:
                request_of(entry.source, entry.recipe(self.head))
                if is_remote(entry.output):
                    check_destination(entry.output)
        self.ledger = Ledger(asked.ledger)
        self.ledger.patience = asked.lease
        self.ledger.on_away = lambda words: self.emit({"event": "warning", "message": words})

    def prepare(self) -> list[Entry]:
        """Enter the plan; what is left to do. Raises RefusedError when sources changed or there is no room."""
        head = self.head
        sweep(self.asked.settings.scratch)
        self.ledger.reclaim()
        states = {row["id"]: row["state"] for row in self.ledger.rows(full=False)}
        settled = {DONE, QUARANTINED, SKIPPED}
        to_check = [e for e in self.entries if e.verdict == CONVERT and states.get(e.id(head)) not in settled]
        self._check_sources(to_check)
        self.ledger.register(head.id, [_row(entry, head) for entry in self.entries])
        if self.asked.retry:
            self.ledger.retry(head.id)
        else:
            self.ledger.retry(head.id, [FAILED], Fault.PASSING)
        queued = {row["id"] for row in self.ledger.rows(head.id, [QUEUED], full=False)}
        share, shares = self.asked.shard
        ids = {entry.id(head): entry for entry in self.entries}
        left = [entry for i, entry in ids.items() if i in queued and bucket(i) % shares == share]
        self._check_room(left)
        return left

    def run(self, left: Sequence[Entry]) -> None:
        """Do what is left."""
        run = Run(
            self.ledger, self.head.id, self.asked.jobs, self.asked.settings, self.emit, self.asked.shard,
            self.asked.lease, done=self._done,
        )  # fmt: skip
        if self.asked.delete_source:
            for row in self.ledger.rows(self.head.id, [DONE]):
                if not row["deleted"]:
                    self._delete(row["id"], row["entry"], row["receipt"])
        try:
            if self.asked.engine == "ray":
                from ggferry.service.ray_engine import run_ray

                run_ray(run, self.asked.address)
            else:
                run_local(run)
        except KeyboardInterrupt:
            self.emit({"event": "stopped", "message": "stopped; the same command continues"})
            raise

    def failed(self) -> int:
        """Jobs of this plan that did not end well."""
        counts = self.ledger.counts(self.head.id)
        return counts["failed"] + counts["quarantined"]

    # --- before ------------------------------------------------------------------------------------------------

    def _check_sources(self, entries: Sequence[Entry]) -> None:
        def change(entry: Entry) -> str | None:
            try:
                for each in (*entry.files, *entry.beside):
                    stores.check_unchanged(each)
            except GgferryError as error:
                return str(error)
            return None

        with ThreadPoolExecutor(CHECKS_AT_ONCE) as pool:
            changed = [words for words in pool.map(change, entries) if words]
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise RefusedError(
                f"{len(changed)} sources are not as they were planned: {'; '.join(changed[:3])}{more}",
                path=self.asked.plan, hint="plan again; nothing was done",
            )  # fmt: skip

    def _check_room(self, left: Sequence[Entry]) -> None:
        """Outputs that stay on this machine, and what passes through it on the way to a store."""
        places: dict[str, int] = {}
        passing = []
        for entry in left:
            assert entry.output is not None
            if is_remote(entry.output):
                passing.append(entry.disk)
            else:
                folder = _existing(os.path.dirname(entry.output))
                places[folder] = places.get(folder, 0) + entry.bytes_out
                if entry.disk > entry.bytes_out:
                    passing.append(entry.disk - entry.bytes_out)
        if passing:
            scratch = _existing(self.asked.settings.scratch or tempfile.gettempdir())
            most = sum(sorted(passing)[-self.asked.jobs :])
            places[scratch] = places.get(scratch, 0) + most
        needs: dict[int, list[Any]] = {}
        for folder, need in places.items():
            device = needs.setdefault(os.stat(folder).st_dev, [folder, 0])
            device[1] += need
        total = sum(need for _, need in needs.values())
        if self.asked.max_disk is not None and total > self.asked.max_disk:
            _refuse("--max-disk", total, self.asked.max_disk)
        for folder, need in needs.values():
            free = os.statvfs(folder)
            if need > free.f_bavail * free.f_frsize:
                _refuse(folder, need, free.f_bavail * free.f_frsize)
        self.emit({"event": "room", "bytes": total})

    # --- after each job ------------------------------------------------------------------------------------------

    def _done(self, job: Job, outcome: Outcome) -> None:
        if self.asked.delete_source and outcome.receipt is not None:
            self._delete(job.id, job.entry, outcome.receipt)

    def _delete(self, job: str, entry: Mapping[str, Any], receipt: Mapping[str, Any]) -> None:
        """Delete the weights of a finished job: when the output, read again, is what was proved, and the source what
        was converted. What stands beside them (tokenizers, configurations, cards) and duplicates stay."""
        try:
            if not output_intact(str(entry["output"]), receipt, self.asked.settings.scratch or tempfile.gettempdir()):
                raise VerificationError("the output is not what was proved; its source stays", path=entry["output"])
            expected = sorted(record["blake3"] for record in receipt["source"]["files"])
            paths = [str(record["path"]) for record in entry["files"]]
            there = [path for path in paths if stores.exists(path)]
            found = sorted(_digest(path, self.asked.settings.scratch or tempfile.gettempdir()) for path in there)
            if any(blake3 not in expected for blake3 in found):
                raise VerificationError("the source is not what was converted; it stays", path=entry["source"])
            for path in there:
                stores.remove(path)
            self.ledger.note_deleted(job)
            self.emit({"event": "deleted", "id": job, "source": entry["source"], "files": there})
        except GgferryError as error:
            self.emit({"event": "warning", "id": job, "source": entry["source"], "message": str(error)})


def _row(entry: Entry, head: Head) -> dict[str, Any]:
    """An entry as the ledger is to know it."""
    error: Mapping[str, Any] | None = None
    state = QUEUED if entry.verdict == CONVERT else SKIPPED
    if entry.verdict in BAD:
        state, error = QUARANTINED, entry.error or {"class": entry.verdict, "message": entry.reason}
    elif entry.verdict != CONVERT:
        error = {"class": entry.verdict, "message": entry.reason}
    data = {**asdict(entry), "recipe": entry.recipe(head), "error": None}
    return {"id": entry.id(head), "source": entry.source, "entry": data, "state": state, "error": error}


def _digest(path: str, scratch: str) -> str:
    if is_remote(path):
        return object_digest(path, scratch)
    with LocalFile(path) as file:
        return digest(file)


def _existing(folder: str) -> str:
    """The folder, or the nearest one above it that is there."""
    while folder and not os.path.isdir(folder):
        above = os.path.dirname(folder)
        if above == folder:
            raise NotFoundError("no such folder", path=folder)
        folder = above
    return folder or "."


def _refuse(where: str, need: int, room: int) -> None:
    raise RefusedError(
        "not enough room", path=where, found=f"{room:,} bytes", expected=f"{need:,} bytes",
        hint="nothing was done; --dest elsewhere, or edit the plan",
    )  # fmt: skip
