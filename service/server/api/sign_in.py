"""Routes by which a browser begins and ends a session: a form with a token, and a form without anything."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from ggferry.service.server.api.common import ServiceDep, form_of
from ggferry.service.server.guard import callers
from ggferry.service.server.guard.middleware import with_session

router = APIRouter(include_in_schema=False)


@router.post("/login")
async def sign_in(request: Request, service: ServiceDep) -> Response:
    """Begin a session with a token that a person typed."""
    form = await form_of(request)
    session = await asyncio.to_thread(service.doorkeeper.begin_session, form.get("token", "").strip())
    if session is None:
        return RedirectResponse("/login?wrong=1", 303)
    return with_session(RedirectResponse("/", 303), session, request.scope)


@router.post("/logout")
def sign_out(request: Request, service: ServiceDep) -> Response:
    """End the session whose cookie the request brings."""
    service.doorkeeper.end_session(request.state.caller.token.id)
    answer = RedirectResponse("/login", 303)
    scheme = request.url.scheme
    name, secure = callers.cookie_name(request.headers, scheme), scheme == "https"
    answer.delete_cookie(name, httponly=True, samesite="strict", secure=secure)
    return answer
