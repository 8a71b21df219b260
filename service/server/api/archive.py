"""Routes that look: models of the archive, what a source holds, folders of the roots, the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from ggferry.service.library.answers import ConversionPlan, Inspection
from ggferry.service.operations.inspect import InspectRequest
from ggferry.service.operations.tokenize import TokenizeRequest
from ggferry.service.publishing.search import HubFile, HubModel
from ggferry.service.records.fields import DifferenceRecord, FolderItem, HistogramRecord, ReportRecord, Totals, Usage
from ggferry.service.server import changes, comparisons, functions, quality
from ggferry.service.server.api.common import PROBLEMS, JobId, Reader, ServiceDep, Submitter, Text, answers
from ggferry.service.server.api.request_models import RequestBody, takes
from ggferry.service.server.store import models

router = APIRouter(tags=["archive"], responses=PROBLEMS)
Names = Annotated[list[Annotated[str, Field(max_length=64)]], Query(max_length=32)]
Sort = Literal["source", "name", "container", "architecture", "bytes_in", "bytes_out", "state", "updated"]
FolderPath = Annotated[str, Query(max_length=4096)]


@takes(InspectRequest, "arch")
class Inspecting(RequestBody):
    """What to look at."""

    source: Text = Field(description="A path below a root, or upload:ID")


@takes(TokenizeRequest, "text", "special")
class Tokenizing(RequestBody):
    """A text to encode."""


@router.get("/models", response_model=models.ModelList)
def list_models(
    service: ServiceDep,
    caller: Reader,
    q: Annotated[str, Query(max_length=400, description="Words that the source's path holds")] = "",
    state: Names = [],  # noqa: B006
    container: Names = [],  # noqa: B006
    architecture: Names = [],  # noqa: B006
    plan: Annotated[str | None, Query(pattern="^[0-9a-f]{16}$")] = None,
    folder: Annotated[str | None, Query(max_length=4096)] = None,
    sort: Sort = "source",
    descending: bool = False,
    cursor: Annotated[str | None, Query(max_length=10_000)] = None,
    limit: Annotated[int, Query(ge=1, le=models.MOST)] = 100,
) -> Response:
    """List the archive: models that were planned or submitted, a page at a time."""
    query = models.Query(
        q, tuple(state), tuple(container), tuple(architecture), plan, folder, sort, descending, cursor, limit
    )
    found = functions.list_models(service, query)
    return JSONResponse({"items": found.items, "next": found.next, "total": found.total})


@router.get("/models/facets")
def facets(service: ServiceDep, caller: Reader) -> dict[str, dict[str, int]]:
    """Count models by state, container and architecture."""
    return functions.facets(service)


@router.get("/folders")
def folders(service: ServiceDep, caller: Reader, below: FolderPath = "") -> list[models.Folder]:
    """List one level of the archive's tree: folders with their models and bytes."""
    return functions.folders(service, below)


@router.get("/totals")
def totals(service: ServiceDep, caller: Reader) -> Totals:
    """Give the archive in numbers."""
    return functions.totals(service)


@router.get("/usage")
def usage(service: ServiceDep, caller: Reader) -> Usage:
    """Give the bytes that the caller has stored and may store, and those of the server's disk."""
    return changes.usage(service, caller)


@router.get("/roots")
def roots(service: ServiceDep, caller: Reader) -> list[str]:
    """List what this server may read."""
    return functions.roots(service)


@router.get("/browse")
def browse(
    service: ServiceDep, caller: Reader, path: Annotated[str, Query(min_length=1, max_length=4096)]
) -> list[FolderItem]:
    """List a folder below a root."""
    return functions.browse(service, path)


@router.get("/hub", response_model=list[HubModel])
async def search_hub(
    service: ServiceDep, caller: Reader, q: Annotated[str, Query(min_length=2, max_length=100)]
) -> Response:
    """Find models of the Hugging Face Hub by name, where a root of the server is there. It needs the scope `submit`."""
    return await _looked(service, caller, lambda: functions.search_hub(service, caller, q))


@router.get("/hub/files", response_model=list[HubFile])
async def hub_files(
    service: ServiceDep, caller: Reader, repo: Annotated[str, Query(max_length=200, description="OWNER/NAME")]
) -> Response:
    """List the files of weights in a repository of the Hugging Face Hub below a root. It needs the scope `submit`."""
    return await _looked(service, caller, lambda: functions.hub_files(service, caller, repo))


@router.post("/inspect", response_model=None, responses=answers(Inspection))
async def inspect(service: ServiceDep, caller: Reader, body: Inspecting) -> Response:
    """Show what a file holds, without reading its tensor data. A URL needs the scope `submit`."""
    request = body.as_request(InspectRequest, path=body.source)
    return await _looked(service, caller, lambda: functions.inspect(service, caller, request))


@router.get("/models/{job}/inspection", response_model=None, responses=answers(Inspection))
async def inspection(service: ServiceDep, caller: Reader, job: JobId) -> Response:
    """Show what a model of the archive holds."""
    return await _looked(service, caller, lambda: functions.inspection(service, caller, job))


@router.get("/models/{job}/conversion", response_model=None, responses=answers(ConversionPlan))
async def conversion(service: ServiceDep, caller: Reader, job: JobId) -> Response:
    """Show what a conversion would do to every tensor and key of a model."""
    return await _looked(service, caller, lambda: functions.conversion_plan(service, caller, job))


@router.post("/models/{job}/tokens", response_model=list[functions.Token])
async def tokens(service: ServiceDep, caller: Reader, job: JobId, body: Tokenizing) -> Response:
    """Encode a text by a model's own vocabulary."""
    request = body.as_request(TokenizeRequest, path="")
    return await _looked(
        service, caller, lambda: [asdict(each) for each in functions.tokenize(service, caller, job, request)]
    )


@router.get("/models/{job}/histogram", response_model=None, responses=answers(HistogramRecord))
async def histogram(
    service: ServiceDep, caller: Reader, job: JobId, tensor: Annotated[str, Query(min_length=1, max_length=1000)]
) -> Response:
    """Count the values of a tensor: of the output where the model is done, else of its source."""
    return await _looked(service, caller, lambda: comparisons.histogram(service, caller, job, tensor))


@router.get("/models/{job}/difference", response_model=None, responses=answers(DifferenceRecord))
async def difference(
    service: ServiceDep,
    caller: Reader,
    job: JobId,
    other: Annotated[str, Query(pattern="^[0-9a-f]{32}$", description="Id of the other model")],
    data: bool = True,
) -> Response:
    """Compare two models, as `ggferry diff`: keys, tensors and, with `data`, how far values lie apart."""
    return await _looked(service, caller, lambda: comparisons.difference(service, caller, job, other, data))


class Comparing(BaseModel):
    """A text on which outputs are compared with their source."""

    model_config = ConfigDict(extra="forbid")
    text: Annotated[str, Field(min_length=1, max_length=quality.LONGEST)]
    context: Annotated[int, Field(ge=1, le=4096, description="Tokens of a chunk: 64, 128, … 2048")] = 512
    chunks: Annotated[int, Field(ge=1, le=quality.MOST_CHUNKS, description="The most chunks")] = 8


@router.post("/models/{job}/quality", status_code=202)
def begin_quality(service: ServiceDep, caller: Submitter, job: JobId, body: Comparing) -> quality.Quality:
    """Compare the outputs of a done job with its source on a text, in the background, as `ggferry compare` does."""
    return comparisons.begin_quality(service, caller, job, body.text, body.context, body.chunks)


@router.get("/models/{job}/quality")
def qualities(service: ServiceDep, caller: Reader, job: JobId) -> list[quality.Quality]:
    """Show the comparisons of a job's outputs with its source: perplexity, KL divergence and agreement of each."""
    return comparisons.qualities(service, job)


async def _looked(service: ServiceDep, caller: Reader, work: Callable[[], Any]) -> Response:
    """Answer with what a worker says; it is written as JSON in the thread that waits for it, since it may be long."""
    return await service.lookups.run(caller.token, lambda: JSONResponse(jsonable_encoder(work())))


@router.get("/report", response_model=None, responses=answers(ReportRecord))
def report(
    service: ServiceDep, caller: Reader, plan: Annotated[str | None, Query(pattern="^[0-9a-f]{16}$")] = None
) -> ReportRecord:
    """Give the report of a plan's jobs, or of all, as `ggferry ledger export` writes it."""
    return functions.report(service, plan)
