"""What a worker and its supervisor tell each other, and the events of a run, as their JSON has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired

from typing_extensions import TypedDict  # pydantic refuses that of typing below Python 3.12

from ggferry.converters.metadata.receipt_fields import FileRecord, OutputReceipt
from ggferry.formats.json_files.kinds import JSONObject

if TYPE_CHECKING:
    from ggferry.service.records.fields import LossRecord


class Event(TypedDict, total=False):
    """Something that happened in a run. Its name, `event`, says which of the others it has.

    Attributes:
        event: 'ready', 'stage', 'progress' (of a worker), 'job', 'warning', 'room', 'deleted', 'start', 'stopped',
            'end'.
        id: Id of the job, likewise `source`.
        title: The phase (`support.progress.Phase`).
        total: Bytes of the phase.
        done: Bytes done in it; with `more`, since the event before.
        state: State of the job.
        run: Progress of the whole run.
        pid: Of a worker that has started ('ready').
    """

    event: str
    id: str
    source: str | None
    title: str
    total: int
    done: int
    more: bool
    message: str
    state: str
    attempt: int
    error: Mapping[str, Any] | None
    bytes_in: int
    bytes_out: int
    bytes: int
    files: Sequence[str]
    run: Mapping[str, Any]
    pid: int


class Question(TypedDict):
    """What a worker asks: 'key' (whether this content is still to be done) or 'publish'."""

    event: str
    question: str
    key: NotRequired[str]


class Reply(TypedDict):
    """The answer to a question; of a key, also how the bytes of each file are known to be the store's."""

    ok: bool
    transport: NotRequired[Sequence[str | None]]


class PlannedFile(TypedDict):
    """An output as a worker plans it; `shards`: into how many files it is split."""

    outtype: str
    name: str
    bytes: int
    shards: int


class Analysis(TypedDict):
    """What a file decides of its line in a plan; with `verdict`, why it is not converted."""

    container: str
    version: int | None
    era: str | None
    types: str
    architecture: str
    bytes_out: int
    bytes_beside: int
    memory: int
    grades: dict[str, int]
    outputs: list[PlannedFile]
    options: JSONObject
    lost: list[LossRecord]
    notes: list[str]
    verdict: NotRequired[str]
    reason: NotRequired[str]


class Converted(TypedDict, total=False):
    """The receipts of a job's outputs, and whether all of them existed; nothing where it was not to be done.

    `receipt_file`: the record of the receipt's own file, of a folder.
    """

    receipts: list[OutputReceipt]
    adopted: bool
    receipt_file: FileRecord | None


class Rechecked(TypedDict):
    """A finished output proved again: the line for people, and the findings."""

    line: str
    proof: Mapping[str, Any]
