"""The log of what was changed: who, what, when and from where, kept in the ledger's database for its time.

An entry is made before a request is carried out and completed after it, so that nothing changes without one; an entry
without a status is of a request whose server died.
"""

from __future__ import annotations

import os
import time
from typing import cast

from typing_extensions import TypedDict  # pydantic refuses that of typing below Python 3.12

from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.server.store.database import Store
from ggferry.support.heavy import sa
from ggferry.support.printable import printable
from ggferry.support.records import dataclass

LONGEST = 400  # characters of a text
MOST = 500  # entries of a page


class AuditRecord(TypedDict):
    """An entry.

    `actor` is the name of a token or a person, `token` the id of the token whose quota is used; `address` is the
    client's; `action` the method and the route, or words; `subject` what was changed; `status` that of the answer;
    `request` the id that the answer and the log have. `at` is seconds since 1970.
    """

    id: int
    at: float
    actor: str | None
    token: str | None
    address: str | None
    action: str
    subject: str | None
    status: int | None
    request: str | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which entries are wanted, the newest first.

    Attributes:
        text: Only those in whose actor, action, subject or detail this stands.
        token: Only those of the token with this id.
        since: Only those from this time on, seconds since 1970.
        until: Only those before it.
        before: Only those with a smaller id.
        limit: How many at most.
    """

    text: str = ""
    token: str | None = None
    since: float | None = None
    until: float | None = None
    before: int | None = None
    limit: int = 100


def _cut(text: str | None) -> str | None:
    return None if text is None else printable(text, LONGEST)


def begin(store: Store, actor: str, token: str, address: str | None, action: str, request: str) -> None:
    """Note what is about to be done."""
    values: JSONObject = {"at": time.time(), "actor": _cut(actor), "token": token, "address": address}
    store.put(store.t.audit, **values, action=_cut(action), request=request)


def complete(store: Store, request: str, status: int, action: str, subject: str | None, detail: str | None) -> None:
    """Note how it ended; `action`: by the name of its route."""
    table = store.t.audit
    values = {"status": status, "action": _cut(action), "subject": _cut(subject), "detail": _cut(detail)}
    store.run(sa.update(table).where(table.c.request == request).values(**values))


def note(
    store: Store,
    actor: str,
    action: str,
    *,
    subject: str | None = None,
    detail: str | None = None,
    token: str | None = None,
    address: str | None = None,
    status: int | None = None,
    request: str | None = None,
) -> None:
    """Note what was done, by one who sent no request or is known only afterwards."""
    values: JSONObject = {"at": time.time(), "actor": _cut(actor), "action": _cut(action), "status": status}
    values |= {"subject": _cut(subject), "detail": _cut(detail), "token": token, "address": address}
    # a name of its own, so that what is asked again while the database is away is entered once
    store.put(store.t.audit, **values, request=request or f"no request {os.urandom(8).hex()}")


def find(store: Store, query: AuditQuery) -> list[AuditRecord]:
    """Return entries, the newest first."""
    table = store.t.audit
    statement = sa.select(table).order_by(table.c.id.desc()).limit(min(query.limit, MOST))
    if query.text:
        places = (table.c.actor, table.c.action, table.c.subject, table.c.detail)
        statement = statement.where(sa.or_(*(column.icontains(query.text, autoescape=True) for column in places)))
    if query.token is not None:
        statement = statement.where(table.c.token == query.token)
    if query.since is not None:
        statement = statement.where(table.c.at >= query.since)
    if query.until is not None:
        statement = statement.where(table.c.at < query.until)
    if query.before is not None:
        statement = statement.where(table.c.id < query.before)
    rows = store.all(statement)
    for row in rows:
        if (row["request"] or "").startswith("no request "):
            row["request"] = None
    return cast("list[AuditRecord]", rows)


def prune(store: Store, before: float) -> int:
    """Drop what is older, and return how many entries that were."""
    table = store.t.audit
    return store.run(sa.delete(table).where(table.c.at < before))
