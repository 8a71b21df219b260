"""The first code to see a request, and the last to see its answer: an ASGI application around the service's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ggferry.formats.errors import GgferryError
from ggferry.service.server.guard import bodies, callers, problems
from ggferry.service.server.guard.auditing import Auditor
from ggferry.service.server.guard.callers import Caller, Doorkeeper
from ggferry.service.server.guard.context import REQUEST, ROOT, below_root
from ggferry.service.server.guard.observe import Observer, Watched
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.guard.rates import Rates
from ggferry.service.server.settings import Settings
from ggferry.service.server.store.database import REPLACED

PUBLIC = ("/health", "/ready", "/login", "/sign-in", "/sign-in/callback", "/static/", "/favicon.ico")
"""Paths that need no token. What begins with a slash at its end stands for all below."""
SIGN_INS = ("/login", "/sign-in", "/sign-in/callback")
"""Those of them at which who asks too often is refused."""
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
HSTS = "max-age=31536000"
UPLOADS = "/api/v1/uploads/"
"""Below it, the body of a PUT is a piece of a file: read by the route, which bounds it."""


class Front:
    """Checks every request, finds its caller, and gives every answer its headers; `names`: those of the server."""

    def __init__(
        self,
        app: ASGIApp,
        doorkeeper: Doorkeeper,
        names: Iterable[str],
        observer: Observer,
        auditor: Auditor,
        settings: Settings,
    ) -> None:
        self.app, self.doorkeeper, self.observer, self.auditor = app, doorkeeper, observer, auditor
        self.rate, self.root = settings.rate, settings.root_path
        self.names, self.rates = {name.lower() for name in names}, Rates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        scope = self._below_root(scope)
        watched = self.observer.begin(scope)
        REQUEST.set(watched.id)
        sending = _Sending(scope, send, watched, self.auditor)
        try:
            answer = await self._admit(scope, receive, sending)
        except HttpError as error:
            answer = problems.of_http(error)
        except GgferryError as error:
            answer = problems.problem(503, error.code, "the ledger cannot be reached", {"Retry-After": "5"})
        except ClientDisconnect:
            answer = None
        except Exception as error:  # which the application's own handler has answered, if it could
            self.observer.failed(watched, error)
            answer = None if watched.status else problems.problem(500, "internal", "internal", hint="please report it")
        try:
            if answer is not None:
                await answer(scope, receive, sending)
        finally:
            self.observer.end(watched)

    def _below_root(self, scope: Scope) -> Scope:
        """Return a request as if there were no proxy that serves us below a path, whether it cuts the path or not."""
        ROOT.set(self.root)
        if self.root and (scope["path"] + "/").startswith(self.root + "/"):
            return {**scope, "path": scope["path"].removeprefix(self.root) or "/"}
        return scope

    async def _admit(self, scope: Scope, receive: Receive, send: _Sending) -> Response | None:
        """Let a request through, or return the answer that it gets instead."""
        bodies.check_headers(scope["headers"])
        headers = Headers(scope=scope)
        check_host(headers.getlist("host"), self.names)
        path, method = scope["path"], scope["method"]
        if headers.get("content-encoding", "identity") != "identity":
            raise HttpError(415, "encoded", "compressed bodies are not taken", found=headers["content-encoding"])
        if (entered := await self._enter_by_link(scope, headers)) is not None:
            return entered
        callers.check_same_site(method, headers)
        if method not in callers.SAFE and not self.doorkeeper.store.is_in_place:
            raise HttpError(503, "ledger", REPLACED, headers={"Retry-After": "5"})
        if not is_public(path):
            answer = await self._identify(scope, headers)
            if answer is not None:
                return answer
        elif path in SIGN_INS:
            self.rates.check(f"sign-in from {_address(scope)}", self.rate)
        if not (method == "PUT" and path.startswith(UPLOADS)):
            receive = await self._body(scope, headers, receive)
        send.audited = await self.auditor.begin(scope, send.watched)
        if method == "HEAD":
            await self._head(scope, receive, send)
        else:
            await self.app(scope, receive, send)
        return None

    async def _head(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the headers that GET has (RFC 9110, 9.3.2), and end before any of its body is made."""

        async def headers_only(message: MutableMapping[str, Any]) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                raise _HeadersSent

        with suppress(_HeadersSent, ClientDisconnect):
            await self.app({**scope, "method": "GET"}, receive, headers_only)

    async def _identify(self, scope: Scope, headers: Headers) -> Response | None:
        how, text = self.doorkeeper.caller(headers, scope.get("scheme", "http"))
        token = await asyncio.to_thread(self.doorkeeper.find, text) if text else None
        self.rates.check(token.owner if token else _address(scope), token.rate or self.rate if token else self.rate)
        if token is None or (how == "bearer") is not (token.kind == "token"):
            if how != "bearer" and is_page(scope["path"]) and scope["method"] in callers.SAFE:
                return RedirectResponse("/login", 303)
            detail = "the token is wrong, revoked or expired" if text else "a token is needed"
            raise HttpError(401, "unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="ggferry"'})
        caller = Caller(token, callers.csrf_of(text) if how == "cookie" else "")
        scope.setdefault("state", {})["caller"] = caller
        scope["state"]["session"] = text if how == "cookie" else None
        brought = headers.get(callers.CSRF_HEADER)
        if how == "cookie" and scope["method"] not in callers.SAFE and (brought is not None or not _has_form(scope)):
            callers.check_csrf(text, brought or "")
        return None

    async def _enter_by_link(self, scope: Scope, headers: Headers) -> Response | None:
        """Put the token of a page's address, as the link that is printed at the start has it, in a cookie."""
        if scope["method"] != "GET" or not is_page(scope["path"]) or b"token=" not in scope["query_string"]:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        text = next((value for name, value in query if name == "token"), "")
        self.rates.check(f"sign-in from {_address(scope)}", self.rate)
        if not callers.is_same_site(headers):
            return RedirectResponse("/login?elsewhere=1", 303)
        session = await asyncio.to_thread(self.doorkeeper.begin_session, text)
        name = await asyncio.to_thread(self._name_of, session)
        await asyncio.to_thread(self.auditor.sign_in, scope, "link", name)
        if session is None:
            return RedirectResponse("/login?wrong=1", 303)
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        # one slash: what begins with two, or with a backslash, is another server's address
        page = "/" + quote(scope["path"].lstrip("/\\"))
        return with_session(RedirectResponse(page + (f"?{rest}" if rest else ""), 303), session, scope)

    def _name_of(self, session: str | None) -> str | None:
        token = self.doorkeeper.find(session) if session is not None else None
        return None if token is None else token.name

    async def _body(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """Read a body that is no upload, check it, and return what gives it to the route."""
        if "content-length" not in headers and "transfer-encoding" not in headers:
            return receive
        data = await bodies.read_body(receive, headers.get("content-length"))
        if (
            scope.setdefault("state", {}).get("session") is not None
            and _has_form(scope)
            and callers.CSRF_HEADER not in headers
        ):
            fields = dict(parse_qsl(data.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=1000))
            callers.check_csrf(scope["state"]["session"], fields.get(callers.CSRF_FIELD, ""))
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if data and (kind.endswith("json") or scope["path"].startswith("/api/")):
            bodies.check_json(data)
        given = False

        async def replay() -> MutableMapping[str, Any]:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": data, "more_body": False}

        return replay


class _HeadersSent(OSError):
    """What HEAD asks for is sent. To an application it is a client that left."""


class _Sending:
    """Sends an answer with the headers that all have, and notes its status."""

    audited = False
    """Whether the request is in the audit log, and how it ended is to be entered."""

    def __init__(self, scope: Scope, send: Send, watched: Watched, auditor: Auditor) -> None:
        self._scope, self._send, self.watched, self._auditor = scope, send, watched, auditor

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
            if self._scope.get("scheme") == "https":
                headers.setdefault("Strict-Transport-Security", "max-age=31536000")
            if not self._scope["path"].startswith("/static/"):
                headers.setdefault("Cache-Control", "no-store")
            headers["X-Request-Id"] = self.watched.id
            if self._scope.get("scheme") == "https":
                headers.setdefault("Strict-Transport-Security", HSTS)
            if self.audited:
                self.audited = False
                await self._auditor.complete(self._scope, self.watched, message["status"], headers.get("location"))
            if "location" in headers:
                headers["location"] = below_root(headers["location"])
            self.watched.status = message["status"]
        await self._send(message)


def is_page(path: str) -> bool:
    """Return whether a path is for people."""
    return not path.startswith(("/api/", "/metrics", "/health", "/ready", "/static/"))


def is_public(path: str) -> bool:
    """Return whether a path needs no token."""
    return any(path.startswith(each) if each.endswith("/") else path == each for each in PUBLIC)


def check_host(given: list[str], names: set[str]) -> None:
    """Raise HttpError unless the one Host header is a name of ours: another may have been rebound to our address."""
    try:
        name = urlsplit(f"//{given[0]}").hostname if len(given) == 1 and "@" not in given[0] else None
        _ = urlsplit(f"//{given[0]}").port if given else None
    except ValueError:
        name = None
    if name is None or name.rstrip(".").lower() not in names:
        found = given[0][:100] if given else None
        raise HttpError(
            421, "foreign_host", "this server does not go by that name", found=found, hint="--allow-host NAME"
        )


def with_session(response: Response, session: str, scope: Scope) -> Response:
    """Return an answer that also begins a browser's session."""
    secure = scope.get("scheme") == "https"
    response.set_cookie(
        callers.cookie_name(Headers(scope=scope), scope.get("scheme", "http")),
        session,
        int(callers.SESSION_SECONDS),
        httponly=True,
        samesite="strict",
        secure=secure,
        path=ROOT.get() or "/",
    )
    return response


def _has_form(scope: Scope) -> bool:
    """Return whether a request brings the fields of a form, in which its page's secret is looked for."""
    headers = Headers(scope=scope)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    body = "content-length" in headers or "transfer-encoding" in headers
    return scope["method"] == "POST" and body and kind == "application/x-www-form-urlencoded"


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return f"address {client[0]}" if client else "address"
