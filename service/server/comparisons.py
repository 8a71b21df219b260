"""What is looked up in the weights themselves: the values of a tensor, and how two models differ."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

from ggferry.formats.errors import RefusedError, UsageError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.records.fields import DifferenceRecord, HistogramRecord
from ggferry.service.records.ledger import DONE
from ggferry.service.server import functions
from ggferry.service.server.guard.callers import Caller
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.quality import Quality
from ggferry.service.server.state import Service
from ggferry.service.server.store import models
from ggferry.service.server.work.sources import is_within
from ggferry.service.server.work.staging import staged_all
from ggferry.service.storage.ranged_file import DATA_BLOCK
from ggferry.service.storage.stores import is_remote, stat

SLOWEST = 20 << 20
"""Bytes a second that no healthy comparison falls below."""


def weights_of(service: Service, job: str) -> tuple[str, Sequence[str], str | None]:
    """Return the file that stands for a model, the folders that confine it, and its architecture where that is asked.

    It is the output where the model is done, perhaps a URL, else the source. Raises NotFoundError, and RefusedError for
    a source in a store.
    """
    source, trees, recipe = functions.place_of(service, job)
    row = models.one(service.store, job)
    arch = recipe.get("arch")
    if row["state"] == DONE and row["output"]:
        source, trees, arch = row["output"], [service.settings.output_folder], None
    if is_remote(source) and not is_within(source, service.settings.outputs):
        raise RefusedError("its weights are not on this machine", path=source, hint="convert it first")
    return source, trees, arch


def histogram(service: Service, caller: Caller, job: str, tensor: str) -> HistogramRecord:
    """Return how the values of a tensor of a model are distributed: of the output where it is done, else the source."""
    functions.need(caller, "read")
    source, trees, arch = weights_of(service, job)
    options = {"tensor": tensor, "arch": arch}
    with staged_all((source,), service.planner.access(), DATA_BLOCK) as ((path,), mount, _):
        command = {"op": "look", "question": "histogram", "source": path, "trees": [*trees], "options": options}
        found = service.inspectors.ask({**command, "mount": mount}, seconds=_seconds(source))
    return cast("HistogramRecord", found)


def difference(service: Service, caller: Caller, job: str, other: str, data: bool = True) -> DifferenceRecord:
    """Return how two models differ, in headers and, with `data`, in values. Raises as `weights_of`."""
    functions.need(caller, "read")
    if job == other:
        raise UsageError("the two models are one", found=job)
    (first, trees, _), (second, more, _) = weights_of(service, job), weights_of(service, other)
    command: JSONObject = {"op": "look", "question": "diff", "trees": list(dict.fromkeys([*trees, *more]))}
    with staged_all((first, second), service.planner.access(), DATA_BLOCK) as ((path, against), mount, named):
        command |= {"source": path, "mount": mount, "options": {"second": against, "data": data}}
        found = named(service.inspectors.ask(command, seconds=_seconds(first) + _seconds(second)))
    return cast("DifferenceRecord", found)


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
    if is_remote(path):
        size = stat(path).bytes
    elif os.path.isdir(path):
        size = sum(each.stat().st_size for each in os.scandir(path) if each.is_file())
    else:
        size = os.path.getsize(path) if os.path.exists(path) else 0
    return 60 + size / SLOWEST
