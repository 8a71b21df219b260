"""The pages of administrators: tokens, and the audit log."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from ggferry.formats.errors import GgferryError, UsageError
from ggferry.service.operation import size_of
from ggferry.service.server import administration
from ggferry.service.server.guard.callers import Caller
from ggferry.service.server.guard.forms import form_of
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.pages.shown import known, problem_answer, service_of, show
from ggferry.service.server.pages.views import Problem
from ggferry.service.server.store.audit import AuditQuery, AuditRecord
from ggferry.service.server.store.tokens import ADMIN, SCOPES, MadeToken, TokenRecord
from ggferry.support.records import dataclass

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
PER_PAGE = 100


@dataclass(frozen=True, slots=True)
class TokenPage:
    """The page of tokens.

    Attributes:
        tokens: All of them.
        made: The one that was just made: this page alone shows it.
        problem: Why the last request could not be carried out.
        scopes: To choose from.
    """

    tokens: tuple[TokenRecord, ...] = ()
    made: MadeToken | None = None
    problem: Problem | None = None
    scopes: tuple[str, ...] = SCOPES


@dataclass(frozen=True, slots=True)
class AuditPage:
    """The page of the audit log; `older` is the address of what comes next, "" where there is no more."""

    entries: tuple[AuditRecord, ...] = ()
    text: str = ""
    older: str = ""


def admin(request: Request) -> Caller:
    """Return who made a request. Raises HttpError unless it is an administrator."""
    caller = known(request)
    if not caller.may(ADMIN):
        raise HttpError(403, "scope", f"this needs the scope {ADMIN}", found=caller.scope, expected=ADMIN)
    return caller


Administrator = Annotated[Caller, Depends(admin)]


@router.get("/tokens")
def tokens(request: Request, caller: Administrator) -> Response:
    """Show the tokens, and the form for a new one."""
    return _tokens(request)


def _tokens(
    request: Request, made: MadeToken | None = None, problem: Problem | None = None, status: int = 200
) -> Response:
    found = tuple(administration.list_tokens(service_of(request)))
    return show(request, "token_list", "tokens", status, page=TokenPage(found, made, problem))


@router.post("/tokens")
def make_token(request: Request, caller: Administrator, form: Annotated[dict[str, str], Depends(form_of)]) -> Response:
    """Make a token and show it: this answer is the only place where it stands."""
    try:
        made = administration.make_token(
            service_of(request),
            caller,
            form.get("name", ""),
            form.get("scope", ""),
            _number(form, "days"),
            size_of(form["quota"].strip(), "the quota") if form.get("quota", "").strip() else None,
            _number(form, "rate"),
        )
    except GgferryError as error:
        status, problem = problem_answer(error)
        return _tokens(request, problem=problem, status=status)
    administration.note_token(request, made)
    return _tokens(request, made, status=201)


def _number(form: dict[str, str], name: str) -> float | None:
    text = form.get(name, "").strip()
    try:
        return float(text) if text else None
    except ValueError:
        raise UsageError(f"the field {name}", found=text[:100], expected="a number") from None


@router.post("/tokens/{token}/revoke")
def revoke_token(request: Request, caller: Administrator, token: str) -> Response:
    """End a token."""
    administration.revoke_token(service_of(request), token)
    return RedirectResponse("/tokens", 303)


@router.get("/audit")
def audit(request: Request, caller: Administrator, q: str = "", before: str = "") -> Response:
    """Show what was changed, the newest first."""
    number = int(before) if before.isdecimal() and len(before) < 19 else None
    query = AuditQuery(q[:400], before=number, limit=PER_PAGE)
    entries, following = administration.audit_entries(service_of(request), query)
    pairs = {**({"q": query.text} if query.text else {}), "before": following}
    older = "" if following is None else f"/audit?{urlencode(pairs)}"
    return show(request, "audit", "audit", page=AuditPage(tuple(entries), query.text, older))
