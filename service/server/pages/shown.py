"""What the HTML routes share: the service and the caller of a request, and pages as answers."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, Response

import ggferry
from ggferry.formats.errors import GgferryError
from ggferry.service.server.guard.callers import Caller
from ggferry.service.server.guard.problems import HttpError, status_of
from ggferry.service.server.pages import model_view, render
from ggferry.service.server.pages.views import ACTIVE, Problem, Shell
from ggferry.service.server.state import Service

FOUND = 303


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
    status, problem = problem_answer(error)
    if request.query_params.get("part"):
        return part("macros", "problem", problem, status=status)
    return show(request, "problem", "", status, problem=problem)


def problem_answer(error: GgferryError | HttpError) -> tuple[int, Problem]:
    """Return the status of an error, and the error as a person reads it."""
    if isinstance(error, GgferryError):
        return status_of(error), model_view.problem_of(error.as_dict(), status_of(error))
    record = {**error.more, "message": error.detail, "code": error.code}
    return error.status, model_view.problem_of(record, error.status)
