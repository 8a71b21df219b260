"""What administrators do, as functions that routes and pages call: tokens, and the audit log."""

from __future__ import annotations

import math

from starlette.requests import Request

from ggferry.formats.errors import UsageError
from ggferry.service.server.guard.auditing import DETAIL, SUBJECT
from ggferry.service.server.guard.callers import Caller
from ggferry.service.server.settings import DAY
from ggferry.service.server.state import Service
from ggferry.service.server.store import audit, tokens
from ggferry.service.server.store.audit import AuditQuery, AuditRecord
from ggferry.service.server.store.tokens import MadeToken, TokenRecord
from ggferry.support.heavy import sa

LONGEST_DAYS = 36500.0


def list_tokens(service: Service) -> list[TokenRecord]:
    """Return all tokens, and the persons who signed in, without what lets them in."""
    return tokens.every(service.store)


def make_token(
    service: Service,
    caller: Caller,
    name: str,
    scope: str = tokens.READ,
    days: float | None = None,
    quota: int | None = None,
    rate: float | None = None,
) -> MadeToken:
    """Make a token. Raises UsageError.

    `days`: after which it ends; None: when it is revoked. `quota`, bytes, and `rate`, requests a second: None: as the
    server says.
    """
    for what, value, most in (("days", days, LONGEST_DAYS), ("requests a second", rate, 1e6)):
        if value is not None and not (math.isfinite(value) and 0 < value <= most):
            raise UsageError(f"a token's {what}", found=f"{value:g}", expected=f"more than 0, at most {most:g}")
    if quota is not None and not 0 <= quota < 1 << 62:
        raise UsageError("a token's quota", found=str(quota), expected="a size")
    text = tokens.add(
        service.store,
        name.strip(),
        scope,
        seconds=None if days is None else days * DAY,
        quota=quota,
        rate=rate,
        made_by=caller.name,
    )
    key = text.split("_")[1]
    row = service.store.first(sa.select(service.store.t.tokens.c.expires).where(service.store.t.tokens.c.id == key))
    return {
        "id": key,
        "token": text,
        "name": name.strip(),
        "scope": scope,
        "expires": row["expires"] if row is not None else None,  # a very short one may be gone already
    }


def revoke_token(service: Service, token: str) -> None:
    """End a token and the sessions that were begun with it. Raises NotFoundError."""
    tokens.revoke(service.store, token)
    service.doorkeeper.forget()


def audit_entries(service: Service, query: AuditQuery) -> tuple[list[AuditRecord], int | None]:
    """Return entries of the audit log, the newest first, and the id before which the next begin (None: no more)."""
    found = audit.find(service.store, query)
    return found, found[-1]["id"] if len(found) == query.limit else None


def note_token(request: Request, made: MadeToken) -> None:
    """Say in the audit log which token was made."""
    setattr(request.state, SUBJECT, f"token {made['id']}")
    setattr(request.state, DETAIL, f"{made['name']}: {made['scope']}")
