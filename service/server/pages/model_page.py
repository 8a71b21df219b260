"""What the page of a model shows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from ggferry.service.server.pages.option_form import OptionForm
from ggferry.service.server.pages.views import ModelRow, Problem

if TYPE_CHECKING:
    from ggferry.converters.conversion.summary import OutputSummary
    from ggferry.service.library.answers import DroppedTensor
    from ggferry.service.server.work.outputs.output_files import Output


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
        archive: Of an output that is a folder, the address of all of it as one tar file.
        can_edit: Whether its files have keys that can be changed.
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
    archive: str = ""
    can_edit: bool = False
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
    def output_name(self) -> str:
        """Return the last name of its only output."""
        return os.path.basename(self.output)

    @property
    def receipt(self) -> str:
        """Return the address of its receipt."""
        return f"/api/v1/jobs/{quote(self.row.id, safe='')}/receipt"

    @property
    def assumed(self) -> tuple[Fact, ...]:
        """Return the hyper-parameters that nothing stated."""
        return tuple(fact for fact in self.hparams if fact.assumed)
