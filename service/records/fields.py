"""The members of what is kept in the ledger, and of what the server answers, as their JSON has them.

The command line, the server's pages, its API and `ggferry.Client` share them. A receipt's members are in
`converters/metadata/receipt_fields.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NotRequired

from typing_extensions import TypedDict  # pydantic refuses that of typing below Python 3.12

if TYPE_CHECKING:
    from ggferry.converters.metadata.receipt_fields import KeptReceipts

# --- a plan --------------------------------------------------------------------------------------------------------


class FoundRecord(TypedDict):
    """A file of a plan's line (`places.Found`); the ledger also keeps what is not in a plan's file."""

    path: str
    bytes: int
    version: str
    inode: NotRequired[list[int] | None]
    trouble: NotRequired[Mapping[str, Any] | None]
    reason: NotRequired[str]


class FurtherRecord(TypedDict):
    """An output of a plan's line besides its first (`plan_file.Further`)."""

    outtype: str
    output: str
    bytes_out: NotRequired[int]


class LossRecord(TypedDict):
    """What an output will not hold, for one reason (`model_graph.graph.Loss`)."""

    reason: str
    tensors: int
    bytes: int
    example: str


class PlanLine(TypedDict, total=False):
    """A line of a plan (`plan_file.Entry`), as the ledger keeps it: with the whole recipe and the folders it may touch.

    `edit` and `edit_of` are of a file whose keys were changed on a server: the changes, and the job of the file before.
    """

    source: str
    verdict: str
    reason: str
    kind: str
    container: str | None
    version: int | None
    era: str | None
    architecture: str | None
    types: str | None
    files: list[FoundRecord]
    beside: list[FoundRecord]
    bytes_in: int
    bytes_out: int
    memory: int
    disk: int
    gpus: float
    output: str | None
    further: list[FurtherRecord]
    options: Mapping[str, Any]
    grades: Mapping[str, int]
    notes: list[str]
    lost: list[LossRecord]
    same_as: str | None
    proof: str | None
    error: Mapping[str, Any] | None
    recipe: Mapping[str, Any]
    trees: list[str] | None
    edit: Mapping[str, Any]
    edit_of: str


class PlannedLine(PlanLine):
    """A line of a plan with the id of its job."""

    id: str


class Lines(TypedDict):
    """Some of a plan's lines, and the number of the next; None after the last."""

    items: list[PlannedLine]
    next: int | None


class PlanSummary(TypedDict):
    """A plan in numbers; `bytes_of_types` where models get several outputs."""

    verdicts: dict[str, int]
    files: int
    bytes_in: int
    bytes_out: int
    memory: int
    disk: int
    convert: dict[str, int]
    problems: dict[str, int]
    duplicate_bytes: int
    lossy: int
    bytes_of_types: NotRequired[dict[str, int]]


class PlanRecord(TypedDict):
    """A plan of a server: its state is 'planning', 'ready' or 'failed'."""

    id: str
    state: str
    source: str
    options: Mapping[str, Any]
    summary: PlanSummary | None
    error: Mapping[str, Any] | None
    created: float
    submitted: float | None
    run: str | None


# --- a job ---------------------------------------------------------------------------------------------------------


class NewRow(TypedDict):
    """A job that is entered in the ledger."""

    id: str
    source: str
    entry: PlanLine
    state: str
    error: Mapping[str, Any] | None


class JobRow(TypedDict):
    """A job's row in the ledger without its line and receipt; times are seconds since 1970."""

    id: str
    plan: str
    source: str
    output: str | None
    state: str
    bucket: int
    key: str | None
    bytes_in: int
    bytes_out: int
    attempts: int
    losses: int
    owner: str | None
    lease_until: float | None
    not_before: float
    stage: str | None
    error: Mapping[str, Any] | None
    same_as: str | None
    adopted: bool | None
    peak: int | None
    deleted: bool
    created: float
    started: float | None
    finished: float | None
    updated: float
    claims: int
    ticket: str | None
    priority: int


class ListedJob(JobRow):
    """A job in a list; `further`: its outputs besides the first."""

    further: list[FurtherRecord] | None


class LedgerRow(JobRow):
    """A job's row in the ledger. Where entry and receipt are left out, it is a `ListedJob`."""

    entry: PlanLine
    receipt: KeptReceipts | None
    further: NotRequired[list[FurtherRecord] | None]


class AttemptRow(TypedDict):
    """An attempt of a job in the ledger; `outcome` is None while it lasts."""

    id: int
    job: str
    attempt: int
    owner: str | None
    outcome: str | None
    error: Mapping[str, Any] | None
    started: float | None
    ended: float | None
    token: int | None


class TriedRow(LedgerRow):
    """A job's row with its attempts."""

    tried: list[AttemptRow]


class ProgressRecord(TypedDict):
    """How far a job is: bytes done and in all, of its phase too, bytes a second, seconds left."""

    phase: str
    done: int
    total: int
    phase_done: NotRequired[int]
    phase_total: NotRequired[int | None]
    rate: float
    eta: float | None


class RunProgress(TypedDict):
    """How far a server is with all that runs: jobs at work and waiting, bytes, seconds left."""

    running: int
    queued: int
    done: int
    total: int
    rate: float
    eta: float | None


# --- a report ------------------------------------------------------------------------------------------------------


class ReportTotals(TypedDict):
    """The totals of a report: jobs by state, bytes, seconds of all workers together."""

    queued: int
    running: int
    verifying: int
    done: int
    failed: int
    quarantined: int
    skipped: int
    bytes_before: int
    bytes_after: int
    bytes_saved: int
    bytes_duplicate: int
    worker_seconds: float
    peak_memory: int
    deleted_sources: int


class ReportedModel(TypedDict):
    """A model of a report: what of its job and of its first receipt a person compares.

    `outputs` has the numbers of each output where there are several (`OutputSummary`).
    """

    id: str
    source: str
    state: str
    container: str | None
    version: int | None
    architecture: str | None
    bytes_in: int
    bytes_out: int | None
    output: str | None
    outputs: list[Mapping[str, Any]]
    blake3: list[str]
    grades: dict[str, int]
    verified: str | None
    logits: Mapping[str, Any] | None
    tokenizer: Mapping[str, Any] | None
    runtimes: list[str] | None
    same_as: str | None
    error: Mapping[str, Any] | None
    attempts: int
    adopted: bool
    source_deleted: bool
    peak_memory: int | None
    seconds: float | None


class ReportRecord(TypedDict):
    """The report of a migration, as its JSON file and the server have it; `damaged_rows` where there are any."""

    ggferry: str
    roots: list[str]
    dest: str | None
    totals: ReportTotals
    errors: dict[str, int]
    faults: dict[str, int]
    grades: dict[str, int]
    skipped: dict[str, int]
    models: list[ReportedModel]
    other_files: int
    damaged_rows: NotRequired[list[str]]


# --- the archive of a server ---------------------------------------------------------------------------------------


class IndexRow(TypedDict):
    """A model of the archive, from its plan's line and its job; what is of the job is None before it is submitted.

    `asked_by` is the name of the token that submitted it, `asked` when.
    """

    id: str
    plan: str
    source: str
    name: str
    folder: str
    version: int | None
    era: str | None
    types: str | None
    bytes_in: int
    reason: str | None
    verdict: str
    container: str
    architecture: str
    bytes_out: int
    state: str
    output: str | None
    error: Mapping[str, Any] | None
    attempts: int | None
    same_as: str | None
    started: float | None
    finished: float | None
    updated: float
    stage: str | None
    asked_by: str | None
    asked: float | None


class ListedModel(IndexRow):
    """A model as the archive lists it; `progress` while it is worked on."""

    progress: NotRequired[ProgressRecord | None]


class Attempt(TypedDict):
    """An attempt as a model's job shows it."""

    attempt: int
    outcome: str | None
    error: Mapping[str, Any] | None
    started: float | None
    ended: float | None


class ModelRecord(ListedModel):
    """A model with its plan's line and, once it was submitted, its job."""

    entry: PlanLine
    tried: list[Attempt]
    outputs: list[str]
    has_receipt: bool
    adopted: NotRequired[bool | None]
    peak: NotRequired[int | None]
    created: NotRequired[float]


class Totals(TypedDict):
    """The archive in numbers: jobs by state, bytes before and after of what is done."""

    states: dict[str, int]
    bytes_before: int
    bytes_after: int
    progress: RunProgress


class Submitted(TypedDict):
    """What was entered in the ledger: the ids of the jobs, how many have each state, how many wait."""

    plan: str
    jobs: list[str]
    states: dict[str, int]
    queued: int


class HistogramRecord(TypedDict):
    """How the values of a tensor are distributed (`converters.analysis.differences.histogram`)."""

    name: str
    type: str
    shape: list[int]
    elements: int
    not_finite: int
    zeros: int
    smallest: float | None
    largest: float | None
    mean: float | None
    deviation: float | None
    counts: list[int]


class KeyDifferenceRecord(TypedDict):
    """A key that is not the same in two models; `items` and `place` of arrays of one length."""

    key: str
    first: str | None
    second: str | None
    items: int | None
    place: int | None
    lines: list[str]


class TensorDifferenceRecord(TypedDict):
    """A tensor that is not the same in two models: type and shape in each, and how far its values lie apart.

    An error that is infinite is the text 'inf'.
    """

    name: str
    first: list[Any] | None
    second: list[Any] | None
    relative_rms: float | str | None
    largest: float | str | None
    not_finite: bool


class DifferenceFields(TypedDict):
    """How two models differ, as `ggferry diff` says."""

    differs: bool
    keys: list[KeyDifferenceRecord]
    tensors: list[TensorDifferenceRecord]
    same_keys: int
    same_tensors: int
    same_values: int
    looked: bool


class DifferenceRecord(DifferenceFields):
    """How two models of a server differ; `by_roles` where their tensors have other names."""

    by_roles: bool


class Bulk(TypedDict):
    """What was done to several models: the ids of those it was done to, and why not to others."""

    action: str
    done: list[str]
    refused: dict[str, str]


class Usage(TypedDict):
    """Bytes: those that a token has stored or announced, those it may, those of the server's disk."""

    used: int
    quota: int
    disk_free: int
    disk_total: int


class FolderItem(TypedDict):
    """What is in a folder of the server: its kind is 'folder', 'file' or 'other'."""

    name: str
    path: str
    kind: str
    bytes: int | None


class UploadFile(TypedDict):
    """A file of an upload.

    `offset`: the bytes that came, `sha256`: theirs, `announced`: what its sender said of the whole.
    """

    name: str
    bytes: int
    offset: int
    sha256: NotRequired[str]
    announced: NotRequired[str]


class UploadRecord(TypedDict):
    """An upload; `source` names it in a request for a plan.

    `purpose`: 'model', or 'option' for what an option names.
    """

    id: str
    name: str
    purpose: str
    state: str
    bytes: int
    summary: PlanSummary | None
    error: Mapping[str, Any] | None
    created: float
    updated: float
    source: str
    files: list[UploadFile]
