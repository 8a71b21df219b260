"""Routes by which a browser begins a session at an OpenID provider."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.requests import cookie_parser

import ggferry
from ggferry.service.server.api.common import ServiceDep
from ggferry.service.server.guard import callers, openid
from ggferry.service.server.guard.context import ROOT, below_root
from ggferry.service.server.guard.middleware import with_session
from ggferry.service.server.guard.openid import OpenId
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.pages import render
from ggferry.service.server.pages.views import Shell
from ggferry.service.server.state import Service

router = APIRouter(include_in_schema=False)


@router.get("/sign-in")
async def begin(request: Request, service: ServiceDep) -> Response:
    """Lead to the OpenID provider."""
    url, kept = await asyncio.to_thread(_provider(service).begin, _own(request, openid.CALLBACK))
    answer = RedirectResponse(url, 303)
    _keep(answer, request, kept, openid.UNDER_WAY)
    return answer


@router.get(openid.CALLBACK)
async def finish(request: Request, service: ServiceDep) -> Response:
    """Begin the session of whom the provider sends back.

    The answer is a page that leads on, not a redirect: a browser sends a SameSite=Strict cookie only where our own
    page led it, and the provider's did lead it here.
    """
    provider, scope = _provider(service), request.scope
    kept = cookie_parser(request.headers.get("cookie", "")).get(_cookie(request), "")
    try:
        person = await asyncio.to_thread(
            provider.finish, _own(request, openid.CALLBACK), dict(request.query_params), kept
        )
        seconds = provider.settings.seconds
        session = await asyncio.to_thread(openid.begin_session, service.doorkeeper, person, seconds)
    except HttpError as error:
        await asyncio.to_thread(service.auditor.sign_in, scope, "OpenID", None, detail=error.detail)
        raise
    await asyncio.to_thread(
        service.auditor.sign_in, scope, "OpenID", person.name, token=person.key, detail=person.scope
    )
    answer = with_session(HTMLResponse(render.page("signed_in", Shell("sign in", ggferry.__version__))), session, scope)
    _keep(answer, request, "", 0)
    return answer


def _provider(service: Service) -> OpenId:
    if service.openid is None:
        raise HttpError(404, "not_found", "this server has no OpenID provider")
    return service.openid


def _own(request: Request, path: str) -> str:
    """Return an address of this server as the browser calls it; the name was checked before."""
    return f"{request.scope.get('scheme', 'http')}://{request.headers['host']}{below_root(path)}"


def _cookie(request: Request) -> str:
    return callers.cookie_name(request.headers, request.scope.get("scheme", "http"), openid.COOKIE)


def _keep(answer: Response, request: Request, kept: str, seconds: int) -> None:
    """Set the cookie of a sign-in that is under way; `lax`, since the provider leads back to us."""
    answer.set_cookie(
        _cookie(request),
        kept,
        seconds,
        path=ROOT.get() or "/",
        secure=request.scope.get("scheme") == "https",
        httponly=True,
        samesite="lax",
    )
