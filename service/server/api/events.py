"""Routes that tell what happens as it happens: Server-Sent Events."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from ggferry.service.server.api.common import PROBLEMS, JobId, Reader, ServiceDep
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.store import models

router = APIRouter(tags=["events"], responses=PROBLEMS)
Last = Annotated[str | None, Header(alias="Last-Event-ID", max_length=40, description="What was seen last")]
Since = Annotated[int | None, Query(ge=0, lt=1 << 62, description="As Last-Event-ID, where no header can be sent")]
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "description": "`job`: a change of state, with an id; `progress`: bytes",
    }
}


@router.get("/events", response_class=StreamingResponse, responses=STREAM)
async def events(service: ServiceDep, caller: Reader, last: Last = None, since: Since = None) -> StreamingResponse:
    """Tell what happens to all jobs. With Last-Event-ID nothing is missed, also after a restart of the server."""
    return _stream(service, _seen(last, since), None)


@router.get("/jobs/{job}/events", response_class=StreamingResponse, responses=STREAM)
def events_of(
    service: ServiceDep, caller: Reader, job: JobId, last: Last = None, since: Since = None
) -> StreamingResponse:
    """Tell what happens to a job, from its beginning unless Last-Event-ID says otherwise."""
    models.one(service.store, job)
    seen = _seen(last, since)
    return _stream(service, 0 if seen is None else seen, job)


def _seen(last: str | None, since: int | None) -> int | None:
    if last is None or last == "":
        return since
    if not (last.isascii() and last.isdecimal()) or int(last) >= 1 << 62:
        raise HttpError(422, "last_event_id", "not an id of this stream", found=last)
    return int(last)


def _stream(service: ServiceDep, seen: int | None, job: str | None) -> StreamingResponse:
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(service.hub.listen(seen, job), media_type="text/event-stream", headers=headers)
