"""What the templates show: plain frozen records, so that a page can be made and tested without a server.

Texts in them are untrusted (names of files and tensors, metadata, messages); the templates' environment escapes them.
Sizes are bytes, times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from ggferry.service.records.fields import Usage
from ggferry.service.server.pages import wording
from ggferry.service.server.pages.option_form import OptionForm

if TYPE_CHECKING:
    from ggferry.converters.conversion.summary import OutputSummary
    from ggferry.service.library.answers import DroppedTensor
    from ggferry.service.server.store.models import Folder
    from ggferry.service.server.work.outputs.output_files import Output

PER_PAGE = 50
SORTS = ("name", "state", "container", "architecture", "before", "after", "changed")
ACTIVE = ("queued", "running", "verifying")


@dataclass(frozen=True, slots=True)
class Shell:
    """What every page has around its content.

    Attributes:
        section: The entry of the navigation that is lit.
        version: Version of the server.
        csrf: The token that forms send back; empty where nobody is signed in.
        may_submit: Whether whoever is signed in may add models and run plans.
        may_manage: Whether they may use the server's administration.
        active: How many jobs are at work or waiting.
    """

    section: str = "archive"
    version: str = ""
    csrf: str = ""
    may_submit: bool = True
    may_manage: bool = False
    active: int = 0


@dataclass(frozen=True, slots=True)
class Provider:
    """The OpenID provider by which people sign in; `sign_out`: its address that ends its own session."""

    name: str
    sign_out: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as a person reads it.

    Attributes:
        message: What is wrong.
        code: The stable word of it (`formats.errors`).
        path: File it was found in.
        offset: Byte offset in it.
        found: What stood there.
        expected: What should have.
        hint: What to do.
        fault: Where the cause lies (`formats.errors.Fault`).
        status: HTTP status, where it ends a request.
    """

    message: str
    code: str = ""
    path: str | None = None
    offset: int | None = None
    found: str | None = None
    expected: str | None = None
    hint: str | None = None
    fault: str = "person"
    status: int | None = None

    @property
    def advice(self) -> str:
        """Return what to do about it."""
        return wording.advice(self.code, self.fault, self.hint)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job or a run is.

    Attributes:
        phase: What is being done (`support.progress.Phase`).
        done: Bytes done.
        total: Bytes in all; 0 where not known.
        rate: Bytes a second.
        eta: Seconds left; None where not known.
    """

    phase: str = ""
    done: int = 0
    total: int = 0
    rate: float = 0.0
    eta: float | None = None


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model in the archive's table.

    Attributes:
        id: Id of its job.
        source: Path or URL.
        container: Its label with the version, 'GGJT v1'.
        architecture: As GGUF names it.
        era: When and by what it was written.
        types: Types of its tensors.
        bytes_in: Size of the source.
        bytes_out: Size of the output; of the plan, where it is not written yet; None where nothing is known.
        reason: Why it is not converted, in one line.
        changed: When its state changed.
        progress: How far it is, while it is worked on.
        place: What is shown for its folder, where that is one of the server's own.
        asked_by: Name of the token that asked for it.
        asked: When that was.
        started: When the last attempt began.
        finished: When it ended.
    """

    id: str
    source: str
    state: str
    container: str = ""
    architecture: str = ""
    era: str = ""
    types: str = ""
    bytes_in: int = 0
    bytes_out: int | None = None
    reason: str = ""
    changed: float | None = None
    progress: Progress | None = None
    place: str = ""
    asked_by: str = ""
    asked: float | None = None
    started: float | None = None
    finished: float | None = None

    @property
    def took(self) -> float | None:
        """Return how many seconds the last attempt took; None where it has not ended."""
        if self.started is None or self.finished is None or self.state in ACTIVE:
            return None
        return max(0.0, self.finished - self.started)

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.source.rstrip("/").rpartition("/")[2] or self.source

    @property
    def folder(self) -> str:
        """Return what stands before the name."""
        return self.source.rstrip("/").rpartition("/")[0]

    @property
    def when(self) -> str:
        """Return the era without the programs of it."""
        return self.era.partition(" (")[0]

    @property
    def beside(self) -> str:
        """Return the address of the tree's folder that it is in."""
        return ArchiveAddress(tree=True, under=self.folder).url


@dataclass(frozen=True, slots=True)
class ArchiveAddress:
    """What of the archive a page shows, as the address of the page says it.

    Attributes:
        text: Words that the path holds.
        states: Only these; () for all.
        container: Only this, by its label.
        architecture: Only this.
        era: Only this.
        sort: One of `SORTS`.
        descending: Whether the last comes first.
        page: Number of the page, from 1.
        tree: Whether the archive is shown as a tree.
        under: Folder of the tree that is open.
    """

    text: str = ""
    states: tuple[str, ...] = ()
    container: str = ""
    architecture: str = ""
    era: str = ""
    sort: str = "name"
    descending: bool = False
    page: int = 1
    tree: bool = False
    under: str = ""

    @property
    def narrowed(self) -> bool:
        """Return whether it leaves anything out."""
        return bool(self.text or self.states or self.container or self.architecture or self.era)

    @property
    def url(self) -> str:
        """Return the address of the page that shows this."""
        pairs: list[tuple[str, str]] = [("state", state) for state in self.states]
        texts = {"q": self.text, "container": self.container, "architecture": self.architecture, "era": self.era}
        pairs += [(key, value) for key, value in texts.items() if value]
        if self.sort != "name" or self.descending:
            pairs.append(("sort", f"-{self.sort}" if self.descending else self.sort))
        if self.tree:
            pairs.append(("view", "tree"))
        if self.under:
            pairs.append(("under", self.under))
        if self.page > 1:
            pairs.append(("page", str(self.page)))
        return f"/?{urlencode(pairs)}" if pairs else "/"

    def sorted_by(self, key: str) -> ArchiveAddress:
        """Return the query of a click on the head of a column."""
        return replace(self, sort=key, descending=self.sort == key and not self.descending, page=1)

    def only(self, state: str) -> ArchiveAddress:
        """Return the query with one state switched on or off."""
        states = tuple(s for s in self.states if s != state) if state in self.states else (*self.states, state)
        return replace(self, states=states, page=1)

    def but(self, **changes: Any) -> ArchiveAddress:
        """Return the query with changes."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive's page.

    Attributes:
        query: What was asked for.
        rows: The models on this page.
        total: How many models match.
        models: How many there are in all.
        counts: State → number of all models.
        containers: The labels to choose from, likewise `architectures` and `eras`.
        bytes_before: Bytes of the sources whose outputs are proved.
        bytes_after: Bytes of those outputs.
        folders: Folders of the open folder of the tree.
        roots: Places that models are read from.
    """

    query: ArchiveAddress
    rows: tuple[ModelRow, ...] = ()
    total: int = 0
    models: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    containers: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    eras: tuple[str, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    folders: tuple[Folder, ...] = ()
    roots: tuple[str, ...] = ()

    @property
    def pages(self) -> int:
        """Return how many pages the matching models take."""
        return max(1, -(-self.total // PER_PAGE))

    @property
    def first(self) -> int:
        """Return the number of the first row shown, from 1."""
        return (self.query.page - 1) * PER_PAGE + 1

    def address(self, page: int) -> str:
        """Return the address of a page of the same models."""
        return replace(self.query, page=page).url

    @property
    def crumbs(self) -> tuple[tuple[str, str], ...]:
        """Return (name, path) of the open folder of the tree and of those above it, the outermost first."""
        found, path = [], ""
        for part in filter(None, self.query.under.split("/")):
            path = f"{path}/{part}" if path or self.query.under.startswith("/") else part
            found.append((part, path))
        return tuple(found)


# --- a model -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fact:
    """A value with a name: of a header, a hyper-parameter, a key of the output.

    Attributes:
        origin: Where the value came from.
        assumed: Whether nothing stated it.
    """

    name: str
    value: str
    origin: str = ""
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class TensorRow:
    """A tensor.

    Attributes:
        name: Name in the output, or in the source where there is no output yet.
        sources: Names in the source.
        shape: Elements along each axis, outermost first.
        source_type: Block type in the source.
        type: Block type in the output; '' where there is none yet.
        bytes_in: Bytes in the source; None where not known.
        bytes_out: Bytes in the output.
        grade: How exactly it was kept.
        route: How it was made.
        why: The reason for its type.
        relative_rms: Relative RMS error; None where nothing was measured.
        max_error: Largest absolute error.
        outlier: Whether it lost more than its type explains.
    """

    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    source_type: str
    type: str = ""
    bytes_in: int | None = None
    bytes_out: int | None = None
    grade: str = ""
    route: str = ""
    why: str = ""
    relative_rms: float | None = None
    max_error: float | None = None
    outlier: bool = False


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far apart two sides of a comparison were.

    Attributes:
        who: Who computed the other side.
        what: What was compared.
        worst: Relative RMS; None where it is equal or not.
        limit: The most that is allowed.
        detail: What else there is to say.
        absent: Why nothing was compared.
    """

    who: str
    what: str
    worst: float | None = None
    limit: float | None = None
    detail: str = ""
    absent: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proved of an output.

    Attributes:
        level: 'full', 'fast' or 'none'.
        agreements: The comparisons, our own first.
        top1: Share of positions with the same most likely token.
        texts: Number of texts encoded by both tokenizers.
        texts_equal: Number of those with the same tokens.
        vocabulary: Number of tokens in the vocabulary.
        grades: Grade → number of tensors.
        reached: What the prompts exercised, likewise `missed`.
        alone: Whether no other program was compared.
    """

    level: str
    agreements: tuple[Agreement, ...] = ()
    top1: float | None = None
    texts: int = 0
    texts_equal: int = 0
    vocabulary: int | None = None
    grades: Mapping[str, int] = field(default_factory=dict)
    reached: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a job."""

    number: int
    outcome: str
    started: float | None
    ended: float | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class TensorPage:
    """The tensors of a model that are shown, and which those are.

    Attributes:
        rows: The tensors of this page.
        total: How many match.
        number: Number of the page, from 1.
        pages: How many there are.
        text: Words that the names hold.
    """

    rows: tuple[TensorRow, ...] = ()
    total: int = 0
    number: int = 1
    pages: int = 1
    text: str = ""


@dataclass(frozen=True, slots=True)
class ModelPage:
    """A model's page: everything about one model, whatever its state.

    Attributes:
        row: The model as the archive shows it.
        sentence: What it is.
        output: Path or URL of the output.
        problem: Why it could not be converted, or not be read.
        header: The header as found.
        hparams: Hyper-parameters with their origins.
        keys: The keys of the output with their origins.
        tensors: Its tensors.
        shown: Those of them that the table shows.
        dropped: What is not copied.
        notes: What a user should know.
        proof: None where there is none yet.
        files: Files of the output.
        ratings: Of several outputs the numbers of each.
        attempts: The attempts so far.
        runtimes: Programs that run the output.
        has_vocabulary: Whether texts can be tried.
        same_as: Source of the model with the same content.
        same_job: Id of its job.
        can_retry: Whether it can be tried again.
        can_cancel: Whether it can be canceled.
        facts_problem: Why the source could not be looked into.
        is_looked_at: Whether what the source holds is in here; else the page loads it later.
        can_delete: Whether whoever looks may delete it.
        form: The options it was, or would be, converted with; None where it cannot be planned.
    """

    row: ModelRow
    sentence: str = ""
    output: str = ""
    problem: Problem | None = None
    header: tuple[Fact, ...] = ()
    hparams: tuple[Fact, ...] = ()
    keys: tuple[Fact, ...] = ()
    tensors: tuple[TensorRow, ...] = ()
    shown: TensorPage = field(default_factory=TensorPage)
    dropped: tuple[DroppedTensor, ...] = ()
    notes: tuple[str, ...] = ()
    proof: Proof | None = None
    files: tuple[Output, ...] = ()
    ratings: tuple[OutputSummary, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    runtimes: tuple[str, ...] = ()
    has_vocabulary: bool = False
    same_as: str = ""
    same_job: str = ""
    can_retry: bool = False
    can_cancel: bool = False
    facts_problem: Problem | None = None
    is_looked_at: bool = True
    can_delete: bool = False
    form: OptionForm | None = None

    def address(self, page: int) -> str:
        """Return the address of a page of the tensors."""
        pairs = {**({"tensor": self.shown.text} if self.shown.text else {}), "tensors": str(page)}
        return f"/models/{quote(self.row.id, safe='')}?{urlencode(pairs)}#tensors"

    @property
    def is_proved(self) -> bool:
        """Return whether its output was compared with the source."""
        proof = self.proof
        return proof is not None and proof.level != "none" and bool(proof.grades or proof.texts)

    @property
    def outcome(self) -> str:
        """Return what became of it, in words, where its state does not say it all."""
        if self.row.state != "done" or self.proof is None:
            return ""
        return "proved" if self.is_proved else "converted, not proved"

    @property
    def receipt(self) -> str:
        """Return the address of its receipt."""
        return f"/api/v1/jobs/{quote(self.row.id, safe='')}/receipt"

    @property
    def assumed(self) -> tuple[Fact, ...]:
        """Return the hyper-parameters that nothing stated."""
        return tuple(fact for fact in self.hparams if fact.assumed)


# --- a plan --------------------------------------------------------------------------------------------------------


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
