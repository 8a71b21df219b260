"""What every kind of output has: its part of the plan, the writing, the proof and the receipt."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

from ggferry.converters.conversion.kinds.kept_models import Understood
from ggferry.converters.conversion.options import OPTIONS
from ggferry.converters.conversion.request import GGUF, OutputSpec, Request
from ggferry.converters.conversion_plan.steps import Plan
from ggferry.converters.hf_export.plan import FolderPlan
from ggferry.converters.metadata.beside import FOLDER_FORMATS
from ggferry.converters.metadata.receipt_fields import OutputReceipt
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.compare import Proof
from ggferry.converters.proof.references.beside import Beside
from ggferry.converters.proof.references.examine import chosen, examine
from ggferry.converters.proof.references.llama_cpp_texts import testify
from ggferry.converters.proof.vocabulary import Depth
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UsageError
from ggferry.formats.files.digests import Record
from ggferry.formats.files.opened_files import Identity
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.quant.fingerprints import Fingerprints
from ggferry.support.progress import Progress, Stage
from ggferry.support.records import dataclass


@dataclass(frozen=True, slots=True)
class PlannedOutput:
    """An output as it will be written.

    Attributes:
        kind: What it is.
        request: The request for this output alone.
        plan: What happens to every tensor.
        tokenizer: The source's vocabulary; None where none is written.
        paths: The output's files; of a folder, the folder.
        marks: Of what was encoded, once it was written.
        known: What is known of the source, of a text model.
    """

    kind: OutputKind
    request: Request
    plan: Plan | FolderPlan
    tokenizer: Tokenizer | None
    paths: tuple[str, ...]
    marks: Fingerprints | None = None
    known: Understood | None = None


class Target(Protocol):
    """The files of an output until they get their names."""

    @property
    def partials(self) -> tuple[str, ...]:
        """The paths of the bytes until they are published; of a folder, the folder."""

    def finish(self) -> None:
        """Finish what was written."""

    def flush(self) -> None:
        """Wait until everything is on disk."""


class OutputKind(Protocol):
    """A kind of output. Methods on several outputs take those of one conversion and of this kind.

    Attributes:
        name: As in `OutputSpec`.
        takes: The options of `convert` that mean something for it.
        outtypes: The values of --outtype that it takes, as they are listed for people.
    """

    name: str
    takes: Collection[str]

    @property
    def outtypes(self) -> Sequence[str]: ...

    def check(self, request: Request) -> None:
        """Raise UsageError for an option that this kind does not take."""

    def plan(self, request: Request, specs: Sequence[OutputSpec], checkpoint: Checkpoint) -> list[PlannedOutput]:
        """Return what will be written, without reading tensor data. Raises one of `formats.errors`."""

    def describe(self, output: PlannedOutput) -> JSONObject:
        """Return a planned output as plain data, for JSON."""

    def recover(self, output: PlannedOutput) -> bool:
        """Finish or undo what a killed run left at the output's names; return whether there was something to finish."""

    def target(
        self, output: PlannedOutput, sources: Mapping[Identity, str], same: bool
    ) -> AbstractContextManager[Target]:
        """Claim the names of an output.

        Args:
            output: The output.
            sources: Files that must not be replaced.
            same: Whether files that exist with exactly the bytes that are written are no error.
        """

    def writer(self, output: PlannedOutput, target: Any) -> Any:
        """Return what writes the output's tensors."""

    def write(self, writers: Sequence[Any], threads: int, progress: Progress) -> None:
        """Write the tensors of several outputs, each read and decoded once."""

    def written(self, output: PlannedOutput, writer: Any, notes: Sequence[str]) -> PlannedOutput:
        """Return the output with what writing has told of it, and further notes."""

    def prefetch(self, outputs: Sequence[PlannedOutput], writers: Sequence[Any]) -> None:
        """Load in the background what writing and proving will need."""

    def reopen(self, output: PlannedOutput, path: str) -> Checkpoint:
        """Open what was written like any unknown file. Raises VerificationError where it is not what was planned."""

    def prove(
        self, outputs: Sequence[PlannedOutput], opened: Sequence[Checkpoint], stage: Stage, beside: Beside | None
    ) -> list[Proof]:
        """Compare what was written with the source. Raises VerificationError."""

    def records(
        self, outputs: Sequence[PlannedOutput], opened: Sequence[Checkpoint], threads: int
    ) -> list[list[Record]]:
        """Return for each output the digests of its files, which `opened` has read."""

    def receipt(
        self, output: PlannedOutput, proof: Proof, files: Sequence[Record], source: Sequence[Record]
    ) -> OutputReceipt:
        """Return the receipt as plain data; `files`, `source`: the records of the output's and the source's files."""

    def receipt_path(self, output: PlannedOutput) -> str:
        """Return where the receipt is written."""

    def paths(self, output: PlannedOutput) -> tuple[str, ...]:
        """Return all files of the output."""

    def wrote_line(self, output: PlannedOutput) -> str:
        """Return the line that tells a person what was written."""

    def proved_line(self, output: PlannedOutput, proof: Proof, receipt: OutputReceipt) -> str:
        """Return the line that tells a person how it was proved."""

    def publish(self, targets: Sequence[Any], receipts: Sequence[bytes]) -> None:
        """Give all outputs of a conversion, with their receipts, their names."""


OF_FOLDERS = {"dtype", "max_shard_size"}
"""The options of `convert` that only folders take."""


def check_options(request: Request, takes: Collection[str]) -> None:
    """Raise UsageError for an option of `convert` that is given and is none of those that a kind of output takes."""
    default = Request(request.source)
    for option in OPTIONS:
        if "convert" in option.commands.split() and option.target and option.name not in takes:
            holder, _, key = option.target.rpartition(".")
            given, plain = ((getattr(one, holder) if holder else one) for one in (request, default))
            if getattr(given, key) != getattr(plain, key):
                formats = " or ".join(FOLDER_FORMATS) if option.name in OF_FOLDERS else GGUF
                raise UsageError(f"{option.flag} is for --to {formats}")


def check_with_references(
    proof: Proof, source: ModelGraph, output: ModelGraph, request: Request, stage: Stage
) -> Proof:
    """Return the proof with the findings of the requested reference implementations, where logits were computed.

    Raises VerificationError where one of them contradicts.
    """
    names = chosen(request.witness)
    if not names or proof.logits is None:
        return proof
    found = examine(source, output, names, request.jobs, stage)
    return replace(proof, testimonies=(*proof.testimonies, *found, *testify(output, found)))


def depth_of(request: Request) -> Depth:
    """Return how much of the vocabulary a proof of this request's level encodes."""
    return Depth(pieces=request.level == "full", own=tuple(request.text.split("\n")) if request.text else ())
