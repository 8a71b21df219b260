"""The archive as views: rows of the index, filters, the tree, what is going on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ggferry.formats.reader import label_of
from ggferry.service.records.ledger import DONE, FAILED, HELD, QUARANTINED, SKIPPED
from ggferry.service.server import functions
from ggferry.service.server.guard.callers import Caller
from ggferry.service.server.pages.plan_pages import Activity, QueueRow
from ggferry.service.server.pages.views import ACTIVE, PER_PAGE, SORTS, Archive, ArchiveAddress, ModelRow, Progress
from ggferry.service.server.state import Service
from ggferry.service.server.store import models, queue

COLUMNS = {
    "name": "name",
    "state": "state",
    "container": "container",
    "architecture": "architecture",
    "before": "bytes_in",
    "after": "bytes_out",
    "changed": "updated",
}
"""Column of the page → column of the index."""
LONGEST = 400  # characters of a filter
RECENT = 10
AT_WORK = 50


def query_of(given: Mapping[str, str], states: list[str]) -> ArchiveAddress:
    """Return what the address of a page asks for; what is not understood counts as absent."""
    sort = given.get("sort", "").removeprefix("-")
    number = given.get("page", "1")
    return ArchiveAddress(
        given.get("q", "")[:LONGEST],
        tuple(dict.fromkeys(states))[:20],
        given.get("container", "")[:LONGEST],
        given.get("architecture", "")[:LONGEST],
        given.get("era", "")[:LONGEST],
        sort if sort in SORTS else "name",
        given.get("sort", "").startswith("-"),
        max(1, int(number)) if re.fullmatch(r"\d{1,7}", number, re.ASCII) else 1,
        given.get("view") == "tree",
        given.get("under", "")[:4096],
    )


def archive(service: Service, query: ArchiveAddress) -> Archive:
    """Return a page of the archive."""
    found = functions.list_models(service, _index_query(query))
    facets, totals = functions.facets(service), functions.totals(service)
    folders = functions.folders(service, query.under) if query.tree and not query.narrowed else []
    return Archive(
        query=query,
        rows=_rows(service, found.items),
        total=found.total,
        models=sum(facets["state"].values()),
        counts=facets["state"],
        containers=tuple(sorted(filter(None, facets["container"]))),
        architectures=tuple(sorted(filter(None, facets["architecture"]))),
        eras=tuple(filter(None, facets["era"])),
        bytes_before=totals["bytes_before"],
        bytes_after=totals["bytes_after"],
        folders=tuple(folders),
        roots=tuple(functions.roots(service)),
    )


def _index_query(query: ArchiveAddress) -> models.Query:
    """Return the query of the index. In the tree, only models that stand in the open folder itself."""
    here = query.tree and not query.narrowed
    return models.Query(
        query.text,
        query.states,
        _one(query.container),
        _one(query.architecture),
        eras=_one(query.era),
        folder=query.under or None if query.tree else None,
        flat=here,
        sort=COLUMNS[query.sort],
        descending=query.descending,
        limit=PER_PAGE,
        offset=(query.page - 1) * PER_PAGE,
    )


def _one(value: str) -> tuple[str, ...]:
    return (value,) if value else ()


def _rows(service: Service, items: Iterable[Mapping[str, Any]]) -> tuple[ModelRow, ...]:
    return tuple(row_of(item, service.settings.upload_place) for item in items)


def row_of(found: Mapping[str, Any], uploads: str = "") -> ModelRow:
    """Return a model of the index as the archive shows it; `uploads` is the folder of what people sent."""
    error = found.get("error") or {}
    held = found["state"] in ACTIVE
    return ModelRow(
        id=found["id"],
        source=found["source"],
        state=found["state"],
        container=container_of(found),
        architecture=found.get("architecture") or "",
        era=found.get("era") or "",
        types=found.get("types") or "",
        bytes_in=found.get("bytes_in") or 0,
        bytes_out=found.get("bytes_out") or None,
        reason="" if found["state"] == DONE or held else str(error.get("message") or found.get("reason") or ""),
        changed=found.get("updated"),
        progress=progress_of(found.get("progress")) if found["state"] in HELD else None,
        place=place_of(os.path.dirname(found["source"]), uploads),
        asked_by=found.get("asked_by") or "",
        asked=found.get("asked"),
        started=found.get("started"),
        finished=found.get("finished"),
    )


def place_of(folder: str, uploads: str) -> str:
    """Return 'upload 1f3a9c02' for a folder of an upload, with what is below; "" for any other."""
    if not uploads or not folder.startswith(uploads + "/"):
        return ""
    key, _, below = folder.removeprefix(uploads + "/").partition("/")
    return f"upload {key[:8]}" + (f"/{below}" if below else "")


def container_of(found: Mapping[str, Any]) -> str:
    """Return 'GGJT v1'."""
    if not found.get("container"):
        return ""
    version = "" if found.get("version") is None else f" v{found['version']}"
    return label_of(str(found["container"])) + version


def progress_of(found: Mapping[str, Any] | None) -> Progress:
    """Return a progress of the service as the page shows it."""
    values = found or {}
    return Progress(
        str(values.get("phase") or ""),
        int(values.get("done") or 0),
        int(values.get("total") or 0),
        float(values.get("rate") or 0.0),
        values.get("eta"),
    )


def activity(service: Service, caller: Caller) -> Activity:
    """Return what is going on, as somebody may see and change it."""
    whole = functions.progress(service)
    working = functions.list_models(service, models.Query(states=HELD, sort="source", limit=AT_WORK))
    ended = (DONE, FAILED, QUARANTINED, SKIPPED, "cancelled")
    recent = functions.list_models(service, models.Query(states=ended, sort="updated", descending=True, limit=RECENT))
    active = _rows(service, working.items)
    waiting = int(whole["total"]) - sum(row.progress.total for row in active if row.progress)
    return Activity(
        progress_of(whole),
        active,
        int(whole["queued"]),
        max(0, waiting),
        _rows(service, recent.items),
        _queue(service, caller),
    )


def _queue(service: Service, caller: Caller) -> tuple[QueueRow, ...]:
    waiting = queue.waiting(service.store, 0, AT_WORK)
    rows = {row["id"]: row for row in models.some(service.store, [each.id for each in waiting])}
    owner = caller.token.owner if caller.may("submit") else None
    return tuple(
        QueueRow(
            each.position,
            row_of(rows[each.id], service.settings.upload_place),
            caller.may("admin") or (owner is not None and each.owner in (None, owner)),
        )
        for each in waiting
        if each.id in rows
    )
