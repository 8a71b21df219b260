"""What the pages of a plan, of running work and of a new source show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from ggferry.service.records.fields import Usage
from ggferry.service.server.pages.option_form import OptionForm
from ggferry.service.server.pages.views import PER_PAGE, ModelRow, Problem, Progress

if TYPE_CHECKING:
    from ggferry.service.library.answers import DroppedTensor


@dataclass(frozen=True, slots=True)
class PlannedOutput:
    """An output of a line of a plan: where it would be, what, and its bytes."""

    output: str
    after: str
    bytes_out: int


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A line of a plan: what is there, and what would be.

    Attributes:
        source: Path or URL.
        verdict: 'convert', 'skip', 'duplicate', 'corrupt', … (`plan_file.VERDICTS`).
        before: What it is: 'GGJT v1, llama, Q4_0_V1 ×16, F32 ×5'.
        after: What it would be.
        output: Where that would be.
        reason: Why, where it is not converted.
        grades: Grade → number of tensors.
        lost: Tensors of which the output would hold nothing.
        notes: What a user should know.
        problem: Why it cannot be converted.
        id: Id of its job; with it the page loads what would become of each tensor.
        further: The other outputs, where it would be several.
    """

    source: str
    verdict: str
    before: str = ""
    after: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    output: str = ""
    reason: str = ""
    grades: Mapping[str, int] = field(default_factory=dict)
    lost: tuple[DroppedTensor, ...] = ()
    notes: tuple[str, ...] = ()
    problem: Problem | None = None
    id: str = ""
    further: tuple[PlannedOutput, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanPage:
    """A plan's page.

    Attributes:
        id: Its id at the server.
        roots: What was planned.
        dest: Where outputs go; '' for beside the sources.
        outtype: Type of the outputs.
        verify: Level of proof.
        counts: Verdict → number of models.
        bytes_in: Bytes of the models to convert.
        bytes_out: Bytes of their outputs.
        memory: Memory that a worker takes.
        models: Those on this page.
        verdict: Only this verdict is shown; '' for all.
        total: How many match.
        page: Number of the page, from 1.
        state: '' for a plan that was not run, 'making' while it is made, else 'submitted'.
        problem: Why it could not be made.
        form: Its options, to be changed.
        ladder: Of several types the bytes of each.
    """

    id: str
    roots: tuple[str, ...] = ()
    dest: str = ""
    outtype: str = "keep"
    verify: str = "full"
    counts: Mapping[str, int] = field(default_factory=dict)
    bytes_in: int = 0
    bytes_out: int = 0
    memory: int = 0
    models: tuple[PlannedModel, ...] = ()
    verdict: str = ""
    total: int = 0
    page: int = 1
    state: str = ""
    problem: Problem | None = None
    form: OptionForm | None = None
    ladder: tuple[tuple[str, int], ...] = ()

    @property
    def largest(self) -> int:
        """Return the most bytes that the table of types shows."""
        return max([self.bytes_in, *(size for _, size in self.ladder)])

    @property
    def pages(self) -> int:
        """Return how many pages the matching models take."""
        return max(1, -(-self.total // PER_PAGE))

    @property
    def converts(self) -> int:
        """Return how many models would be converted."""
        return self.counts.get("convert", 0)

    def url(self, page: int = 1, verdict: str | None = None) -> str:
        """Return the address of a page of it."""
        chosen = self.verdict if verdict is None else verdict
        pairs = {**({"verdict": chosen} if chosen else {}), **({"page": str(page)} if page > 1 else {})}
        return f"/plans/{quote(self.id, safe='')}" + (f"?{urlencode(pairs)}" if pairs else "")


# --- what is going on ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A job that waits: its number in the queue, and whether whoever looks may move it."""

    position: int
    model: ModelRow
    may_move: bool = False


@dataclass(frozen=True, slots=True)
class Activity:
    """The page of what is going on.

    Attributes:
        run: Everything together.
        active: The models at work.
        queued: How many wait.
        waiting: Bytes of work that these are.
        recent: Those that ended last.
        queue: The next of those that wait, in the order in which they will be converted.
    """

    run: Progress = field(default_factory=Progress)
    active: tuple[ModelRow, ...] = ()
    queued: int = 0
    waiting: int = 0
    recent: tuple[ModelRow, ...] = ()
    queue: tuple[QueueRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload; `received` of `bytes` are on disk.

    Attributes:
        is_option: Whether it is for an option, and no model.
        at: When it was begun.
        digests: Name and SHA-256 of each file, of what was received.
    """

    id: str
    name: str
    bytes: int
    received: int
    state: str = "receiving"
    problem: Problem | None = None
    is_option: bool = False
    at: float | None = None
    digests: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class AddPage:
    """The page where models are added.

    Attributes:
        roots: Folders of this machine that may be read.
        uploads: The uploads, the newest first.
        most: Largest upload in bytes; None: no limit.
        problem: Why the last request could not be carried out.
        path: What was typed in.
        form: The options.
        usage: How much room there is.
        hub: Whether the Hugging Face Hub can be searched.
    """

    roots: tuple[str, ...] = ()
    uploads: tuple[Upload, ...] = ()
    most: int | None = None
    problem: Problem | None = None
    path: str = ""
    form: OptionForm = field(default_factory=OptionForm)
    usage: Usage = field(default_factory=lambda: Usage(used=0, quota=0, disk_free=0, disk_total=0))
    hub: bool = False
