"""Requests that are sent twice: with an Idempotency-Key, the second gets the answer of the first."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from ggferry.service.server.guard.callers import Caller
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.state import Service
from ggferry.support.heavy import sa

if TYPE_CHECKING:
    from pydantic import BaseModel

KEPT = 86400.0  # seconds
GOING = 120.0  # seconds after which a request without an answer is taken to have died with its server


def once(
    service: Service, caller: Caller, request: Request, key: str | None, body: BaseModel, work: Callable[[], Response]
) -> Response:
    """Return what `work` answers, or what it answered when the same caller sent the same key.

    Errors are not kept: the request may be sent again. Raises HttpError for a key of another request, or of one that
    has no answer yet.
    """
    if key is None:
        return work()
    table, now = service.store.t.answers, time.time()
    text = f"{request.method} {request.url.path} {body.model_dump_json()}"
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    condition = (table.c.token == caller.token.owner) & (table.c.key == key)
    old = (table.c.created < now - KEPT) | (table.c.status.is_(None) & (table.c.created < now - GOING))
    service.store.run(sa.delete(table).where(condition & old))
    insert = service.store._insert(table).values(token=caller.token.owner, key=key, request=mark, created=now)
    if not service.store.run(insert.on_conflict_do_nothing()):
        found = service.store.first(sa.select(table).where(condition))
        return _kept(found, mark)
    try:
        answer = work()
    except BaseException:
        service.store.run(sa.delete(table).where(condition))
        raise
    headers = {name: value for name, value in answer.headers.items() if name in ("location", "content-type")}
    values = {"status": answer.status_code, "headers": headers, "body": bytes(answer.body).decode()}
    service.store.run(sa.update(table).where(condition).values(**values))
    return answer


def _kept(found: dict[str, Any] | None, mark: str) -> Response:
    if found is not None and found["request"] != mark:
        raise HttpError(422, "key_reused", "this Idempotency-Key was sent with another request")
    if found is None or found["status"] is None:
        raise HttpError(
            409, "in_progress", "the first request with this key has no answer yet", headers={"Retry-After": "1"}
        )
    return Response(found["body"], found["status"], {**found["headers"], "Idempotency-Replayed": "true"})
