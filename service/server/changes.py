"""What ends, repeats and removes: jobs, their outputs, uploads; and how much room a token has left."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ggferry.formats.errors import GgferryError, NotFoundError, RefusedError, UsageError
from ggferry.service.records.fields import Bulk, ModelRecord, Usage
from ggferry.service.records.ledger import DONE, HELD, QUEUED
from ggferry.service.records.receipts import files_kept
from ggferry.service.server import functions
from ggferry.service.server.guard.callers import Caller
from ggferry.service.server.guard.problems import HttpError, of_disk
from ggferry.service.server.state import Service
from ggferry.service.server.store import asked, models, queue, removal

MOST = 1000
"""Jobs of one request."""


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Where a job stands in the queue: its number, from 1, of how many; 0 where it was begun meanwhile."""

    job: str
    position: int
    queued: int


def cancel(service: Service, caller: Caller, job: str) -> ModelRecord:
    """End a job that has not ended; nothing of it is published. Raises NotFoundError, RefusedError."""
    _may(service, caller, job)
    service.store.cancel(job)
    service.runner.drop(job)
    return functions.model(service, job)


def retry(service: Service, caller: Caller, job: str) -> ModelRecord:
    """Queue a job again that failed, was cancelled or whose files are gone. Raises NotFoundError, RefusedError."""
    _may(service, caller, job)
    row = service.store.row(job)
    if row["state"] not in (QUEUED, *HELD, DONE):
        service.uploads.check_output_space(caller.token, int(row["bytes_out"] or 0))
    service.store.requeue(job)
    service.runner.wake()
    return functions.model(service, job)


def delete(service: Service, caller: Caller, job: str) -> None:
    """Remove a job that has ended, its record and its files; or a model that nobody submitted.

    Raises NotFoundError, RefusedError for one that has not ended, HttpError for that of somebody else.
    """
    models.one(service.store, job)
    _may(service, caller, job, strictly=True)
    try:
        state = service.store.row(job)["state"]
    except NotFoundError:  # only planned
        state = ""
    if state in (QUEUED, *HELD):
        raise RefusedError("the job has not ended", found=state, hint="cancel it first")
    if state == DONE:
        _remove_files(service, job)
    elif state:
        service.outputs.clear(job)
    removal.forget(service.store, [job])


def delete_outputs(service: Service, caller: Caller, job: str) -> ModelRecord:
    """Remove the files of a done job; it is 'expired' then, and can be converted again. Raises as `delete`."""
    models.one(service.store, job)
    _may(service, caller, job, strictly=True)
    state = service.store.row(job)["state"]
    if state != DONE:
        raise RefusedError("the job has no files", found=state, expected=DONE)
    _remove_files(service, job)
    removal.expire(service.store, [job])
    return functions.model(service, job)


def _remove_files(service: Service, job: str) -> None:
    try:
        service.outputs.remove(job)
    except OSError as error:
        raise of_disk(error) from None


def move(service: Service, caller: Caller, job: str, place: str) -> QueuePosition:
    """Put a job that waits somewhere in the queue: to its `top` or `bottom`, or one place `up` or `down`.

    Who is no administrator moves what they asked for themselves, and before nothing that others asked for. Raises
    NotFoundError, RefusedError for a job that does not wait, HttpError for one of somebody else.
    """
    service.store.row(job)
    _may(service, caller, job)
    waiting = queue.waiting(service.store)
    others = [each for each in queue.overtaken(waiting, job, place) if each.owner != caller.token.owner]
    if others and not caller.may("admin"):
        whose = others[-1].asked_by or "nobody who is known"
        detail = f"it would come before a job that another token asked for: {whose}"
        raise HttpError(403, "not_yours", detail, hint="ask somebody whose token has the scope admin")
    return QueuePosition(job, queue.move(service.store, waiting, job, place), len(waiting))


ACTIONS: Mapping[str, Callable[[Service, Caller, str], Any]] = {"cancel": cancel, "retry": retry, "delete": delete}
"""What can be done to several models at once."""


def bulk(service: Service, caller: Caller, action: str, jobs: Sequence[str]) -> Bulk:
    """Do something to several models, and return which it was done to, and why not to the others. Raises UsageError."""
    work = ACTIONS.get(action)
    if work is None or not 0 < len(jobs) <= MOST:
        raise UsageError(
            "what to do to several models",
            found=f"{action} of {len(jobs)}",
            expected=f"{', '.join(ACTIONS)} of ≤ {MOST}",
        )
    done: list[str] = []
    refused: dict[str, str] = {}
    for job in dict.fromkeys(jobs):
        try:
            work(service, caller, job)
            done.append(job)
        except GgferryError as error:
            refused[job] = error.message
        except HttpError as error:
            refused[job] = error.detail
    return {"action": action, "done": done, "refused": refused}


def usage(service: Service, caller: Caller) -> Usage:
    """Return the bytes that a token has stored and may store, and those of the server's disk."""
    disk = shutil.disk_usage(service.settings.output_folder)
    quota = service.settings.quota if caller.token.quota is None else caller.token.quota
    used = service.uploads.used(caller.token.owner)
    return {"used": used, "quota": quota, "disk_free": disk.free, "disk_total": disk.total}


def may_change(service: Service, caller: Caller, job: str) -> bool:
    """Return whether a caller may delete a job: who asked for it, and administrators."""
    found = asked.of(service.store, job)
    return caller.may("admin") or (found is not None and caller.may("submit") and found.token == caller.token.owner)


def _may(service: Service, caller: Caller, job: str, *, strictly: bool = False) -> None:
    """Raise HttpError unless a caller may change a job; `strictly`: also one of which nobody knows who asked for it."""
    functions.need(caller, "submit")
    found = asked.of(service.store, job)
    if (found is None and not strictly) or may_change(service, caller, job):
        return
    whose = f"it is {found.name}'s" if found is not None else "nobody is known to have asked for it"
    hint = "ask them, or somebody whose token has the scope admin"
    raise HttpError(403, "not_yours", f"this changes what another token asked for: {whose}", hint=hint)


def file_names(service: Service, job: str) -> list[str]:
    """Return the names of a done job's files, without looking at them."""
    row = service.store.row(job)
    receipt = row["receipt"]
    if row["state"] != DONE or receipt is None:
        return []
    return [str(each["name"]) for each in files_kept(receipt)]
