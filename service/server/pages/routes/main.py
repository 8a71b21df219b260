"""The HTML routes: each asks the server's functions, makes a view of the answer, and renders it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from ggferry.converters.conversion.options import is_sized
from ggferry.formats.errors import GgferryError
from ggferry.service.operations.tokenize import TokenizeRequest
from ggferry.service.records.fields import UploadRecord
from ggferry.service.records.ledger import DONE
from ggferry.service.server import changes, functions
from ggferry.service.server.guard.callers import Caller
from ggferry.service.server.guard.context import below_root
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.pages import archive_view, model_view, option_form, plan_view, render
from ggferry.service.server.pages.model_page import ModelPage
from ggferry.service.server.pages.plan_pages import AddPage, Upload
from ggferry.service.server.pages.routes import changes as change_routes
from ggferry.service.server.pages.routes import quality as quality_routes
from ggferry.service.server.pages.shown import FOUND, known, part, problem_answer, service_of, shell, show
from ggferry.service.server.pages.views import Problem, Provider
from ggferry.service.server.state import Service

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
KEPT = "public, max-age=31536000, immutable"
PLAN_WAIT = 1.5  # seconds for which the answer waits for a plan
MOST_UPLOADS = 50
MOST_LINES = 1_000_000


def add_pages(app: FastAPI) -> None:
    """Add the pages to the application."""
    app.include_router(change_routes.router)
    app.include_router(quality_routes.router)
    app.include_router(router)


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
        return part("archive_parts", "table", found, shell(request, "archive"))
    return show(request, "archive", "archive", archive=found)


@router.get("/activity")
def activity(request: Request) -> Response:
    """Show what is going on."""
    service, which = service_of(request), request.query_params.get("part")
    if which == "active":
        return part("macros", "active", shell(request, "activity").active)
    found = archive_view.activity(service, known(request))
    if which:
        return part("activity_parts", "now", found, shell(request, "activity"))
    return show(request, "activity", "activity", activity=found, usage=changes.usage(service, known(request)))


# --- a model -------------------------------------------------------------------------------------------------------


def looked_at(service: Service, caller: Caller, page: ModelPage) -> ModelPage:
    """Return a model's page with what its source holds, and what a conversion would make of it."""
    job = page.row.id
    try:
        page = model_view.with_inspection(page, functions.inspection(service, caller, job))
        if is_sized(functions.place_of(service, job)[2]):
            return replace(page, notes=(*page.notes, functions.CHOSEN_LATER))
        return model_view.with_plan(page, functions.conversion_plan(service, caller, job))
    except (GgferryError, HttpError) as error:
        _, problem = problem_answer(error)
        same = page.problem is not None and (page.problem.code, page.problem.offset) == (problem.code, problem.offset)
        return model_view.unread(page, None if same else problem)


def model_page(request: Request, job: str, look: bool) -> ModelPage:
    """Return a model's page; `look`: also what a worker reads of a source that is not converted."""
    service = service_of(request)
    found = functions.model(service, job)
    page = model_view.page_of(found, service.settings.upload_place)
    page = replace(page, can_delete=changes.may_change(service, known(request), job) and not page.can_cancel)
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
        status, problem = problem_answer(error)
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
    return show(request, "add", "add", add=add_page(request, path[:4096], {"outtype": outtype}))


def add_page(
    request: Request, path: str, options: Mapping[str, Any] | None = None, problem: Problem | None = None
) -> AddPage:
    """Return the page where models are added; `options`: those that are filled in."""
    service, caller = service_of(request), known(request)
    uploads = service.uploads.every(caller.token.owner) if caller.may("submit") else []
    return AddPage(
        tuple(functions.roots(service)),
        tuple(map(_upload, uploads[:MOST_UPLOADS])),
        most=service.settings.upload_bytes,
        problem=problem,
        path=path,
        form=option_form.form_of(options or {}, path, uploads=service.settings.upload_place),
        usage=changes.usage(service, caller),
        hub=service.hub_search.is_on,
    )


def _upload(found: UploadRecord) -> Upload:
    received = sum(each["offset"] for each in found["files"])
    error = model_view.problem_of(found["error"]) if found["error"] else None
    return Upload(
        found["id"],
        found["name"],
        found["bytes"],
        received,
        found["state"],
        error,
        found["purpose"] == "option",
        found["created"],
        tuple((each["name"], each["sha256"]) for each in found["files"] if "sha256" in each),
    )


@router.post("/plans")
async def make_plan(request: Request) -> Response:
    """Begin a plan and show it."""
    fields = await change_routes.fields_of(request)
    return await run_in_threadpool(made_plan, request, fields)


def made_plan(request: Request, fields: Sequence[tuple[str, str]]) -> Response:
    """Return where the plan of a form is shown, or the form again with what is wrong."""
    path = next((value for name, value in fields if name == "path"), "").strip()
    try:
        options = option_form.options_in(fields)
        found = functions.make_plan(service_of(request), known(request), path, options, wait=PLAN_WAIT)
    except GgferryError as error:
        status, problem = problem_answer(error)
        page = add_page(request, path[:4096], problem=problem)
        return show(request, "add", "add", status, add=replace(page, form=option_form.as_typed(page.form, fields)))
    return RedirectResponse(render.url("plans", found["id"]), FOUND)


@router.get("/plans/{plan}")
def plan(request: Request, plan: str, verdict: str = "", page: int = 1) -> Response:
    """Show a plan as a diff."""
    service = service_of(request)
    found = functions.show_plan(service, plan)
    lines = functions.plan_lines(service, plan, 0, MOST_LINES)[0] if found["state"] == "ready" else []
    return show(
        request,
        "plan",
        "add",
        plan=plan_view.page_of(found, lines, verdict, max(1, page), service.settings.upload_place),
    )


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
def sign_in_page(request: Request, wrong: str = "", elsewhere: str = "", out: str = "") -> Response:
    """Show where a token is typed in, or a provider signs in."""
    problem = None
    if wrong:
        hint = "copy the whole link that the server printed, or ask for a new token"
        problem = Problem("This token is wrong, revoked or expired.", hint=hint, fault="")
    elif elsewhere:
        hint = "copy the link into the address bar, or type the token here"
        problem = Problem("A link on another site signs nobody in.", hint=hint, fault="")
    return show(request, "sign_in", "sign in", problem=problem, provider=provider_of(request, bool(out)))


def provider_of(request: Request, out: bool) -> Provider | None:
    """Return the OpenID provider by which people sign in; `out`: also where its own session is ended."""
    openid = service_of(request).openid
    if openid is None:
        return None
    page = f"{request.scope.get('scheme', 'http')}://{request.headers['host']}{below_root('/login')}"
    end = openid.sign_out_address(page) if out else None
    return Provider(urlsplit(openid.settings.issuer).hostname or "OpenID", end)


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
