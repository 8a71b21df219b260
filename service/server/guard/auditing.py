"""Enters requests that change something in the audit log, before they are carried out and after."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from starlette.types import Scope

from ggferry.formats.errors import GgferryError
from ggferry.service.server.guard.callers import SAFE, Caller
from ggferry.service.server.guard.observe import Observer, Watched, route_of
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.guard.rates import Rates
from ggferry.service.server.store import audit
from ggferry.service.server.store.database import Store

PIECES = "/api/v1/uploads/"
"""A PUT below it is a piece of a file, of which there are very many; that the upload was announced is entered."""
REFUSALS = 0.1  # a second of one address, on average, that are entered
SUBJECT, DETAIL = "audit_subject", "audit_detail"
"""Names in `request.state` by which a route says what it changed, where its path and its answer's Location do not."""


class Auditor:
    """Writes the audit log of requests."""

    def __init__(self, store: Store, observer: Observer) -> None:
        self._store, self._observer, self._refusals = store, observer, Rates()

    async def begin(self, scope: Scope, watched: Watched) -> bool:
        """Enter a request that may change something; return whether it was. Raises GgferryError."""
        method, path = scope["method"], scope["path"]
        caller: Caller | None = scope.get("state", {}).get("caller")
        if caller is None or method in SAFE or (method == "PUT" and path.startswith(PIECES)):
            return False
        action = f"{method} {path}"
        await asyncio.to_thread(
            audit.begin, self._store, caller.name, caller.token.owner, address_of(scope), action, watched.id
        )
        return True

    async def complete(self, scope: Scope, watched: Watched, status: int, location: str | None) -> None:
        """Enter how it ended, before the answer is sent. What was done is not undone where that fails: it is logged."""
        route = route_of(scope) or scope["path"]
        state = scope.get("state", {})
        subject = state.get(SUBJECT) or _subject(scope.get("path_params") or {}, location)
        words = f"{scope['method']} {route}"
        try:
            await asyncio.to_thread(audit.complete, self._store, watched.id, status, words, subject, state.get(DETAIL))
        except GgferryError as error:
            self._observer.log.write(
                "audit", "error", action=words, subject=subject, status=status, message=error.message
            )

    def sign_in(self, scope: Scope, how: str, actor: str | None, *, request: str | None = None, **more: Any) -> None:
        """Enter a sign-in, or one that was refused (no actor): of these not every one of an address that tries many."""
        address = address_of(scope)
        if actor is None:
            try:
                self._refusals.check(f"refused {address}", REFUSALS)
            except HttpError:
                return
        done = "sign-in" if actor is not None else "sign-in refused"
        with suppress(GgferryError):
            audit.note(self._store, actor or "unknown", f"{done}: {how}", address=address, request=request, **more)


def address_of(scope: Scope) -> str | None:
    """Return the client's address: behind a trusted proxy, what that says."""
    client = scope.get("client")
    return str(client[0]) if client else None


def _subject(params: dict[str, Any], location: str | None) -> str | None:
    """Return what a request was about, by its path, or by where its answer says that the new thing is."""
    if params:
        return " ".join(f"{name} {value}" for name, value in params.items())
    parts = [part for part in (location or "").partition("?")[0].split("/") if part]
    return f"{parts[-2].removesuffix('s')} {parts[-1]}" if len(parts) > 1 else None
