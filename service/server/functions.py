"""What the service can do, as functions that routes and pages call; the package's docstring lists them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast
from urllib.parse import quote

from ggferry.converters.conversion.options import is_sized
from ggferry.converters.metadata.receipt_fields import KeptReceipts
from ggferry.formats.errors import GgferryError, NotFoundError, RefusedError, UsageError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.apply.job import Settings as JobSettings
from ggferry.service.apply.migration import Migration, MigrationRequest
from ggferry.service.operations.edit import EditChanges
from ggferry.service.operations.inspect import InspectRequest
from ggferry.service.operations.tokenize import TokenizeRequest
from ggferry.service.publishing.search import HubFile, HubModel
from ggferry.service.records.fields import (
    FolderItem,
    IndexRow,
    ListedModel,
    ModelRecord,
    PlanLine,
    PlannedLine,
    PlanRecord,
    ReportRecord,
    Submitted,
    Totals,
)
from ggferry.service.records.ledger import DONE, HELD, QUARANTINED, QUEUED, STATES
from ggferry.service.records.plan_file import CONVERT, OTHER, outputs_of
from ggferry.service.records.report import collect
from ggferry.service.server.guard.callers import Caller
from ggferry.service.server.guard.lookups import NAMES
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.state import Service
from ggferry.service.server.store import asked, models, removal
from ggferry.service.server.store.models import Folder, ModelList, Query
from ggferry.service.server.work import edits, planning, sources
from ggferry.service.server.work.outputs.output_files import Output
from ggferry.service.server.work.sources import Place
from ggferry.service.server.work.staging import staged
from ggferry.service.storage.retry import names_within
from ggferry.service.storage.stores import is_remote
from ggferry.service.storage.urls import is_web, redact

LIKE = "like"
CHOSEN_LATER = "the types are chosen when the weights are read"
SHOWN_OF_A_JOB = (
    "id",
    "plan",
    "source",
    "output",
    "state",
    "bytes_in",
    "bytes_out",
    "attempts",
    "stage",
    "error",
    "same_as",
    "adopted",
    "peak",
    "created",
    "started",
    "finished",
    "updated",
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a text: its number in the vocabulary, and its text."""

    id: int
    piece: str


# --- the archive ---------------------------------------------------------------------------------------------------


def list_models(service: Service, query: Query) -> ModelList:
    """Return a page of the archive's models. Raises UsageError."""
    found = models.find(service.store, query)
    return ModelList([_of_list(service, row) for row in found.items], found.next, found.total)


def _of_list(service: Service, row: IndexRow) -> ListedModel:
    return {**row, "progress": service.progress.of(row["id"], row)}


def facets(service: Service) -> dict[str, dict[str, int]]:
    """Return how many models have each state, container and architecture."""
    return models.facets(service.store)


def folders(service: Service, below: str = "") -> list[Folder]:
    """Return the folders right below one, with the models and bytes in each."""
    return models.folders(service.store, below, [*service.settings.places, service.settings.upload_place])


def totals(service: Service) -> Totals:
    """Return the archive in numbers: jobs by state, bytes before and after of what is done."""
    found = {"states": removal.counts(service.store), **service.store.bytes_done(), "progress": progress(service)}
    return cast("Totals", found)


def roots(service: Service) -> list[str]:
    """Return what may be read: folders, and URLs of stores."""
    return [*service.settings.places]


def browse(service: Service, path: str) -> list[FolderItem]:
    """Return what is in a folder below a root. Raises AccessError, NotFoundError."""
    if is_remote(path):
        raise UsageError(
            "only folders of this machine can be listed", found=path, hint="plan a URL to see what it holds"
        )
    return sources.browse(path, [root for root in service.settings.places if not is_remote(root)])


def search_hub(service: Service, caller: Caller, text: str) -> list[HubModel]:
    """Return models of the Hugging Face Hub by name, below the roots that are there. Raises as `HubSearch.find`."""
    need(caller, "submit", "the Hub is asked for those who may submit")
    return service.hub_search.find(text)


def hub_files(service: Service, caller: Caller, repository: str) -> list[HubFile]:
    """Return the files of weights in a repository of the Hub. Raises as `HubSearch.files`."""
    need(caller, "submit", "the Hub is asked for those who may submit")
    return service.hub_search.files(repository)


# --- one model -----------------------------------------------------------------------------------------------------


def model(service: Service, job: str) -> ModelRecord:
    """Return everything about a model but its receipt: index row, entry, attempts, progress. Raises NotFoundError."""
    row = models.one(service.store, job)
    found: JSONObject = {**row, "entry": _entry_of(service, job), "tried": []}
    try:
        kept: Mapping[str, Any] = service.store.row(job)
    except NotFoundError:
        kept = {}
    found |= {name: kept[name] for name in SHOWN_OF_A_JOB if name in kept}
    found["state"] = row["state"]
    found["outputs"] = outputs_of(found["entry"])
    found["has_receipt"] = kept.get("receipt") is not None and kept.get("state") == DONE
    found["tried"] = [
        {name: each[name] for name in ("attempt", "outcome", "error", "started", "ended")}
        for each in kept.get("tried", ())
    ]
    return cast("ModelRecord", {**found, "progress": service.progress.of(job, row)})


def _entry_of(service: Service, job: str) -> PlanLine:
    """Return the plan's line of a model, as the ledger or its plan has it."""
    try:
        kept = service.store.row(job)["entry"]
        return cast("PlanLine", {key: value for key, value in kept.items() if key != "trees"})
    except NotFoundError:
        row = models.one(service.store, job)
        head, entries, _ = service.planner.read(row["plan"])
        entry = next((each for each in entries if each.id(head) == job), None)
        if entry is None:
            raise NotFoundError("no longer in its plan", found=job) from None
        return cast("PlanLine", {**asdict(entry), "recipe": entry.recipe(head)})


def place_of(service: Service, job: str) -> tuple[str, list[str], JSONObject]:
    """Return a model's source, the folders that confine it, and its recipe, for a worker that looks at it."""
    row = models.one(service.store, job)
    entry = _entry_of(service, job)
    return entry["source"], service.planner.trees(row["plan"]), dict(entry.get("recipe") or {})


def _look(service: Service, caller: Caller, question: str, source: str, trees: Sequence[str], **options: Any) -> Any:
    if is_web(source):
        need(caller, "submit", "a web address is fetched for those who may submit")
    with names_within(NAMES), staged(source, service.planner.access()) as (path, mount, named):
        command = {"op": "look", "question": question, "source": path, "trees": [*trees], "options": options}
        try:
            return named(service.inspectors.ask({**command, "mount": mount}))
        except GgferryError as error:
            error.path = named(error.path)
            raise


def inspect(service: Service, caller: Caller, request: InspectRequest) -> JSONObject:
    """Return what a source holds according to its headers, as `ggferry.inspect`."""
    place = find(service, caller, str(request.path))
    found: JSONObject = _look(service, caller, "inspect", place.path, place.trees, arch=request.arch)
    return found


def inspection(service: Service, caller: Caller, job: str) -> JSONObject:
    """Return what a model of the archive holds according to its headers, as `ggferry.inspect`."""
    source, trees, recipe = place_of(service, job)
    found: JSONObject = _look(service, caller, "inspect", source, trees, arch=recipe.get("arch"))
    return found


def conversion_plan(service: Service, caller: Caller, job: str) -> JSONObject:
    """Return what a conversion would do to every tensor and key, as `ggferry.plan`."""
    source, trees, recipe = place_of(service, job)
    if is_sized(recipe):
        raise RefusedError(CHOSEN_LATER, hint="the receipt has them when the job is done")
    recipe.pop("verify", None), recipe.pop("witness", None), recipe.pop("allow_nonfinite", None)
    found: JSONObject = _look(service, caller, "plan", source, trees, **recipe)
    return found


def tokenize(service: Service, caller: Caller, job: str, request: TokenizeRequest) -> list[Token]:
    """Return the tokens of a text by a model's own vocabulary. The output's, where it is done."""
    source, trees, _ = place_of(service, job)
    row = models.one(service.store, job)
    if row["state"] == DONE and row["output"]:
        source, trees = row["output"], [service.settings.output_folder]
    found = _look(service, caller, "tokenize", source, trees, text=request.text, special=request.special)
    return [Token(each["id"], each["piece"]) for each in found]


def receipt(service: Service, job: str, file: str | None = None) -> KeptReceipts:
    """Return the receipt of a done job; each of its output files also has its sha256. Raises RefusedError.

    Of several outputs that of the first, the others in its member `further`; with `file`, that of one of them alone.
    """
    return service.outputs.receipt(job, file)


def outputs(service: Service, job: str) -> list[Output]:
    """Return the files of a done job. Raises RefusedError before it is done."""
    return [
        Output(each.name, each.bytes, each.sha256, each.blake3, f"/api/v1/jobs/{job}/files/{quote(each.name, safe='')}")
        for each in service.outputs.every(job)
    ]


# --- plans and jobs ------------------------------------------------------------------------------------------------


def find(service: Service, caller: Caller, source: str) -> Place:
    """Return the place that a request names. Raises AccessError, NotFoundError, UsageError."""
    return sources.resolve(source, service.settings.places, lambda key: service.uploads.place(key, caller.token.owner))


def make_plan(service: Service, caller: Caller, source: str, options: Mapping[str, Any], wait: float = 0) -> PlanRecord:
    """Begin to plan what is at `source`, and return the plan as `show_plan` does, after `wait` seconds at most."""
    need(caller, "submit")
    place = find(service, caller, source)
    recipe = planning.files_of(_with_types_like(service, caller, options), lambda name: find(service, caller, name))
    key = service.planner.begin(redact(source), place, recipe, caller.token.owner)
    service.planner.wait(key, wait)
    return show_plan(service, key)


def _with_types_like(service: Service, caller: Caller, options: Mapping[str, Any]) -> JSONObject:
    """Return options with the recipe that `like` stands for: the types of a GGUF file, as they are now."""
    left = {name: value for name, value in options.items() if name != LIKE}
    if options.get(LIKE) is None:
        return left
    if left.get("recipe") is not None:
        raise UsageError("two recipes", found="like and recipe", expected="one of them")
    place = find(service, caller, str(options[LIKE]))
    return {**left, "recipe": _look(service, caller, LIKE, place.path, place.trees)}


def show_plan(service: Service, plan: str) -> PlanRecord:
    """Return a plan: id, state ('planning', 'ready', 'failed'), source, options, summary, error."""
    return service.planner.show(plan)


def plan_lines(service: Service, plan: str, cursor: int = 0, limit: int = 100) -> tuple[list[PlannedLine], int | None]:
    """Return some of a plan's lines, each with its job's id, and where the next begin (None: there are no more)."""
    head, entries, _ = service.planner.read(plan)
    some = entries[cursor : cursor + limit]
    following = cursor + limit
    lines = [cast("PlannedLine", {"id": each.id(head), **asdict(each)}) for each in some]
    return lines, following if following < len(entries) else None


def submit(service: Service, caller: Caller, plan: str, chosen: Sequence[str] | None = None) -> Submitted:
    """Enter the models of a plan in the ledger, all or those whose ids are `chosen`; the server then converts them.

    Raises RefusedError for a plan that is not ready, sources that changed, or too little room.
    """
    need(caller, "submit")
    if service.draining.is_set():
        raise HttpError(503, "draining", "the server is about to end", headers={"Retry-After": "30"})
    head, entries, trees = service.planner.read(plan)
    ids = {entry.id(head): entry for entry in entries if entry.verdict != OTHER}  # of those the archive shows nothing
    if chosen is not None:
        odd = [each for each in chosen if each not in ids]
        if odd:
            raise NotFoundError("the plan has no such model", found=odd[0])
        known = {row["id"] for row in service.store.rows(head.id, full=False)}
        ids = {key: entry for key, entry in ids.items() if key in known or key in set(chosen)}
    states = {row["id"]: row["state"] for row in service.store.rows(head.id, full=False)}
    new = [key for key in ids if states.get(key) not in (QUEUED, *HELD, DONE)]
    service.uploads.check_output_space(
        caller.token, sum(ids[key].bytes_out for key in new if ids[key].verdict == CONVERT)
    )
    request = MigrationRequest(
        f"plan {plan}",
        service.settings.ledger_place,
        jobs=service.settings.jobs,
        settings=JobSettings(scratch=service.settings.scratch),
        trees=trees,
        private=service.settings.private,
    )
    migration = Migration(request, lambda event: None, (head, list(ids.values())), service.store)
    service.planner.note_submitted(plan, head.id)
    again = removal.requeue_requested(service.store, [key for key in new if ids[key].verdict == CONVERT])
    asked.note(service.store, new, caller.token, again=again)
    migration.prepare()
    models.index(service.store, plan, models.entries_of(head, [*ids.values()]))
    if chosen is None:
        _drop_mistaken(service, head.id, ids)
    service.runner.wake()
    states = {row["id"]: row["state"] for row in service.store.rows(head.id, full=False) if row["id"] in ids}
    counts = {state: n for state in STATES if (n := sum(each == state for each in states.values()))}
    return {"plan": plan, "jobs": sorted(states), "states": counts, "queued": counts.get(QUEUED, 0)}


def _drop_mistaken(service: Service, run: str, ids: Container[str]) -> None:
    """Forget the models that an earlier plan of the same place could not read, and that are not in this one so."""
    rows = service.store.rows(run, [QUARANTINED], full=False)
    removal.forget(service.store, [r["id"] for r in rows if r["id"] not in ids and not r["attempts"] + r["losses"]])


def edit(service: Service, caller: Caller, job: str, changes: EditChanges, file: str | None = None) -> ModelRecord:
    """Change keys of a done job's file, and return the model that the new file is listed as.

    `file`: which of several outputs is meant. Raises RefusedError, UsageError.
    """
    need(caller, "submit")
    row = models.one(service.store, job)
    service.uploads.check_output_space(caller.token, int(row["bytes_out"] or 0))
    made = edits.edit(service.store, service.inspectors, service.outputs, job, changes, file)
    asked.note(service.store, [made], caller.token)
    return model(service, made)


def progress(service: Service, job: str | None = None) -> Mapping[str, Any]:
    """Return the progress of a job, or of everything that runs: phase, done, total, rate, eta."""
    if job is None:
        return service.progress.whole()
    return service.progress.of(job, models.one(service.store, job)) or {}


def report(service: Service, plan: str | None = None) -> ReportRecord:
    """Return the report of a plan's jobs, or of all, as `ggferry ledger export` writes it."""
    if plan is None:
        return collect(service.store.rows())
    head, _, _ = service.planner.read(plan)
    return collect(service.store.rows(head.id), head)


def need(caller: Caller, scope: str, why: str = "") -> None:
    """Raise HttpError unless a caller has a scope; `why`: what needs it."""
    if not caller.may(scope):
        detail = f"this needs the scope {scope}" + (f": {why}" if why else "")
        raise HttpError(403, "scope", detail, found=caller.scope, expected=scope)
