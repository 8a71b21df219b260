"""GGUF files of a model: one type each, all of them made in one pass over the source."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from ggferry.converters.conversion.kinds.gguf_plan import plan_of, tokenizer_of, understood
from ggferry.converters.conversion.kinds.kept_models import compared
from ggferry.converters.conversion.kinds.kind import (
    OF_FOLDERS,
    PlannedOutput,
    check_options,
    check_with_references,
    depth_of,
)
from ggferry.converters.conversion.options import OPTIONS, outtypes
from ggferry.converters.conversion.receipt_options import declared_options
from ggferry.converters.conversion.request import GGUF, OutputSpec, Request
from ggferry.converters.conversion_plan.output_metadata import output_name
from ggferry.converters.conversion_plan.steps import Plan, with_set_digest
from ggferry.converters.forward.weights import prepare
from ggferry.converters.metadata.beside import RECEIPT
from ggferry.converters.metadata.file_names import shard_label
from ggferry.converters.metadata.receipt_fields import OutputReceipt, Receipt, TokenizerRecord
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof import receipt as receipts
from ggferry.converters.proof.compare import Case, Proof, compare_outputs, of_texts, prefetch_comparing
from ggferry.converters.proof.metadata import check_metadata
from ggferry.converters.proof.references.beside import Beside
from ggferry.converters.proof.second_reader.declared_keys import check_declared
from ggferry.converters.proof.tensors import Encoding, Sides
from ggferry.converters.proof.vocabulary import Vocabularies, check_tokenizer
from ggferry.converters.reranking.recognize import rerank_template
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.converters.understand import understand
from ggferry.converters.write.feedback_pass import write_with_feedback
from ggferry.converters.write.output_files import OutputSet
from ggferry.converters.write.recovery import recover
from ggferry.converters.write.watch_weights import Watch
from ggferry.converters.write.write_tensors import Writing, prefetch_writing, steps_in_order, write_tensors
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.files.digesting import digesting, record
from ggferry.formats.files.digests import Record
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.opened_files import Identity
from ggferry.formats.files.publication import publish
from ggferry.formats.files.sources import Source
from ggferry.formats.gguf.shards import shard_of
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.support.interrupts import interrupts_wait
from ggferry.support.progress import Progress, Stage
from ggferry.support.threads import each

_CLIP = "clip."
"""Begins the keys of an mmproj file."""


class GgufKind:
    """GGUF files of a text model."""

    name = GGUF
    takes: Collection[str] = frozenset(option.name for option in OPTIONS) - OF_FOLDERS
    of_adapters = False

    @property
    def outtypes(self) -> Sequence[str]:
        """All types and mixtures."""
        return outtypes()

    def check(self, request: Request) -> None:
        """Raise UsageError for an option that only folders have."""
        check_options(request, self.takes)

    def plan(self, request: Request, specs: Sequence[OutputSpec], checkpoint: Checkpoint) -> list[PlannedOutput]:
        """Understand the source once, and plan an output for every type that is asked for."""
        if not specs:
            return []
        requests = [text_request(request.of_output(spec)) for spec in specs]
        source = understood(requests[0], checkpoint)
        planned = (self._planned(one, plan_of(one, source), source.tokenizer) for one in requests)
        return [replace(one, known=source) for one in planned]

    def _planned(self, request: Request, plan: Plan, tokenizer: Tokenizer | None) -> PlannedOutput:
        return PlannedOutput(self, request, plan, tokenizer, output_paths(request, plan))

    def describe(self, output: PlannedOutput) -> JSONObject:
        """Return the record of every tensor, the keys with their origins, notes and totals."""
        return plan_in(output).as_dict()

    # --- writing ---------------------------------------------------------------------------------------------------

    def recover(self, output: PlannedOutput) -> bool:
        """Finish or undo a publication that was killed."""
        return recover(output.paths[0]) == "finished"

    def target(
        self, output: PlannedOutput, sources: Mapping[Identity, str], same: bool
    ) -> AbstractContextManager[OutputSet]:
        """Claim the names of the shards and the receipt."""
        layouts, force = plan_in(output).layouts, output.request.force
        shards = len(layouts) > 1
        return OutputSet(output.paths, layouts, overwrite=force, sources=sources, same=same, digested=shards)

    def writer(self, output: PlannedOutput, target: OutputSet) -> Writing:
        """Return the plan with its files and what inspects the values."""
        plan = plan_in(output)
        return Writing(plan, target, Watch(plan.graph.checkpoint, output.request.options.allow_nonfinite))

    def write(self, writers: Sequence[Writing], threads: int, progress: Progress) -> None:
        """Write the tensors of all outputs, and take the digest of all tensors into the headers of shards."""
        for writer in writers:
            if writer.plan.calibration:
                write_with_feedback(writer, threads, progress)
        write_tensors(writers, threads, progress)
        for writer in writers:
            if shards := _shards(writer):
                shards.lay_out_again(with_set_digest(writer.plan, shards.digest()).layouts)

    def written(self, output: PlannedOutput, writer: Writing, notes: Sequence[str]) -> PlannedOutput:
        """Return the output with the notes of writing, and the fingerprints of what was encoded."""
        plan = plan_in(output)
        plan = replace(plan, notes=(*plan.notes, *notes, *writer.watch.notes()))
        if shards := _shards(writer):
            plan = with_set_digest(plan, shards.digest())
        request = output.request
        if writer.watch.not_finite and request.level == "full":  # a forward pass with NaN proves nothing
            request = replace(request, level="fast")
        return replace(output, plan=plan, request=request, marks=writer.marks)

    def prefetch(self, outputs: Sequence[PlannedOutput], writers: Sequence[Writing]) -> None:
        """Load codecs, and what a forward pass needs, in the order in which they will be used."""
        prefetch_writing(writers)
        for output in outputs:
            if output.request.level != "none":
                steps = steps_in_order(plan_in(output))
                prefetch_comparing((step.source_type, step.type, step.elements) for step in steps)
        for output in outputs:
            if output.request.level == "full" and output.plan.graph.architecture.recipe:
                prepare(output.plan.graph)

    # --- proof -----------------------------------------------------------------------------------------------------

    def reopen(self, output: PlannedOutput, path: str) -> Checkpoint:
        """Open the file at `path` and check that its header is the planned one."""
        again = open_checkpoint(Named(path))
        try:
            self.check_header(output, again)
        except BaseException:
            again.close()
            raise
        return replace(again, files=digesting(again.files, blocks=True))

    def check_header(self, output: PlannedOutput, again: Checkpoint) -> None:
        """Raise VerificationError for a key that is not the plan's."""
        check_metadata(plan_in(output), again)

    def new_check(self) -> VocabularyCheck:
        """Return what compares the vocabularies of outputs of one source."""
        return _VocabularyCheck()

    def prove(
        self, outputs: Sequence[PlannedOutput], opened: Sequence[Checkpoint], stage: Stage, beside: Beside | None
    ) -> list[Proof]:
        """Compare accounting, keys, tensors, vocabulary and logits with the source."""
        vocabulary, request = self.new_check(), outputs[0].request
        cases = [vocabulary.case(output, again) for output, again in zip(outputs, opened, strict=True)]
        if request.level == "none":
            return [Proof("none", (), {}, None, case.tokenizer, testimonies=of_texts(case.tokenizer)) for case in cases]
        found = compare_outputs(cases, jobs=request.jobs, stage=stage)
        if beside is not None:
            found = self._with_others(found, opened, beside)
        return [
            check_with_references(proof, case.sides.source, case.sides.output, output.request, stage)
            for output, case, proof in zip(outputs, cases, found, strict=True)
        ]

    def _with_others(self, found: Sequence[Proof], opened: Sequence[Checkpoint], beside: Beside) -> list[Proof]:
        """Return the proofs with what other programs found of the source and of the chat template."""
        second, chats = beside.reading(), beside.conversations(opened[0])
        return [replace(proof, second_reader=second, testimonies=(*proof.testimonies, *chats)) for proof in found]

    def records(
        self, outputs: Sequence[PlannedOutput], opened: Sequence[Checkpoint], threads: int
    ) -> list[list[Record]]:
        """Return the digests of the files, taken of the bytes that the proof has read, and side by side of the rest."""
        files = [file for again in opened for file in again.files]
        found: dict[int, Record] = {}

        def add(file: Source) -> None:
            found[id(file)] = record(file, max(1, threads // len(files)))

        each(files, add, min(threads, len(files)))
        return [
            [{**found[id(file)], "name": os.path.basename(path)} for file, path in zip(again.files, paths, strict=True)]
            for again, paths in zip(opened, (output.paths for output in outputs), strict=True)
        ]

    def receipt(
        self, output: PlannedOutput, proof: Proof, files: Sequence[Record], source: Sequence[Record]
    ) -> Receipt:
        """Return what every tensor and key was made of, and what was proved."""
        done = declared_options(replace(output.request, level=proof.level), adapter=self.of_adapters)
        return receipts.make_receipt(plan_in(output), proof, files, source, done)

    def receipt_path(self, output: PlannedOutput) -> str:
        """Return the first file's name with the ending of receipts."""
        return output.paths[0] + RECEIPT

    def paths(self, output: PlannedOutput) -> tuple[str, ...]:
        """Return the shards."""
        return output.paths

    def wrote_line(self, output: PlannedOutput) -> str:
        """Name the file, the architecture, the tensors and their types."""
        plan, paths = plan_in(output), output.paths
        more = f" and {len(paths) - 1} more" if paths[1:] else ""
        kinds = ", ".join(dict.fromkeys(f"{step.type}" for step in plan.steps)) or "vocabulary only"
        return (
            f"wrote    {paths[0]}{more}: GGUF v3, {plan.graph.architecture.name}, {len(plan.steps)} tensors ({kinds}), "
            f"{plan.bytes_written:,} bytes"
        )

    def proved_line(self, output: PlannedOutput, proof: Proof, receipt: OutputReceipt) -> str:
        """Say what was compared, and whether llama.cpp loads the file."""
        return receipts.line_of(proof) + receipts.in_llama_cpp(receipt, plan_in(output))

    def publish(self, targets: Sequence[OutputSet], receipts: Sequence[bytes]) -> None:
        """Give all files their names together, or none."""
        with interrupts_wait():
            pairs = zip(reversed(targets), reversed(receipts), strict=True)
            publish([target.complete(text) for target, text in pairs])


class VocabularyCheck(Protocol):
    """The comparison of the vocabulary, which outputs of one source share where they hold the same."""

    def case(self, output: PlannedOutput, again: Checkpoint) -> Case:
        """Return what is to be compared for an output that was opened again; its vocabulary is compared here."""
        ...


class _VocabularyCheck:
    """That of GGUF files."""

    def __init__(self) -> None:
        self._read: Tokenizer | None = None
        self._found: TokenizerRecord | None = None

    def case(self, output: PlannedOutput, again: Checkpoint) -> Case:
        """Return what is to be compared for an output that was opened again; its vocabulary is compared here."""
        request, plan = output.request, plan_in(output)
        graph = understand(again, vocab_only=request.options.vocab_only)
        read = tokenizer_of(graph, again, Request(again.path))
        if self._found is None or self._read != read:
            sides = Vocabularies(output.tokenizer, read, plan.graph.checkpoint, request.vocab)
            self._read, self._found = (
                read,
                compared(output.known, read, request, lambda: check_tokenizer(sides, again.path, depth_of(request))),
            )
        if not graph.architecture.projector:
            check_declared(
                plan.graph.checkpoint, again, request.vocab, request.metadata, template=rerank_template(plan.graph)
            )
        encoding = Encoding(
            plan.imatrix,
            plan.options.rounding,
            ours=True,
            marks=output.marks,
            any_error=request.allow_quantization_error,
        )
        return Case(Sides(plan.graph, graph, encoding), request.level, self._found)


def _shards(writer: Writing) -> OutputSet | None:
    """Return the files that a plan is written to where they are several; None for one."""
    output = writer.output
    return output if isinstance(output, OutputSet) and len(output.paths) > 1 else None


def plan_in(output: PlannedOutput) -> Plan:
    """Return the plan of GGUF files."""
    assert isinstance(output.plan, Plan)
    return output.plan


def text_request(request: Request) -> Request:
    """Return the request without the values that are for the mmproj file."""
    return replace(request, hparams={key: text for key, text in request.hparams.items() if not key.startswith(_CLIP)})


def mmproj_hparams(request: Request) -> dict[str, str]:
    """Return the values that are for the mmproj file."""
    return {key: text for key, text in request.hparams.items() if key.startswith(_CLIP)}


def output_paths(request: Request, plan: Plan) -> tuple[str, ...]:
    """Return the paths of the output files.

    They are as the request names them, or else follow the naming convention, in the folder it names or that of the
    source. The name of several shards may be that of the first of so many, as plans have it.
    """
    out, count = request.out, len(plan.layouts)
    labels = [shard_label(number, count) for number in range(1, count + 1)] if count > 1 else [None]
    if out is None or os.path.isdir(out):
        folder = out or os.path.dirname(os.path.abspath(request.source))
        start = "mtp-" if request.mtp_only else ""  # as convert_hf_to_gguf.py --mtp
        return tuple(os.path.join(folder, start + output_name(plan.metadata, plan.options, label)) for label in labels)
    shard = shard_of(os.path.basename(out))
    first = count > 1 and shard is not None and out == f"{_stem_of(out)}-{labels[0]}.gguf"
    stem = _stem_of(out) if first else out.removesuffix(".gguf")
    return tuple(f"{stem}-{label}.gguf" if label else out for label in labels)


def _stem_of(out: str) -> str:
    """Return the path of a shard without its number."""
    shard = shard_of(os.path.basename(out))
    return os.path.join(os.path.dirname(out), shard.stem) if shard is not None else out
