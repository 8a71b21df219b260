"""What is looked up in the weights themselves: the values of a tensor, and how two models differ."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

from ggferry.formats.errors import RefusedError, UsageError
from ggferry.service.records.fields import DifferenceRecord, HistogramRecord
from ggferry.service.records.ledger import DONE
from ggferry.service.server import functions
from ggferry.service.server.guard.callers import Caller
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.quality import Quality
from ggferry.service.server.state import Service
from ggferry.service.server.store import models
from ggferry.service.storage.stores import is_remote

SLOWEST = 20 << 20
"""Bytes a second that no healthy comparison falls below."""


def weights_of(service: Service, job: str) -> tuple[str, Sequence[str], str | None]:
    """Return the file that stands for a model, the folders that confine it, and its architecture where that is asked.

    It is the output where the model is done, else the source. Raises NotFoundError, RefusedError for one in a store.
    """
    source, trees, recipe = functions.place_of(service, job)
    row = models.one(service.store, job)
    arch = recipe.get("arch")
    if row["state"] == DONE and row["output"]:
        source, trees, arch = row["output"], [service.settings.outputs], None
    if is_remote(source):
        raise RefusedError("its weights are not on this machine", path=source, hint="convert it first")
    return source, trees, arch


def histogram(service: Service, caller: Caller, job: str, tensor: str) -> HistogramRecord:
    """Return how the values of a tensor of a model are distributed: of the output where it is done, else the source."""
    functions.need(caller, "read")
    source, trees, arch = weights_of(service, job)
    command = {
        "op": "look",
        "question": "histogram",
        "source": source,
        "trees": [*trees],
        "options": {"tensor": tensor, "arch": arch},
    }
    return cast("HistogramRecord", service.inspectors.ask(command, seconds=_seconds(source)))


def difference(service: Service, caller: Caller, job: str, other: str, data: bool = True) -> DifferenceRecord:
    """Return how two models differ, in headers and, with `data`, in values. Raises as `weights_of`."""
    functions.need(caller, "read")
    if job == other:
        raise UsageError("the two models are one", found=job)
    (first, trees, _), (second, more, _) = weights_of(service, job), weights_of(service, other)
    command = {
        "op": "look",
        "question": "diff",
        "source": first,
        "trees": list(dict.fromkeys([*trees, *more])),
        "options": {"second": second, "data": data},
    }
    return cast("DifferenceRecord", service.inspectors.ask(command, seconds=_seconds(first) + _seconds(second)))


def begin_quality(service: Service, caller: Caller, job: str, text: str, context: int, chunks: int) -> Quality:
    """Begin to compare the outputs of a done job with its source on a text. Raises as `Qualities.begin`."""
    functions.need(caller, "submit", "it takes a worker's time")
    if service.draining.is_set():
        raise HttpError(503, "draining", "the server is about to end", headers={"Retry-After": "30"})
    source, trees, recipe = functions.place_of(service, job)
    return service.qualities.begin(caller, job, (source, trees, recipe), text, context, chunks)


def qualities(service: Service, job: str) -> list[Quality]:
    """Return the comparisons of a job's outputs with its source, the newest first. Raises NotFoundError."""
    models.one(service.store, job)
    return service.qualities.of(job)


def _seconds(path: str) -> float:
    """Return how long reading a model may take."""
    if os.path.isdir(path):
        size = sum(each.stat().st_size for each in os.scandir(path) if each.is_file())
    else:
        size = os.path.getsize(path) if os.path.exists(path) else 0
    return 60 + size / SLOWEST
