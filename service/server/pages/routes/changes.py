"""The HTML routes that remove things, change several at once, and lead through the folders of the roots."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response

from ggferry.formats.errors import GgferryError, UsageError
from ggferry.service.operations.edit import EditChanges
from ggferry.service.publishing.search import HubFile, HubModel
from ggferry.service.records.fields import FolderItem
from ggferry.service.records.ledger import DONE
from ggferry.service.server import changes, comparisons, functions
from ggferry.service.server.guard.auditing import DETAIL, SUBJECT
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.pages import render, wording
from ggferry.service.server.pages.archive_view import row_of
from ggferry.service.server.pages.shown import FOUND, known, problem_answer, service_of, show
from ggferry.service.server.pages.views import ModelRow, Problem
from ggferry.service.server.state import Service
from ggferry.service.server.store import models, queue

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Browse:
    """A folder below a root: its path, the folders above it as (name, path), and what is in it."""

    path: str
    crumbs: tuple[tuple[str, str], ...]
    items: tuple[FolderItem, ...]

    @property
    def name(self) -> str:
        """Return the folder's own name."""
        return self.crumbs[-1][0]


@dataclass(frozen=True, slots=True)
class HubPage:
    """Models of the Hugging Face Hub: the name that was searched for, what was found, and what went wrong.

    Of one repository, its name and its files of weights.
    """

    text: str = ""
    models: tuple[HubModel, ...] = ()
    problem: Problem | None = None
    repository: str = ""
    files: tuple[HubFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """A question before something that cannot be undone.

    Attributes:
        title: The question.
        words: What would be lost.
        rows: The models it is about.
        action: Where the answer goes, with `fields`.
        button: What the answer is called.
        back: Where else to go.
    """

    title: str
    words: str
    rows: tuple[ModelRow, ...]
    action: str
    fields: tuple[tuple[str, str], ...]
    button: str
    back: str


@dataclass(frozen=True, slots=True)
class BulkResult:
    """What was done to several models; `refused`: name, id and reason of those it was not done to."""

    title: str
    refused: tuple[tuple[str, str, str], ...]


async def fields_of(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form, in their order; a name may stand there several times."""
    body = (await request.body()).decode("utf-8", "replace")
    return parse_qsl(body, keep_blank_values=True, max_num_fields=changes.MOST + 100)


@router.get("/browse")
def browse(request: Request, path: str) -> Response:
    """Show a folder below a root."""
    service = service_of(request)
    items = tuple(functions.browse(service, path[:4096]))
    top = next((root for root in functions.roots(service) if path == root or path.startswith(root + "/")), path)
    crumbs = [(top, top)]
    for part in filter(None, path.removeprefix(top).split("/")):
        crumbs.append((part, os.path.join(crumbs[-1][1], part)))
    return show(request, "browse", "add", browse=Browse(path, tuple(crumbs), items))


@router.get("/hub")
async def hub(request: Request, q: str = "", repo: str = "") -> Response:
    """Show models of the Hugging Face Hub whose names hold a text, or the files of one."""
    return await service_of(request).lookups.run(known(request).token, lambda: _hub(request, q[:400], repo[:400]))


def _hub(request: Request, text: str, repo: str) -> Response:
    service, caller = service_of(request), known(request)
    found, files, problem, status = [], [], None, 200
    try:
        found = functions.search_hub(service, caller, text) if text.strip() and not repo else []
        files = functions.hub_files(service, caller, repo) if repo else []
    except (GgferryError, HttpError) as error:
        status, problem = problem_answer(error)
    return show(request, "hub", "add", status, page=HubPage(text, tuple(found), problem, repo, tuple(files)))


@router.post("/queue")
async def move(request: Request) -> Response:
    """Move a job in the queue."""
    fields = await fields_of(request)
    place, _, job = next((value for name, value in fields if name == "move"), "").partition(" ")
    return await run_in_threadpool(_move, request, job, place)


def _move(request: Request, job: str, place: str) -> Response:
    if place not in queue.PLACES:
        raise UsageError("where in the queue", found=place[:100], expected=", ".join(queue.PLACES))
    found = changes.move(service_of(request), known(request), job, place)
    setattr(request.state, SUBJECT, f"job {job}")
    setattr(request.state, DETAIL, f"{place}: now {found.position} of {found.queued}")
    return RedirectResponse("/activity#queue", FOUND)


def _rows(service: Service, jobs: Sequence[str]) -> tuple[ModelRow, ...]:
    found = models.some(service.store, jobs)
    return tuple(row_of(each, service.settings.upload_place) for each in found)


@router.post("/models/bulk")
async def bulk(request: Request) -> Response:
    """Do something to the models that are selected; ask first, where it cannot be undone."""
    fields = await fields_of(request)
    jobs = [value for name, value in fields if name == "job"]
    action = next((value for name, value in fields if name == "action"), "")
    is_sure = ("sure", "1") in fields
    return await run_in_threadpool(_bulk, request, action, jobs, is_sure)


def _bulk(request: Request, action: str, jobs: Sequence[str], is_sure: bool) -> Response:
    service, caller = service_of(request), known(request)
    functions.need(caller, "submit")
    if not jobs:
        raise UsageError("no model is selected", hint="tick the boxes before the names")
    rows = _rows(service, jobs)
    if action == "compare":
        if len(rows) != 2:
            raise UsageError("two models are compared", found=len(rows), hint="tick the boxes before two names")
        return RedirectResponse(f"{render.url('models', rows[0].id, 'difference')}?other={rows[1].id}", FOUND)
    if action == "delete" and not is_sure:
        many = wording.count(len(rows), "model")
        fields = (("action", "delete"), ("sure", "1"), *(("job", row.id) for row in rows))
        words = "Their records, files and receipts are removed. The sources stay as they are."
        ask = Ask(f"Delete {many}?", words, rows, "/models/bulk", fields, f"Delete {many}", "/")
        return show(request, "confirm", "archive", ask=ask)
    found = changes.bulk(service, caller, action, jobs)
    if not found["refused"]:
        return RedirectResponse("/", FOUND)
    names = {row.id: row.name for row in rows}
    done = {"delete": "deleted", "cancel": "cancelled", "retry": "queued again"}[action]
    title = f"{wording.count(len(found['done']), 'model')} {done}"
    refused = tuple((names.get(job, job), job, why) for job, why in found["refused"].items())
    return show(request, "done", "archive", result=BulkResult(title, refused))


@router.get("/models/{job}/delete")
def ask_delete(request: Request, job: str, what: str = "") -> Response:
    """Ask whether a model, or its files, are to be removed."""
    service, address = service_of(request), render.url("models", job)
    files = what == "files"
    rows = (row_of(models.one(service.store, job), service.settings.upload_place),)
    words = (
        "The model stays in the archive without its files, and can be converted again."
        if files
        else "Its record, its files and their receipts are removed. The source stays as it is."
    )
    title = "Delete the files of this model?" if files else "Delete this model?"
    fields = (("what", "files" if files else "all"),)
    button = "Delete its files" if files else "Delete it"
    return show(
        request, "confirm", "archive", ask=Ask(title, words, rows, f"{address}/delete", fields, button, address)
    )


@router.post("/models/{job}/delete")
async def delete(request: Request, job: str) -> Response:
    """Remove a model, or its files."""
    files = ("what", "files") in await fields_of(request)
    work = changes.delete_outputs if files else changes.delete
    await run_in_threadpool(work, service_of(request), known(request), job)
    return RedirectResponse(render.url("models", job) if files else "/", FOUND)


@router.post("/models/{job}/edit")
async def edit(request: Request, job: str) -> Response:
    """Change keys of a done model's file, and show the new file."""
    fields = dict(await fields_of(request))
    lines = {
        name: [line.strip() for line in fields.get(name, "").splitlines() if line.strip()]
        for name in ("set", "remove", "special_tokens")
    }
    if not any(lines.values()):
        raise UsageError("nothing is to be changed", hint="fill in one of the fields")
    changes = EditChanges(set=lines["set"], remove=lines["remove"], special_tokens=lines["special_tokens"] or None)
    service, caller = service_of(request), known(request)

    def work() -> Response:
        made = functions.edit(service, caller, job, changes, fields.get("file") or None)
        return RedirectResponse(render.url("models", made["id"]), FOUND)

    return await service.lookups.run(caller.token, work)


@router.get("/models/{job}/histogram")
async def histogram(request: Request, job: str, tensor: str) -> Response:
    """Show how the values of a tensor are distributed."""
    service, caller = service_of(request), known(request)

    def work() -> Response:
        row = row_of(models.one(service.store, job), service.settings.upload_place)
        found, problem, status = None, None, 200
        try:
            found = comparisons.histogram(service, caller, job, tensor[:1000])
        except (GgferryError, HttpError) as error:
            status, problem = problem_answer(error)
        views = {"row": row, "name": tensor[:1000], "found": found, "problem": problem}
        return show(request, "histogram", "archive", status, **views)

    return await service.lookups.run(caller.token, work)


@router.get("/models/{job}/difference")
async def difference(request: Request, job: str, other: str, data: bool = True) -> Response:
    """Show how two models differ."""
    service, caller = service_of(request), known(request)

    def work() -> Response:
        both = [models.one(service.store, each) for each in (job, other)]
        rows = [row_of(each, service.settings.upload_place) for each in both]
        found, problem, status = None, None, 200
        try:
            found = comparisons.difference(service, caller, job, other, data)
        except (GgferryError, HttpError) as error:
            status, problem = problem_answer(error)
        names = [os.path.basename(each["output"] or "") if each["state"] == DONE else "" for each in both]
        views = {"sides": [*zip(("first", "second"), rows, names, strict=True)], "found": found, "problem": problem}
        return show(request, "difference", "archive", status, **views)

    return await service.lookups.run(caller.token, work)


@router.post("/uploads/{upload}/delete")
def delete_upload(request: Request, upload: str) -> Response:
    """Remove an upload."""
    functions.need(known(request), "submit")
    service_of(request).uploads.remove(upload, known(request).token)
    return RedirectResponse("/add", FOUND)
