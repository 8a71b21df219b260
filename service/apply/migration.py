"""Carry a plan out: check it against its sources, enter it in the ledger, have an engine do it, report."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from ggferry.converters.metadata.beside import FOLDER_FORMATS, RECEIPT
from ggferry.formats.errors import Fault, GgferryError, NotFoundError, RefusedError, UsageError, fault_of, of_os
from ggferry.formats.files.local_files import confined
from ggferry.formats.files.output_folder import sweep_folders
from ggferry.formats.files.partial_files import sweep as sweep_partials
from ggferry.formats.free_space import free_bytes
from ggferry.formats.packed.scratch import PREFIX, sweep
from ggferry.service.apply.delete_sources import Deletion, choose, delete, require_proofs
from ggferry.service.apply.job import Outcome, Settings
from ggferry.service.apply.local_engine import LEASE, Emit, Run, run_local
from ggferry.service.records import ledger_url
from ggferry.service.records.fields import LedgerRow, NewRow, PlanLine
from ggferry.service.records.ledger import (
    DONE,
    FAILED,
    HELD,
    QUARANTINED,
    QUEUED,
    SKIPPED,
    Job,
    Ledger,
    bucket,
)
from ggferry.service.records.plan_file import BAD, CONVERT, Entry, Head, digest_of, outside, read_plan
from ggferry.service.storage import retry, stores
from ggferry.service.storage.publish import check_destination
from ggferry.service.storage.stores import is_remote, local_path
from ggferry.service.storage.urls import RETRY_TIMEOUT, Access, configure_access, granted, read_secrets
from ggferry.service.workers.analyze import check_recipe
from ggferry.support.platform import here

ENGINES = ("local", "ray")
CHECKS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class MigrationRequest:
    """The arguments of `apply`.

    `max_disk` is the bytes this run may take where it writes, None: what is free. `trees` are the folders in which
    files must really lie, None: the plan's roots. `private` is as in `urls.Access`.
    """

    plan: str
    ledger: str
    engine: str = "local"
    jobs: int = 1
    settings: Settings = field(default_factory=Settings)
    shard: tuple[int, int] = (0, 1)
    retry: bool = False
    max_disk: int | None = None
    delete_source: bool = False
    despite_drops: bool = False
    lease: float = LEASE
    address: str | None = None
    retry_timeout: float = RETRY_TIMEOUT
    outside_dest: bool = False
    trees: tuple[str, ...] | None = None
    private: bool = True


def check_engine(engine: str) -> None:
    """Raise UsageError for an engine that there is not, here or anywhere."""
    if engine not in ENGINES:
        raise UsageError("--engine", found=engine, expected=", ".join(ENGINES))
    if engine == "ray" and not here.RAY:
        raise UsageError(f"--engine ray does not exist on {here.NAME}", hint="--engine local")


def carry_out(run: Run, engine: str, address: str | None) -> None:
    """Do the jobs of a run by an engine; `address`: of the Ray cluster, None as `ray_engine.run_ray` says."""
    if engine == "ray":
        from ggferry.service.apply.ray_engine import run_ray

        run_ray(run, address)
    else:
        run_local(run)


Made = tuple[Head, list[Entry]]


def _checked(request: MigrationRequest, made: Made | None = None) -> Made:
    """Check that everything asked for can be done, make the files reachable, and return the plan.

    Raises UsageError, UnsupportedError, RefusedError.
    """
    head, entries = read_plan(request.plan) if made is None else made
    secrets = read_secrets(request.plan) if made is None else {}
    configure_access(Access(secrets, head.redirects, request.retry_timeout, request.private))
    check_engine(request.engine)
    for entry in entries:
        if entry.verdict == CONVERT and entry.output:
            check_recipe(entry.source, entry.recipe(head))
            for output in filter(is_remote, entry.outputs):
                check_destination(output)
    if not request.outside_dest and (elsewhere := outside(head, entries)):
        more = f" and {len(elsewhere) - 3} more" if elsewhere[3:] else ""
        raise RefusedError(
            f"{len(elsewhere)} outputs of the plan are outside its dest",
            path=request.plan,
            found=", ".join(elsewhere[:3]) + more,
            expected=head.dest,
            hint="--allow-outside-dest, or edit the lines or dest in the first one",
        )
    if request.delete_source:
        require_proofs(request.plan, head, entries)
    return head, entries


def survey(request: MigrationRequest) -> tuple[list[Entry], Deletion]:
    """Return what `apply` would convert and delete at present. Nothing is entered in the ledger or changed."""
    head, entries = _checked(request)
    rows: dict[str, LedgerRow] = {}
    with suppress(NotFoundError), closing(Ledger(request.ledger, must_exist=True)) as ledger:
        rows = {row["id"]: row for row in ledger.rows()}
    share, shares = request.shard
    ids = {entry.id(head): entry for entry in entries}
    share_entries = {i: entry for i, entry in ids.items() if entry.verdict == CONVERT and bucket(i) % shares == share}
    finished = {i for i, row in rows.items() if row["state"] == DONE}
    left = {
        i: entry for i, entry in share_entries.items() if i not in rows or _is_open(rows[i], request.retry, finished)
    }
    done = {i: rows[i] for i in share_entries if i in finished and not rows[i]["deleted"]}
    return [*left.values()], choose(ids, left, done, request.despite_drops) if request.delete_source else Deletion()


def _is_open(row: LedgerRow, retry: bool, finished: Set[str]) -> bool:
    """Return whether a run takes up this job, whose line says convert; `finished` are the jobs that are done."""
    state = str(row["state"])
    if not row["attempts"] + row["losses"]:
        return state != DONE
    if state in (FAILED, QUARANTINED):
        return retry or (state == FAILED and fault_of(row["error"] or {}) is Fault.TRANSIENT)
    if state == SKIPPED:
        return row["same_as"] is not None and row["same_as"] not in finished
    return state != DONE


class Migration:
    """One run of `apply`, from the plan to the last job.

    `made` is the plan, where it is not read from its file, and `ledger` the ledger, where it is open.
    """

    def __init__(
        self, request: MigrationRequest, emit: Emit, made: Made | None = None, ledger: Ledger | None = None
    ) -> None:
        self.request, self.emit = request, emit
        self.head, self.entries = _checked(request, made)
        self.deletion = Deletion()
        settings = replace(request.settings, access=granted(), mark=ledger_mark(request.ledger))
        self.request = replace(request, settings=settings)
        retry.stopping.clear()
        if ledger is not None:
            self.ledger = ledger
            return
        self.ledger = Ledger(request.ledger)
        self.ledger.retry_timeout = request.lease
        self.ledger.on_away = lambda words: self.emit({"event": "warning", "message": words})

    def prepare(self) -> list[Entry]:
        """Enter the plan and return what is left to do.

        Raises RefusedError when sources changed or there is no room.
        """
        head = self.head
        for folder in {self.request.settings.scratch, None}:
            sweep(folder)
        self.ledger.reclaim()
        states = {row["id"]: row["state"] for row in self.ledger.rows(full=False)}
        self._sweep_outputs(entry for entry in self.entries if states.get(entry.id(head)) not in HELD)
        settled = {DONE, QUARANTINED, SKIPPED}
        to_check = [e for e in self.entries if e.verdict == CONVERT and states.get(e.id(head)) not in settled]
        self._check_sources(to_check)
        self.ledger.register(head.id, [_row(entry, head, self.request.trees) for entry in self.entries])
        if self.request.retry:
            self.ledger.retry(head.id)
        else:
            self.ledger.retry(head.id, [FAILED], Fault.TRANSIENT)
        queued = {row["id"] for row in self.ledger.rows(head.id, [QUEUED], full=False)}
        share, shares = self.request.shard
        ids = {entry.id(head): entry for entry in self.entries}
        left = {i: entry for i, entry in ids.items() if i in queued and bucket(i) % shares == share}
        self._check_folders([*left.values()])
        self._check_free_space([*left.values()])
        if self.request.delete_source:
            self.deletion = choose(ids, left, {row["id"]: row for row in self._finished()}, self.request.despite_drops)
        return [*left.values()]

    def run(self, left: Sequence[Entry]) -> None:
        """Do what is left."""
        with confined(self.head.trees):
            self._run(left)

    def _run(self, left: Sequence[Entry]) -> None:
        run = Run(
            self.ledger,
            self.head.id,
            self.request.jobs,
            self.request.settings,
            self.emit,
            self.request.shard,
            self.request.lease,
            done=self._done,
        )
        for row in self._finished():
            if row["id"] in self.deletion.entries and row["receipt"] is not None:
                self._delete(row["id"], row["entry"]["recipe"], row["receipt"])
        try:
            carry_out(run, self.request.engine, self.request.address)
        except (KeyboardInterrupt, GgferryError):
            words = "the same command continues"
            if stays := self._sweep_outputs(left):
                words = f"{len(stays)} unfinished files stay until then ({', '.join(stays[:3])}); {words}"
            else:
                words = f"nothing unfinished was left behind; {words}"
            self.emit({"event": "stopped", "message": f"stopped: {words}"})
            raise

    def _finished(self) -> list[LedgerRow]:
        """Return rows of this plan and share that are done and whose existing sources are to be deleted."""
        if not self.request.delete_source:
            return []
        share, shares = self.request.shard
        rows = self.ledger.rows(self.head.id, [DONE])
        return [row for row in rows if not row["deleted"] and row["bucket"] % shares == share]

    def failed(self) -> int:
        """Return how many jobs of this plan did not end well."""
        counts = self.ledger.counts(self.head.id)
        return counts["failed"] + counts["quarantined"]

    def _sweep_outputs(self, entries: Iterable[Entry]) -> list[str]:
        """Remove what killed workers left of local outputs, and return what stays.

        (`publish.prepare` does so in stores.)
        """
        files, folders = list[str](), list[str]()
        for entry in entries:
            is_folder = entry.recipe(self.head).get("to") in FOLDER_FORMATS
            local = [local_path(output) for output in entry.outputs if not is_remote(output)]
            (folders if is_folder else files).extend(local if entry.verdict == CONVERT else ())
        return [*sweep_partials(files, RECEIPT), *sweep_folders(folders)]

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
                path=self.request.plan,
                hint="plan again; nothing was done",
            )

    def _check_folders(self, left: Sequence[Entry]) -> None:
        """Check that outputs can be written, before hours of reading show that they cannot.

        Raises AccessError and other errors of the system.
        """
        local = {os.path.dirname(local_path(e.output)) for e in left if e.output and not is_remote(e.output)}
        folders = {_existing(folder) for folder in local}
        if left:
            folders.add(_existing(self.request.settings.scratch or tempfile.gettempdir()))
        failed: list[OSError] = []
        for folder in sorted(folders):
            try:
                with tempfile.TemporaryFile(dir=folder, prefix=PREFIX):
                    pass
            except OSError as error:
                error.filename = folder
                failed.append(error)
        if failed:
            more = f", nor in {len(failed) - 1} other folders" if failed[1:] else ""
            raise of_os(failed[0], f"nothing can be written here{more}; nothing was done")

    def _check_free_space(self, left: Sequence[Entry]) -> None:
        """Check the room for outputs that stay on this machine and for what passes through it on the way to a store."""
        places: dict[str, int] = {}
        passing = []
        for entry in left:
            assert entry.output is not None
            if is_remote(entry.output):
                passing.append(entry.disk)
            else:  # what stands beside the outputs (mmproj) goes where they go
                folder = _existing(os.path.dirname(entry.output))
                reads = entry.bytes_in if any(is_remote(each.path) for each in entry.files) else 0
                places[folder] = places.get(folder, 0) + max(entry.bytes_out, entry.disk - reads)
                passing += [reads] * bool(reads)
        if passing:
            scratch = _existing(self.request.settings.scratch or tempfile.gettempdir())
            most = sum(sorted(passing, reverse=True)[: self.request.jobs])
            places[scratch] = places.get(scratch, 0) + most
        needs: dict[int, list[Any]] = {}
        for folder, need in places.items():
            device = needs.setdefault(os.stat(folder).st_dev, [folder, 0])
            device[1] += need
        total = sum(need for _, need in needs.values())
        if self.request.max_disk is not None and total > self.request.max_disk:
            _refuse("--max-disk", total, self.request.max_disk)
        for folder, need in needs.values():
            if need > (free := free_bytes(folder)):
                _refuse(folder, need, free)
        self.emit({"event": "room", "bytes": total})

    # --- after each job ------------------------------------------------------------------------------------------

    def _done(self, job: Job, outcome: Outcome) -> None:
        if job.id in self.deletion.entries and outcome.receipt is not None:
            self._delete(job.id, job.entry["recipe"], outcome.receipt)

    def _delete(self, job: str, recipe: Mapping[str, Any], receipt: Mapping[str, Any]) -> None:
        """Delete the weights of a finished job, if the question named them."""
        entry = self.deletion.entries[job]
        scratch = self.request.settings.scratch or tempfile.gettempdir()
        try:
            gone = delete(entry, recipe, receipt, self.request.despite_drops, scratch)
            self.ledger.note_deleted(job)
            self.emit({"event": "deleted", "id": job, "source": entry.source, "files": gone})
        except GgferryError as error:
            self.emit({"event": "warning", "id": job, "source": entry.source, "message": str(error)})
        except OSError as error:  # of one disk: the other sources are still to be inspected
            self.emit({"event": "warning", "id": job, "source": entry.source, "message": str(of_os(error))})


def _row(entry: Entry, head: Head, trees: Sequence[str] | None) -> NewRow:
    """Return an entry as the ledger stores it."""
    error: Mapping[str, Any] | None = None
    state = QUEUED if entry.verdict == CONVERT else SKIPPED
    if entry.verdict in BAD:
        state, error = QUARANTINED, entry.error or {"class": entry.verdict, "message": entry.reason}
    elif entry.verdict != CONVERT:
        error = {"class": entry.verdict, "message": entry.reason}
    data: PlanLine = {
        **cast("PlanLine", asdict(entry)),
        "recipe": entry.recipe(head),
        "trees": head.trees if trees is None else [*trees],
        "error": None,
    }
    return {"id": entry.id(head), "source": entry.source, "entry": data, "state": state, "error": error}


def ledger_mark(place: str) -> str:
    """Return what distinguishes this ledger from all others, in 8 digits: a server's URL, or a file of one machine."""
    name = ledger_url.redact(ledger_url.full_url(place))
    return digest_of([name if "://" in name else f"{socket.gethostname()}:{name}"])[:8]


def _existing(folder: str) -> str:
    """Return the folder, or the nearest one above it that exists."""
    while folder and not os.path.isdir(folder):
        above = os.path.dirname(folder)
        if above == folder:
            raise NotFoundError("no such folder", path=folder)
        folder = above
    return folder or "."


def _refuse(where: str, need: int, room: int) -> None:
    raise RefusedError(
        "not enough free disk space",
        path=where,
        found=f"{room:,} bytes",
        expected=f"{need:,} bytes",
        hint="nothing was done; --dest elsewhere, or edit the plan",
    )
