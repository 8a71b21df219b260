"""Routes for what watches the server: alive, ready, figures."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from ggferry.service.server.api.common import PROBLEMS, Reader, ServiceDep
from ggferry.service.server.guard.problems import problem

router = APIRouter(tags=["operations"], responses=PROBLEMS)


@router.get("/health")
async def health() -> dict[str, str]:
    """Say that the process answers."""  # in the event loop: no thread that others hold is waited for
    return {"status": "ok"}


@router.get("/ready", response_model=dict[str, str])
async def ready(service: ServiceDep) -> Response | dict[str, str]:
    """Say whether requests and jobs are taken: the ledger answers, the disk has room, and the server is not ending."""
    if service.draining.is_set():
        return problem(503, "draining", "the server is about to end")
    if (fault := await service.probe.fault()) is not None:
        return problem(503, *fault)
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(service: ServiceDep, caller: Reader) -> Response:
    """Give figures in Prometheus' text format."""
    return Response(service.observer.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
