"""The application: routes of the API and the pages, with everything that stands before them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Scope
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

import ggferry
from ggferry.formats.errors import GgferryError
from ggferry.service.server.api import administration, archive, downloads, events, health, jobs, sign_in, uploads
from ggferry.service.server.api.common import VERSION, Problem
from ggferry.service.server.guard import problems
from ggferry.service.server.guard.middleware import Front, is_page
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.pages.routes import administration as admin_pages
from ggferry.service.server.pages.routes import openid
from ggferry.service.server.pages.routes.main import add_pages
from ggferry.service.server.pages.shown import error_page
from ggferry.service.server.state import Service
from ggferry.support.printable import printable

DESCRIPTION = "Converts language-model weights to GGUF v3, and proves the result. docs/service.md says how to use it."
SHOWN = 20  # faults of a request that are named


def application(service: Service) -> ASGIApp:
    """Return the ASGI application of a service."""
    app = FastAPI(
        title="ggferry",
        version=ggferry.__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        separate_input_output_schemas=False,
        redirect_slashes=False,
        generate_unique_id_function=_operation,
    )
    app.state.service = service
    for router in (archive.router, jobs.router, uploads.router, events.router, downloads.router):
        app.include_router(router, prefix=VERSION)
    app.include_router(administration.router, prefix=VERSION)
    app.include_router(health.router)
    app.include_router(sign_in.router)
    add_pages(app)
    app.include_router(admin_pages.router)
    app.include_router(openid.router)
    _answer_errors(app, service)
    _describe(app)
    settings = service.settings
    front = Front(app, service.doorkeeper, settings.names, service.observer, service.auditor, settings)
    if not settings.trusted_proxies:
        return front
    return ProxyHeadersMiddleware(front, [*settings.trusted_proxies])  # type: ignore[arg-type,return-value]


def _operation(route: APIRoute) -> str:
    """Return the id of an operation, which generated clients call a method by: 'jobs_cancel'."""
    return f"{route.tags[0]}_{route.name}" if route.tags else route.name


def _answer_errors(app: FastAPI, service: Service) -> None:
    """Answer errors with a page where a page was asked for, else with a problem document."""

    def answer(request: Request, error: GgferryError | HttpError) -> Response:
        if is_page(request.url.path):
            return error_page(request, error)
        return problems.of_error(error) if isinstance(error, GgferryError) else problems.of_http(error)

    @app.exception_handler(GgferryError)
    def ours(request: Request, error: GgferryError) -> Response:
        return answer(request, error)

    @app.exception_handler(HttpError)
    def http(request: Request, error: HttpError) -> Response:
        return answer(request, error)

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        found = [_fault(each) for each in error.errors()[:SHOWN]]
        return answer(request, HttpError(422, "invalid_request", "the request is not as the schema says", errors=found))

    @app.exception_handler(HTTPException)
    def other(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_methods(app, request.scope))
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=headers)
        return answer(request, HttpError(error.status_code, code, str(error.detail), headers=headers))

    @app.exception_handler(OSError)
    def disk(request: Request, error: OSError) -> Response:
        return answer(request, problems.of_disk(error))

    @app.exception_handler(Exception)
    def internal(request: Request, error: Exception) -> Response:
        return answer(request, HttpError(500, "internal", f"internal: {type(error).__name__}", hint="please report it"))


def _methods(app: FastAPI, scope: Scope) -> list[str]:
    """Return the methods of all routes of a request's path; a router names those of one of them."""

    def is_taken(method: str) -> bool:
        return any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.routes)

    found = {method for method in ("DELETE", "GET", "PATCH", "POST", "PUT") if is_taken(method)}
    return sorted(found | ({"HEAD"} if "GET" in found else set()) | {"OPTIONS"})


def _fault(each: Any) -> dict[str, str]:
    place = "/".join(str(part) for part in each.get("loc", ()))
    return {"place": printable(place, 200), "message": printable(str(each.get("msg", "")), 200)}


def _describe(app: FastAPI) -> None:
    """Add to the schema what holds for all routes: problems, tokens."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = made()
            parts = schema.setdefault("components", {})
            parts.setdefault("schemas", {})["Problem"] = Problem.model_json_schema()
            parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}]
            if root := app.state.service.settings.root_path:
                schema["servers"] = [{"url": root}]
            for path in ("/health", "/ready"):
                schema["paths"][path]["get"]["security"] = []
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
