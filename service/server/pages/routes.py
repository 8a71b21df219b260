"""The HTML routes: each asks the server's functions, makes a view of the answer, and renders it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response

import ggferry
from ggferry.formats.errors import GgferryError
from ggferry.service.operations.tokenize import TokenizeRequest
from ggferry.service.records.fields import UploadRecord
from ggferry.service.records.ledger import DONE
from ggferry.service.server import changes, functions
from ggferry.service.server.api.common import form_of
from ggferry.service.server.guard.callers import Caller
from ggferry.service.server.guard.problems import HttpError, status_of
from ggferry.service.server.pages import archive_view, model_view, plan_view, render
from ggferry.service.server.pages.views import ACTIVE, AddPage, ModelPage, Problem, Shell, Upload
from ggferry.service.server.state import Service

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
KEPT = "public, max-age=31536000, immutable"
PLAN_WAIT = 1.5  # seconds for which the answer waits for a plan
FOUND = 303
MOST_LINES = 1_000_000


def add_pages(app: FastAPI) -> None:
    """Add the pages to the application."""
    app.include_router(router)


def service_of(request: Request) -> Service:
    """Return the service of a request."""
    found: Service = request.app.state.service
    return found


def caller_of(request: Request) -> Caller | None:
    """Return who made a request; None where nobody needs to be known."""
    return getattr(request.state, "caller", None)


def known(request: Request) -> Caller:
    """Return who made a request. Raises HttpError where that is not known."""
    caller = caller_of(request)
    if caller is None:
        raise HttpError(401, "unauthorized", "a token is needed")
    return caller


def shell(request: Request, section: str) -> Shell:
    """Return what a page has around its content."""
    caller = caller_of(request)
    if caller is None:
        return Shell("sign in", ggferry.__version__, may_submit=False)
    try:
        counts = service_of(request).store.counts()
    except GgferryError:  # the page says what is wrong all the same
        counts = {}
    active = sum(counts.get(state, 0) for state in ACTIVE)
    return Shell(section, ggferry.__version__, caller.csrf, caller.may("submit"), caller.may("admin"), active)


def show(request: Request, template: str, section: str, status: int = 200, **views: Any) -> Response:
    """Return a page."""
    return HTMLResponse(render.page(template, shell(request, section), **views), status)


def part(template: str, name: str, *views: Any, status: int = 200) -> Response:
    """Return a part of a page, for JavaScript."""
    return HTMLResponse(render.fragment(template, name, *views), status)


def error_page(request: Request, error: GgferryError | HttpError) -> Response:
    """Return the answer to a request for a page that ended with an error."""
    status, problem = told(error)
    if request.query_params.get("part"):
        return part("macros", "problem", problem, status=status)
    return show(request, "problem", "", status, problem=problem)


def told(error: GgferryError | HttpError) -> tuple[int, Problem]:
    """Return the status of an error, and the error as a person reads it."""
    if isinstance(error, GgferryError):
        return status_of(error), model_view.problem_of(error.as_dict(), status_of(error))
    record = {**error.more, "message": error.detail, "code": error.code}
    return error.status, model_view.problem_of(record, error.status)


# --- the archive ---------------------------------------------------------------------------------------------------


@router.get("/")
def archive(request: Request) -> Response:
    """Show the archive, or a branch of its tree."""
    query = archive_view.query_of(request.query_params, request.query_params.getlist("state"))
    found = archive_view.archive(service_of(request), query)
    which = request.query_params.get("part")
    if which == "branch":
        return part("archive_parts", "partial", found)
    if which == "now":
        return part("archive_parts", "table", found)
    return show(request, "archive", "archive", archive=found)


@router.get("/activity")
def activity(request: Request) -> Response:
    """Show what is going on."""
    found = archive_view.activity(service_of(request))
    if request.query_params.get("part"):
        return part("activity_parts", "now", found)
    return show(request, "activity", "activity", activity=found)


# --- a model -------------------------------------------------------------------------------------------------------


def looked_at(service: Service, caller: Caller, page: ModelPage) -> ModelPage:
    """Return a model's page with what its source holds, and what a conversion would make of it."""
    job = page.row.id
    try:
        page = model_view.with_inspection(page, functions.inspection(service, caller, job))
        return model_view.with_plan(page, functions.conversion_plan(service, caller, job))
    except (GgferryError, HttpError) as error:
        _, problem = told(error)
        same = page.problem is not None and (page.problem.code, page.problem.offset) == (problem.code, problem.offset)
        return model_view.unread(page, None if same else problem)


def model_page(request: Request, job: str, look: bool) -> ModelPage:
    """Return a model's page; `look`: also what a worker reads of a source that is not converted."""
    service = service_of(request)
    page = model_view.page_of(functions.model(service, job), service.settings.uploads)
    receipt = service.store.row(job)["receipt"] if page.row.state == DONE else None
    if receipt is not None:
        page = model_view.with_receipt(page, receipt, f"/api/v1/jobs/{job}/files")
    elif look:
        page = looked_at(service, known(request), page)
    number = request.query_params.get("tensors", "1")
    text = request.query_params.get("tensor", "")[:400]
    return model_view.with_tensors(page, text, int(number) if number.isdecimal() and len(number) < 8 else 1)


async def in_turn(request: Request, work: Callable[[], Response]) -> Response:
    """Return what `work` returns, which waits for a worker, once it is the caller's turn."""
    return await service_of(request).lookups.run(known(request).token, work)


@router.get("/models/{job}")
async def model(request: Request, job: str) -> Response:
    """Show a model, or a part of its page."""
    of_tensors = {"tensor", "tensors"} & set(request.query_params)
    if of_tensors or request.query_params.get("part") == "facts":
        return await in_turn(request, lambda: shown_model(request, job, look=True))
    return await run_in_threadpool(shown_model, request, job, look=False)


def shown_model(request: Request, job: str, *, look: bool) -> Response:
    """Return a model's page, or the part of it that is asked for."""
    which, page = request.query_params.get("part"), model_page(request, job, look)
    if which == "facts":
        return part("model_parts", "facts", page)
    if which == "state":
        return Response(page.row.state, media_type="text/plain")
    if which in ("outcome", "whole"):
        return part("model_parts", which, page, shell(request, "archive"))
    return show(request, "model", "archive", model=page)


@router.get("/models/{job}/digests")
def digests(request: Request, job: str) -> Response:
    """Return the digests of the files, which take a while the first time."""
    return part("model_parts", "digests", functions.outputs(service_of(request), job))


@router.get("/models/{job}/tokens")
async def try_tokens(request: Request, job: str, text: str = "") -> Response:
    """Show the tokens of a text."""
    return await in_turn(request, lambda: shown_tokens(request, job, text))


def shown_tokens(request: Request, job: str, text: str) -> Response:
    """Return the tokens of a text, or what kept a worker from them."""
    service = service_of(request)
    row = model_view.page_of(functions.model(service, job)).row
    found, problem, status = [], None, 200
    try:
        found = functions.tokenize(service, known(request), job, TokenizeRequest("", text[:4000]))
    except (GgferryError, HttpError) as error:
        status, problem = told(error)
    if request.query_params.get("part"):
        return part("model_parts", "tokens", found, problem, status=status)
    return show(request, "tokens", "archive", status, row=row, text=text, found=found, problem=problem)


@router.post("/models/{job}/cancel")
def cancel(request: Request, job: str) -> Response:
    """Cancel a job."""
    changes.cancel(service_of(request), known(request), job)
    return RedirectResponse(render.url("models", job), FOUND)


@router.post("/models/{job}/retry")
def retry(request: Request, job: str) -> Response:
    """Try a job again."""
    changes.retry(service_of(request), known(request), job)
    return RedirectResponse(render.url("models", job), FOUND)


# --- adding --------------------------------------------------------------------------------------------------------


@router.get("/add")
def add(request: Request, path: str = "", outtype: str = "keep") -> Response:
    """Show where models are added."""
    return show(request, "add", "add", add=add_page(request, path[:4096], outtype))


def add_page(request: Request, path: str, outtype: str, problem: Problem | None = None) -> AddPage:
    """Return the page where models are added."""
    service, caller = service_of(request), known(request)
    open_ = [
        each
        for each in service.uploads.every(caller.token.owner)
        if each["state"] in ("receiving", "inspecting", "refused")
    ]
    return AddPage(
        tuple(functions.roots(service)),
        tuple(map(_upload, open_[:20])),
        most=service.settings.upload_bytes,
        problem=problem,
        path=path,
        outtype=outtype.partition(",")[0],
        further=outtype.partition(",")[2],
    )


def _upload(found: UploadRecord) -> Upload:
    names = [each["name"] for each in found["files"]]
    name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    received = sum(each["offset"] for each in found["files"])
    error = model_view.problem_of(found["error"]) if found["error"] else None
    return Upload(found["id"], name, found["bytes"], received, found["state"], error)


@router.post("/plans")
def make_plan(request: Request, form: Annotated[dict[str, str], Depends(form_of)]) -> Response:
    """Begin a plan and show it."""
    path, outtype = form.get("path", ""), form.get("outtype", "keep")
    outtype = ",".join([outtype, *filter(None, map(str.strip, form.get("further", "").split(",")))])
    service, caller = service_of(request), known(request)
    try:
        found = functions.make_plan(service, caller, path.strip(), {"outtype": outtype}, wait=PLAN_WAIT)
    except GgferryError as error:
        status, problem = told(error)
        return show(request, "add", "add", status, add=add_page(request, path[:4096], outtype, problem))
    return RedirectResponse(render.url("plans", found["id"]), FOUND)


@router.get("/plans/{plan}")
def plan(request: Request, plan: str, verdict: str = "", page: int = 1) -> Response:
    """Show a plan as a diff."""
    service = service_of(request)
    found = functions.show_plan(service, plan)
    lines = functions.plan_lines(service, plan, 0, MOST_LINES)[0] if found["state"] == "ready" else []
    return show(request, "plan", "add", plan=plan_view.page_of(found, lines, verdict, max(1, page)))


@router.get("/plans/{plan}/models/{job}")
async def planned_model(request: Request, plan: str, job: str) -> Response:
    """Return what would become of each tensor and key of a model of a plan."""
    return await in_turn(request, lambda: shown_plan_of(request, job))


def shown_plan_of(request: Request, job: str) -> Response:
    """Return the part of a plan's page that has the tensors and keys of one of its models."""
    service = service_of(request)
    found, model = functions.conversion_plan(service, known(request), job), functions.model(service, job)
    types = str(model["entry"]["recipe"]["outtype"]).split(",")
    plans = [model_view.with_plan(model_view.page_of(model), each) for each in (found, *found["further"])]
    return part("plan_parts", "details", [*zip(plans, types, strict=False)])


@router.post("/plans/{plan}/submit")
def submit(request: Request, plan: str) -> Response:
    """Run a plan."""
    found = functions.submit(service_of(request), known(request), plan)
    jobs = found["jobs"]
    return RedirectResponse(render.url("models", jobs[0]) if len(jobs) == 1 else "/activity", FOUND)


# --- coming and going ----------------------------------------------------------------------------------------------


@router.get("/login")
def sign_in_page(request: Request, wrong: str = "", elsewhere: str = "") -> Response:
    """Show where a token is typed in."""
    problem = None
    if wrong:
        hint = "copy the whole link that the server printed, or ask for a new token"
        problem = Problem("This token is wrong, revoked or expired.", hint=hint, fault="")
    elif elsewhere:
        hint = "copy the link into the address bar, or type the token here"
        problem = Problem("A link on another site signs nobody in.", hint=hint, fault="")
    return show(request, "sign_in", "sign in", problem=problem)


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Return a file of the page's own."""
    if name not in render.assets():
        raise HttpError(404, "not_found", "no such file")
    kind, content = render.assets()[name]
    return Response(content, media_type=kind, headers={"Cache-Control": KEPT})


@router.get("/favicon.ico")
def favicon() -> Response:
    """Lead to the icon."""
    return RedirectResponse(render.asset("icon.svg"), 308)
