"""The archive's index: a row for each model that a plan named or the ledger knows, found, sorted and paged in SQL."""

from __future__ import annotations

import json
import os
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ggferry.formats.errors import NotFoundError, UsageError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.records.fields import IndexRow, ListedModel
from ggferry.service.records.plan_file import OTHER, Entry, Head
from ggferry.service.server.store.database import Store
from ggferry.service.server.store.removal import shown_state_of
from ggferry.support.heavy import sa

PLANNED = "planned"
"""State of a model that a plan would convert and nobody submitted; others not submitted show their verdict."""
SORTS = ("source", "name", "container", "architecture", "bytes_in", "bytes_out", "state", "updated")
MOST = 500
FACETS = ("state", "container", "architecture", "era")


@dataclass(frozen=True, slots=True)
class Query:
    """Which models, and in which order.

    Attributes:
        text: A part of the source's path, whatever its case.
        states: Only these states.
        containers: Only these containers.
        architectures: Only these architectures.
        plan: Only models of this plan.
        folder: Only models in this folder or below it.
        eras: Only these eras.
        flat: Only models that stand in `folder` itself; without one, none.
        offset: How many are left out at the beginning, for pages that have numbers.
        sort: One of SORTS.
        descending: Whether the largest come first.
        cursor: `ModelList.next` of the page before.
        limit: At most so many, 500 at most.
    """

    text: str = ""
    states: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    plan: str | None = None
    folder: str | None = None
    sort: str = "source"
    descending: bool = False
    cursor: str | None = None
    limit: int = 100
    eras: tuple[str, ...] = ()
    flat: bool = False
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ModelList:
    """A page of models, the cursor of the next page (None after the last), and how many match on all pages."""

    items: list[ListedModel]
    next: str | None
    total: int


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of the archive: path, name, models below it, their bytes."""

    path: str
    name: str
    models: int
    bytes: int


def index(store: Store, plan: str, entries: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Enter models, each with its job's id; those that are known already are described again."""
    rows = [_row(plan, job, entry) for job, entry in entries if entry.get("verdict") != OTHER]
    if not rows:
        return
    insert = store._insert(store.t.models)
    change = {name: insert.excluded[name] for name in rows[0] if name != "id"}
    statement = insert.on_conflict_do_update(index_elements=["id"], set_=change)
    store.do(lambda connection: connection.execute(statement, rows))


def forget_plan(store: Store, plan: str, keep: Iterable[str]) -> None:
    """Drop the models of a plan that are no longer in it and were never submitted."""
    models, kept = store.t.models, set(keep)
    submitted = sa.exists().where(store.jobs.c.id == models.c.id)
    known = store.all(sa.select(models.c.id).where(models.c.plan == plan, ~submitted))
    gone = [row["id"] for row in known if row["id"] not in kept]
    for start in range(0, len(gone), MOST):
        store.run(sa.delete(models).where(models.c.id.in_(gone[start : start + MOST])))


def index_unknown(store: Store) -> None:
    """Enter the jobs of the ledger that the index lacks: those of `ggferry apply`."""
    jobs, models = store.jobs, store.t.models
    unknown = sa.select(jobs.c.id, jobs.c.plan, jobs.c.entry).where(~sa.exists().where(models.c.id == jobs.c.id))
    by_plan: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for row in store.all(unknown):
        by_plan.setdefault(row["plan"], []).append((row["id"], row["entry"]))
    for plan, entries in by_plan.items():
        index(store, plan, entries)


def entries_of(head: Head, entries: Sequence[Entry]) -> list[tuple[str, JSONObject]]:
    """Return a plan's lines as `index` takes them."""
    names = (
        "source",
        "container",
        "version",
        "era",
        "architecture",
        "types",
        "bytes_in",
        "bytes_out",
        "verdict",
        "reason",
    )
    return [(entry.id(head), {name: getattr(entry, name) for name in names}) for entry in entries]


def _row(plan: str, job: str, entry: Mapping[str, Any]) -> JSONObject:
    source = str(entry["source"]).encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    same = ("container", "version", "era", "architecture", "types", "verdict", "reason")
    return {
        "id": job,
        "plan": plan,
        "source": source,
        "name": os.path.basename(source.rstrip("/")),
        "folder": os.path.dirname(source.rstrip("/")),
        **{name: entry.get(name) for name in same},
        "bytes_in": entry.get("bytes_in") or 0,
        "bytes_out": entry.get("bytes_out") or 0,
        "planned": time.time(),
    }


# --- reading -------------------------------------------------------------------------------------------------------


def _state(store: Store) -> Any:
    models = store.t.models
    verdict = sa.case((models.c.verdict == "convert", PLANNED), else_=models.c.verdict)
    return sa.func.coalesce(shown_state_of(store.jobs), verdict)


def _columns(store: Store) -> dict[str, Any]:
    """Return what a row shows by name; NULL sorts as nothing."""
    models, jobs = store.t.models, store.jobs
    same = ("id", "plan", "source", "name", "folder", "version", "era", "types", "bytes_in", "reason", "verdict")
    return {
        **{name: models.c[name] for name in same},
        "container": sa.func.coalesce(models.c.container, ""),
        "architecture": sa.func.coalesce(models.c.architecture, ""),
        "bytes_out": models.c.bytes_out,
        "state": _state(store),
        "output": jobs.c.output,
        "error": jobs.c.error,
        "attempts": jobs.c.attempts,
        "same_as": jobs.c.same_as,
        "started": jobs.c.started,
        "finished": jobs.c.finished,
        "updated": sa.func.coalesce(jobs.c.updated, models.c.planned),
        "stage": jobs.c.stage,
        "asked_by": store.t.asked.c.name,
        "asked": sa.func.coalesce(store.t.asked.c.at, jobs.c.created),
    }


def _joined(store: Store) -> Any:
    models, requests = store.t.models, store.t.asked
    return models.outerjoin(store.jobs, store.jobs.c.id == models.c.id).outerjoin(
        requests, requests.c.job == models.c.id
    )


def _matching(store: Store, query: Query) -> list[Any]:
    columns, models = _columns(store), store.t.models
    found: list[Any] = []
    if query.text:
        found += [models.c.source.icontains(word, autoescape=True) for word in query.text.split()[:16]]
    for name, value in (
        ("state", query.states),
        ("container", query.containers),
        ("architecture", query.architectures),
        ("era", query.eras),
    ):
        if value:
            found.append(columns[name].in_(value))
    if query.plan is not None:
        found.append(models.c.plan == query.plan)
    if query.folder is not None:
        inside = models.c.folder.startswith(query.folder.rstrip("/") + "/", autoescape=True)
        here = models.c.folder == query.folder.rstrip("/")
        found.append(here if query.flat else here | inside)
    elif query.flat:
        found.append(sa.false())
    return found


def find(store: Store, query: Query) -> ModelList:
    """Return a page of models. Raises UsageError for an order or a cursor that is none."""
    if query.sort not in SORTS:
        raise UsageError("sort", found=query.sort, expected=", ".join(SORTS))
    columns = _columns(store)
    by, key, where = columns[query.sort], store.t.models.c.id, _matching(store, query)
    counted = _joined(store) if query.states else store.t.models
    count = sa.select(sa.func.count()).select_from(counted).where(*where)
    limit = max(1, min(query.limit, MOST))
    place = _place(query)
    after = [] if place is None else [sa.tuple_(by, key) < place if query.descending else sa.tuple_(by, key) > place]
    order = (by.desc(), key.desc()) if query.descending else (by, key)
    shown = [column.label(name) for name, column in columns.items()]
    page = (
        sa.select(*shown)
        .select_from(_joined(store))
        .where(*where, *after)
        .order_by(*order)
        .limit(limit + 1)
        .offset(query.offset)
    )
    total, rows = store._do(
        lambda connection: (
            int(connection.execute(count).scalar_one()),
            [dict(row._mapping) for row in connection.execute(page)],
        ),
        reads=True,
    )
    more = len(rows) > limit
    items = rows[:limit]
    return ModelList(cast("list[ListedModel]", items), _cursor(query, items[-1]) if more else None, total)


def _cursor(query: Query, row: Mapping[str, Any]) -> str:
    text = json.dumps([query.sort, query.descending, row[query.sort], row["id"]])
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _place(query: Query) -> tuple[Any, str] | None:
    if query.cursor is None:
        return None
    try:
        sort, descending, value, key = json.loads(urlsafe_b64decode(query.cursor + "=" * (-len(query.cursor) % 4)))
        number = query.sort in ("bytes_in", "bytes_out", "updated")
        fits = type(value) in ((int, float) if number else (str,)) and isinstance(key, str)
        if fits and (sort, descending) == (query.sort, query.descending) and not (number and abs(value) > 1 << 62):
            return value, key
    except (ValueError, TypeError, RecursionError):
        pass
    raise UsageError("cursor", found=query.cursor, expected="`next` of a page with the same sort and order")


def one(store: Store, job: str) -> IndexRow:
    """Return a model's row of the index. Raises NotFoundError."""
    shown = [column.label(name) for name, column in _columns(store).items()]
    found = store.first(sa.select(*shown).select_from(_joined(store)).where(store.t.models.c.id == job))
    if found is None:
        raise NotFoundError("no such model", found=job)
    return cast("IndexRow", found)


def some(store: Store, jobs: Sequence[str]) -> list[IndexRow]:
    """Return the rows of models, by their names; those that are unknown are left out."""
    shown = [column.label(name) for name, column in _columns(store).items()]
    query = sa.select(*shown).select_from(_joined(store)).where(store.t.models.c.id.in_(list(jobs)[: 2 * MOST]))
    return cast("list[IndexRow]", store.all(query.order_by(store.t.models.c.name)))


def facets(store: Store) -> dict[str, dict[str, int]]:
    """Return how many models have each state, container and architecture."""
    columns, found = _columns(store), {}
    for name in FACETS:
        query = sa.select(columns[name].label("value"), sa.func.count().label("models"))
        rows = store.all(query.select_from(_joined(store)).group_by(columns[name]))
        found[name] = {row["value"] or "": row["models"] for row in sorted(rows, key=lambda row: -row["models"])}
    return found


def folders(store: Store, below: str, tops: Sequence[str] = ()) -> list[Folder]:
    """Return the folders right below `below` with what is in them.

    Below "" are those of `tops` that hold models; what lies elsewhere is below the folder that all of it shares, or
    else below the topmost folders that hold models.
    """
    models = store.t.models
    query = sa.select(models.c.folder, sa.func.count().label("models"), sa.func.sum(models.c.bytes_in).label("bytes"))
    prefix = below.rstrip("/") + "/" if below else ""
    query = query.where(models.c.folder.startswith(prefix, autoescape=True)) if prefix else query
    rows = [
        (row["folder"], int(row["models"]), int(row["bytes"] or 0))
        for row in store.all(query.group_by(models.c.folder))
    ]
    above = {} if prefix else _tops([folder for folder, _, _ in rows], tops)
    found: dict[str, list[int]] = {}
    for folder, count, nbytes in rows:
        path = prefix + folder[len(prefix) :].split("/", 1)[0] if prefix else above[folder]
        held = found.setdefault(path, [0, 0])
        held[0], held[1] = held[0] + count, held[1] + nbytes
    name = os.path.basename if prefix else str
    return [Folder(path, name(path) or path, *held) for path, held in sorted(found.items())]


def _tops(folders: Iterable[str], tops: Sequence[str]) -> dict[str, str]:
    """Return folder → the outermost folder that is shown for it."""
    found: dict[str, str] = {}
    known = sorted(tops, key=len, reverse=True)
    for folder in sorted(folders):
        home = next((each for each in known if _is_in(folder, each)), None)
        if home is not None:
            found[folder] = home
    rest = sorted(folder for folder in folders if folder not in found)
    shared = os.path.commonpath(rest) if rest and all(map(os.path.isabs, rest)) else ""
    last = ""
    for folder in rest:
        last = last if last and _is_in(folder, last) else folder
        found[folder] = shared if shared not in ("", "/") else last
    return found


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
