"""The page that compares the outputs of a model with its source on a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response

from ggferry.converters.conversion.summary import OutputSummary
from ggferry.formats.errors import GgferryError
from ggferry.service.server import comparisons, quality
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.pages import render
from ggferry.service.server.pages.archive_view import row_of
from ggferry.service.server.pages.model_view import problem_of
from ggferry.service.server.pages.routes.changes import fields_of
from ggferry.service.server.pages.shown import FOUND, known, problem_answer, service_of, show
from ggferry.service.server.pages.views import ModelRow, Problem
from ggferry.service.server.quality import Quality
from ggferry.service.server.store import models

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison as the page shows it, with the points of its plot."""

    found: Quality
    problem: Problem | None = None

    @property
    def points(self) -> list[OutputSummary]:
        """Return what the plot of outputs by size takes."""
        return [
            OutputSummary(each.outtype, each.name, each.bytes, each.bits_per_weight, None, None, each.kl_divergence)
            for each in self.found.outputs
        ]


@dataclass(frozen=True, slots=True)
class QualityPage:
    """The comparisons of a model's outputs with its source, and the form for another one."""

    row: ModelRow
    compared: tuple[Compared, ...] = ()
    text: str = ""
    context: int = 512
    chunks: int = 8
    problem: Problem | None = None
    contexts: tuple[int, ...] = quality.CONTEXTS
    most_chunks: int = quality.MOST_CHUNKS

    @property
    def is_running(self) -> bool:
        """Return whether one is under way."""
        return any(each.found.state == quality.RUNNING for each in self.compared)


@router.get("/models/{job}/quality")
def show_quality(request: Request, job: str) -> Response:
    """Show how the outputs of a model predict texts."""
    return show(request, "quality", "archive", page=_page(request, job))


def _page(request: Request, job: str) -> QualityPage:
    service = service_of(request)
    row = row_of(models.one(service.store, job), service.settings.upload_place)
    found = comparisons.qualities(service, job)
    return QualityPage(row, tuple(Compared(each, problem_of(each.error) if each.error else None) for each in found))


@router.post("/models/{job}/quality")
async def compare(request: Request, job: str) -> Response:
    """Begin a comparison, and lead to where it is shown."""
    fields = await fields_of(request)
    return await run_in_threadpool(_compared, request, job, fields)


def _compared(request: Request, job: str, fields: Sequence[tuple[str, str]]) -> Response:
    given = dict(reversed(fields))
    text = given.get("text", "").replace("\r\n", "\n")
    context, chunks = (int(given[name]) if given.get(name, "").isdecimal() else 0 for name in ("context", "chunks"))
    try:
        comparisons.begin_quality(
            service_of(request), known(request), job, text, min(context, 1 << 20), min(chunks, 1 << 20)
        )
    except (GgferryError, HttpError) as error:
        status, problem = problem_answer(error)
        page = _page(request, job)
        again = QualityPage(page.row, page.compared, text[: quality.LONGEST], context, chunks, problem)
        return show(request, "quality", "archive", status, page=again)
    return RedirectResponse(render.url("models", job, "quality"), FOUND)
