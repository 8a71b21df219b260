"""Routes by which a browser begins and ends a session: a form with a token, and a form without anything."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from ggferry.service.server.api.common import ServiceDep
from ggferry.service.server.guard import callers
from ggferry.service.server.guard.context import ROOT
from ggferry.service.server.guard.forms import form_of
from ggferry.service.server.guard.middleware import with_session

router = APIRouter(include_in_schema=False)


@router.post("/login")
async def sign_in(request: Request, service: ServiceDep) -> Response:
    """Begin a session with a token that a person typed."""
    form = await form_of(request)
    session = await asyncio.to_thread(service.doorkeeper.begin_session, form.get("token", "").strip())
    token = await asyncio.to_thread(service.doorkeeper.find, session) if session is not None else None
    await asyncio.to_thread(service.auditor.sign_in, request.scope, "token", token.name if token else None)
    if session is None:
        return RedirectResponse("/login?wrong=1", 303)
    return with_session(RedirectResponse("/", 303), session, request.scope)


@router.post("/logout")
def sign_out(request: Request, service: ServiceDep) -> Response:
    """End the session whose cookie the request brings."""
    service.doorkeeper.end_session(request.state.caller.token.id)
    answer = RedirectResponse("/login?out=1", 303)
    scheme = request.scope.get("scheme", "http")
    answer.delete_cookie(
        callers.cookie_name(request.headers, scheme),
        path=ROOT.get() or "/",
        secure=scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer
