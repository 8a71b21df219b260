"""Routes that plan and do: plans, jobs, receipts, files to download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from ggferry.converters.metadata.receipt_fields import KeptReceipts
from ggferry.service.operations.edit import EditChanges
from ggferry.service.records.fields import Bulk, Lines, ModelRecord, PlanRecord, Submitted
from ggferry.service.server import changes, functions
from ggferry.service.server.api.answers import once
from ggferry.service.server.api.common import (
    PROBLEMS,
    VERSION,
    JobId,
    PlanId,
    Reader,
    ServiceDep,
    Submitter,
    Text,
    answers,
)
from ggferry.service.server.api.request_models import RequestBody, takes
from ggferry.service.server.guard.auditing import DETAIL
from ggferry.service.server.store import queue
from ggferry.service.server.work.outputs.output_files import Output

router = APIRouter(tags=["jobs"], responses=PROBLEMS)
Key = Annotated[
    str | None,
    Header(alias="Idempotency-Key", max_length=200, description="The same key gives the same answer for a day"),
]
WAIT = 20.0  # seconds a request may wait for a plan


class Planning(BaseModel):
    """What to plan."""

    model_config = ConfigDict(extra="forbid")
    source: Text = Field(description="A path below a root, a URL, or upload:ID")
    options: dict[Annotated[str, Field(max_length=64)], Any] = Field(
        {}, description="Options of a conversion as a plan's line has them (docs/archives.md): to, outtype, verify, …"
    )
    wait: Annotated[float, Field(ge=0, le=WAIT)] = Field(WAIT, description="Seconds to wait for the plan")


class Submission(BaseModel):
    """What to do: the models of a plan, all or some."""

    model_config = ConfigDict(extra="forbid")
    plan: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    models: list[Annotated[str, Field(pattern="^[0-9a-f]{32}$")]] | None = Field(
        None, max_length=100_000, description="Ids of the models; null: all"
    )


class Several(BaseModel):
    """What to do, and to which models."""

    model_config = ConfigDict(extra="forbid")
    action: Literal["cancel", "retry", "delete"]
    jobs: Annotated[list[Annotated[str, Field(pattern="^[0-9a-f]{32}$")]], Field(min_length=1, max_length=changes.MOST)]


class Moving(BaseModel):
    """Where a job is to stand in the queue."""

    model_config = ConfigDict(extra="forbid")
    to: Literal["top", "up", "down", "bottom"]


@dataclass(frozen=True, slots=True)
class QueueItem:
    """A job that waits: its number in the queue, from 1, and who asked for it."""

    position: int
    id: str
    source: str
    bytes_in: int
    asked_by: str | None


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Some of the jobs that wait, how many wait in all, and where the next page begins (null after the last)."""

    items: list[QueueItem]
    queued: int
    next: int | None


@takes(EditChanges)
class Editing(RequestBody):
    """Changes of a GGUF file, as `ggferry edit` takes them (docs/edit-split-merge.md)."""

    file: Annotated[str, Field(max_length=255)] | None = Field(None, description="Which of a job's outputs")


@router.post(
    "/plans",
    status_code=201,
    response_model=None,
    responses=answers(PlanRecord, 201) | answers(PlanRecord, 202, "It is still being made"),
)
def make_plan(request: Request, service: ServiceDep, caller: Submitter, body: Planning, key: Key = None) -> Response:
    """Plan what is at a source: headers are read, no tensor data. `state` says how far the plan is."""

    def work() -> Response:
        found = functions.make_plan(service, caller, body.source, body.options, body.wait)
        status = 202 if found["state"] == "planning" else 201
        return JSONResponse(found, status, {"Location": f"{VERSION}/plans/{found['id']}"})

    return once(service, caller, request, key, body, work)


@router.get("/plans/{plan}", response_model=None, responses=answers(PlanRecord))
def show_plan(service: ServiceDep, caller: Reader, plan: PlanId) -> PlanRecord:
    """Show a plan in numbers."""
    return functions.show_plan(service, plan)


@router.get("/plans/{plan}/lines", response_model=None, responses=answers(Lines))
def plan_lines(
    service: ServiceDep,
    caller: Reader,
    plan: PlanId,
    cursor: Annotated[int, Query(ge=0, le=1 << 31)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Lines:
    """Show a plan's lines, a page at a time."""
    lines, following = functions.plan_lines(service, plan, cursor, limit)
    return {"items": lines, "next": following}


@router.get("/plans/{plan}/file", response_class=PlainTextResponse)
def plan_file(service: ServiceDep, caller: Reader, plan: PlanId) -> Response:
    """Give a plan's file: `ggferry apply FILE --ledger URL` shares its work with this server."""
    name = {"Content-Disposition": f'attachment; filename="{plan}.jsonl"'}
    return Response(service.planner.body(plan), media_type="application/jsonl", headers=name)


@router.post("/jobs", status_code=202, response_model=None, responses=answers(Submitted, 202))
def submit(request: Request, service: ServiceDep, caller: Submitter, body: Submission, key: Key = None) -> Response:
    """Convert the models of a plan. What is done already is not done again."""
    return once(
        service,
        caller,
        request,
        key,
        body,
        lambda: JSONResponse(functions.submit(service, caller, body.plan, body.models), 202),
    )


@router.get("/jobs/{job}", response_model=None, responses=answers(ModelRecord))
def show(service: ServiceDep, caller: Reader, job: JobId) -> ModelRecord:
    """Show a model's job: its plan's line, state, error, attempts and progress."""
    return functions.model(service, job)


@router.post("/jobs/{job}/cancel", response_model=None, responses=answers(ModelRecord))
def cancel(service: ServiceDep, caller: Submitter, job: JobId) -> ModelRecord:
    """End a job that has not ended; nothing of it is published."""
    return changes.cancel(service, caller, job)


@router.post("/jobs/{job}/retry", response_model=None, responses=answers(ModelRecord))
def retry(service: ServiceDep, caller: Submitter, job: JobId) -> ModelRecord:
    """Queue a job again that failed or was cancelled."""
    return changes.retry(service, caller, job)


@router.get("/queue")
def show_queue(
    service: ServiceDep,
    caller: Reader,
    cursor: Annotated[int, Query(ge=0, le=1 << 31)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> QueuePage:
    """Show the jobs that wait, in the order in which they will be converted, a page at a time."""
    items = [
        QueueItem(each.position, each.id, each.source, each.bytes_in, each.asked_by)
        for each in queue.waiting(service.store, cursor, limit)
    ]
    total = queue.length(service.store)
    return QueuePage(items, total, cursor + limit if cursor + limit < total else None)


@router.post("/jobs/{job}/move")
def move(request: Request, service: ServiceDep, caller: Submitter, job: JobId, body: Moving) -> changes.QueuePosition:
    """Put a job that waits elsewhere in the queue. Its owner may, but not before jobs of others; `admin` may."""
    found = changes.move(service, caller, job, body.to)
    setattr(request.state, DETAIL, f"{body.to}: now {found.position} of {found.queued}")
    return found


@router.delete("/jobs/{job}", status_code=204)
def delete(service: ServiceDep, caller: Submitter, job: JobId) -> None:
    """Remove a model that has ended, or was never submitted: its record and its files. Its owner may, and `admin`."""
    changes.delete(service, caller, job)


@router.delete("/jobs/{job}/files", response_model=None, responses=answers(ModelRecord))
def delete_outputs(service: ServiceDep, caller: Submitter, job: JobId) -> ModelRecord:
    """Remove the files of a done job; it is `expired` then, and can be converted again."""
    return changes.delete_outputs(service, caller, job)


@router.post("/jobs/bulk")
def bulk(service: ServiceDep, caller: Submitter, body: Several) -> Bulk:
    """Cancel, retry or delete several models; the answer says to which it was done, and why not to others."""
    return changes.bulk(service, caller, body.action, body.jobs)


@router.post("/jobs/{job}/edit", status_code=201, response_model=None, responses=answers(ModelRecord, 201))
def edit(
    request: Request, service: ServiceDep, caller: Submitter, job: JobId, body: Editing, key: Key = None
) -> Response:
    """Change keys of a done job's file: a new file with a receipt of its own, listed as a model; the old one stays."""

    def work() -> Response:
        found = functions.edit(service, caller, job, body.as_request(EditChanges), body.file)
        return JSONResponse(found, 201, {"Location": f"{VERSION}/jobs/{found['id']}"})

    return once(service, caller, request, key, body, work)


@router.get("/jobs/{job}/receipt", response_model=None, responses=answers(KeptReceipts))
def receipt(
    service: ServiceDep,
    caller: Reader,
    job: JobId,
    file: Annotated[str | None, Query(max_length=255, description="A file of the output that is meant")] = None,
) -> KeptReceipts:
    """Give the receipt of a done job; its output files also have their sha256.

    Of several outputs it is that of the first, with the others in its member `further`; with `file`, one of them alone.
    """
    return functions.receipt(service, job, file)


@router.get("/jobs/{job}/files")
def files(service: ServiceDep, caller: Reader, job: JobId) -> list[Output]:
    """List the files that a done job made, or the one that did the same and for which this one was skipped."""
    return functions.outputs(service, job)
