"""What `--json` prints of archives, where no record of its own says it; `tools/json_schemas.py` has its schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from typing_extensions import TypedDict  # pydantic refuses that of typing below Python 3.12

from ggferry.service.records.fields import PlanSummary, ReportTotals
from ggferry.service.workers.messages import Event


class PlannedArchive(PlanSummary):
    """A plan that was written, in numbers; `plan`: its path."""

    plan: str


class StartedRun(TypedDict):
    """The first event of `apply`: how many models are left, the room they take, and what will be deleted."""

    event: Literal["start"]
    plan: str
    ledger: str
    jobs: int
    room: list[Event]
    to_delete: list[str]


class EndedRun(ReportTotals):
    """The last event of `apply`."""

    event: Literal["end"]


class SurveyedConversion(TypedDict):
    """A model that `apply` would convert."""

    source: str
    output: str | None
    outputs: Sequence[str]
    bytes: int


class DeletedFile(TypedDict):
    """A source that will be deleted."""

    path: str
    bytes: int


class SurveyedRun(TypedDict):
    """What `apply --dry-run` says: what would be converted, deleted and kept, and why it is kept."""

    convert: list[SurveyedConversion]
    delete: list[DeletedFile]
    keep: Mapping[str, str]


class RecheckedJob(TypedDict):
    """A finished job whose outputs were checked again."""

    id: str
    output: str | None
    outputs: list[str]
    ok: bool
    problem: str | None
