"""Routes for what watches the server: alive, ready, figures."""

from __future__ import annotations

import shutil

from fastapi import APIRouter, Response

from ggferry.formats.errors import GgferryError
from ggferry.service.server.api.common import PROBLEMS, Reader, ServiceDep
from ggferry.service.server.guard.problems import problem

router = APIRouter(tags=["operations"], responses=PROBLEMS)
LEAST_FREE = 16 << 20
"""Free bytes on the disk of the data folder below which the server is not ready: its ledger has to grow."""


@router.get("/health")
def health() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}


@router.get("/ready", response_model=dict[str, str])
def ready(service: ServiceDep) -> Response | dict[str, str]:
    """Say whether requests and jobs are taken: the ledger answers, and the server is not ending."""
    if service.draining.is_set():
        return problem(503, "draining", "the server is about to end")
    try:
        service.store.check_in_place()
        service.store.counts()
    except GgferryError as error:
        return problem(503, "ledger", error.message)
    if shutil.disk_usage(service.settings.data).free < LEAST_FREE:
        return problem(503, "disk_full", "the disk of the data folder is full", expected=f"{LEAST_FREE:,} bytes free")
    return {"status": "ready"}


@router.get("/metrics", response_class=Response)
def metrics(service: ServiceDep, caller: Reader) -> Response:
    """Give figures in Prometheus' text format."""
    return Response(service.observer.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
