"""Convert one model from source to proven outputs: open, plan, write, read again, compare, publish, with receipts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

from ggferry.converters.conversion.kinds.gguf_plan import with_explicit_experts
from ggferry.converters.conversion.kinds.kind import PlannedOutput, Target
from ggferry.converters.conversion.plan import ConversionPlan, by_kind, check_request, plan_conversion
from ggferry.converters.conversion.request import MMPROJ, Naming, Request, folder_of, open_source_of, request_of
from ggferry.converters.conversion.target_size import with_target_size
from ggferry.converters.forward.device import computing_on
from ggferry.converters.metadata.beside import TEXT
from ggferry.converters.metadata.receipt_fields import OutputReceipt
from ggferry.converters.model_graph.computed_tensors import Computed
from ggferry.converters.model_graph.hparams import Known, Param
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.prequantized.dequantized_rows import Dequantized
from ggferry.converters.proof.compare import Proof
from ggferry.converters.proof.receipt import to_json, what_was_read
from ggferry.converters.proof.references.beside import Beside
from ggferry.converters.write.watch_weights import check_sums
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import CorruptError, UsageError, VerificationError
from ggferry.formats.files.digesting import begin, digesting, record
from ggferry.formats.files.digests import Record, without_blocks
from ggferry.formats.files.opened_files import Opened, recorded, unrecorded
from ggferry.formats.files.sources import known_by, wholes_of
from ggferry.formats.free_space import check_free_space
from ggferry.formats.packed.holding import holding
from ggferry.formats.packed.unpacking import unpacking
from ggferry.support.allocator import TRIMMED_FROM, trim_heap
from ggferry.support.progress import Phase, Stage, silent
from ggferry.support.records import dataclass
from ggferry.support.threads import workers

Approve = Callable[[OutputReceipt], None]
"""Called with the receipt of a proven output before it gets its name; what it raises ends the conversion."""


@dataclass(frozen=True, slots=True)
class Result:
    """A finished output.

    Attributes:
        kind: The name of its kind.
        path: The output file or folder; of several shards, the first.
        receipt: The receipt, as written.
        receipt_path: Where it is.
        lines: Three lines for people: what was read, what was written, how it was proved.
        paths: All output files.
        proof: The findings of the proof.
        assumed: The hparams for which a default was taken, by short name.
    """

    kind: str
    path: str
    receipt: OutputReceipt
    receipt_path: str
    lines: tuple[str, str, str]
    paths: tuple[str, ...]
    proof: Proof
    assumed: Mapping[str, Param]


def quantize_request(source: str, out: str, outtype: str, given: Mapping[str, Any], naming: Naming) -> Request:
    """Return the request that quantizes a GGUF file, keeping the source's byte order and alignment.

    Args:
        source: A GGUF file.
        out: The file or folder to write.
        outtype: The name of a recipe, such as 'q4_k_m', or several, separated by commas.
        given: Options by name, as for `request_of`.
        naming: How messages name options.

    Raises UsageError for another container, and what `request_of` raises.
    """
    request = replace(request_of(source, {**given, "outtype": outtype}, naming), out=out)
    checkpoint = open_checkpoint(source)
    checkpoint.close()
    if checkpoint.container != "gguf":
        raise UsageError("quantize takes GGUF files", path=source, found=checkpoint.container, hint="ggferry convert")
    options = replace(request.options, alignment=checkpoint.alignment, big_endian=checkpoint.big_endian)
    return replace(request, options=options)


def convert(request: Request, stage: Stage = silent, approve: Approve = lambda receipt: None) -> tuple[Result, ...]:
    """Convert one model to all outputs that are asked for: it is read and decoded once for all of them.

    Every output has the bytes and the receipt that a conversion of its own would have given it, and none gets its name
    before all are proved.

    Args:
        request: What to convert, and how.
        stage: Opens a progress display for each phase.
        approve: Called with the receipt of each proven output before any gets its name.

    Returns:
        The outputs in the order of `Request.outputs`.

    Raises one of `formats.errors`; then nothing is left but the source.
    """
    check_request(request)
    with recorded() as opened, computing_on(request.device), ExitStack() as stack:
        stack.enter_context(holding())
        stack.enter_context(unpacking(stage, folder_of(request)))
        source = open_source_of(request)
        stack.callback(source.close)
        opened.add_beside(source.sidecars.values())
        for adapter in source.adapters:
            opened.add_beside(adapter.checkpoint.sidecars.values())
        request = with_target_size(with_explicit_experts(request, source), source, stage)
        plan = plan_conversion(request, replace(source, files=digesting(source.files)))
        plan.check_names()
        with unrecorded():
            return run(plan, source, opened, stage, approve)


def run(
    plan: ConversionPlan,
    source: Checkpoint,
    opened: Opened,
    stage: Stage = silent,
    approve: Approve = lambda receipt: None,
) -> tuple[Result, ...]:
    """Write, read again, prove and publish what is planned.

    Args:
        plan: What to write.
        source: As its reader returned it.
        opened: The state of every source file when it was opened.
        stage: Opens a progress display for each phase.
        approve: As for `convert`.
    """
    outputs: Sequence[PlannedOutput] = plan.outputs
    with ExitStack() as stack:
        resumed = [output.kind.recover(output) for output in outputs]  # all, before any of them is claimed
        targets = [
            stack.enter_context(output.kind.target(output, opened.identities, any(resumed))) for output in outputs
        ]
        check_free_space(outputs[0].paths[0], sum(output.plan.bytes_written for output in outputs))
        beside = others_beside(outputs[0], source)
        stack.callback(beside.close)
        try:
            outputs = _write(outputs, targets, stage)
            proofs = prove(outputs, [target.partials[0] for target in targets], stage, beside)
        except (CorruptError, VerificationError):
            opened.check_unchanged()  # the likelier reason
            raise
        for target in targets:  # all, before one of them has its name
            target.flush()
        results = []
        for output, (proof, _), receipt in zip(outputs, proofs, receipts_of(outputs, proofs), strict=True):
            approve(receipt)
            results.append(_result(output, proof, receipt))
        opened.check_unchanged()
        texts = [to_json(result.receipt).encode("utf-8", "backslashreplace") for result in results]
        outputs[0].kind.publish(targets, texts)
    return tuple(results)


def others_beside(output: PlannedOutput, source: Checkpoint) -> Beside:
    """Begin what other programs do for a proof meanwhile; `source`: as its reader returned it."""
    request = output.request
    idle = request.level == "none" or request.to != "gguf"
    return Beside(source, output.plan.graph, output.tokenizer, idle=idle, vocab_only=request.options.vocab_only)


def _write(outputs: Sequence[PlannedOutput], targets: Sequence[Target], stage: Stage) -> list[PlannedOutput]:
    """Write the outputs; return them with the notes made on the way."""
    checkpoint, threads = outputs[0].plan.graph.checkpoint, workers(outputs[0].request.jobs)
    writers = [output.kind.writer(output, target) for output, target in zip(outputs, targets, strict=True)]
    groups = by_kind(outputs, writers)
    for kind, some, own in groups:
        kind.prefetch(some, own)
    sums = check_sums(checkpoint, stage, threads)
    begin(checkpoint.files)
    with stage(Phase.WRITING, sum(output.plan.bytes_written for output in outputs)) as progress:
        for kind, _, own in groups:
            kind.write(own, threads, progress)
    if sum(output.plan.bytes_written for output in outputs) >= TRIMMED_FROM:
        trim_heap()
    for target in targets:
        target.finish()
    return [output.kind.written(output, writer, sums) for output, writer in zip(outputs, writers, strict=True)]


def prove(
    outputs: Sequence[PlannedOutput], paths: Sequence[str], stage: Stage, beside: Beside | None = None
) -> list[tuple[Proof, list[Record]]]:
    """Read outputs again without knowledge of their plans, and compare them with the source.

    Args:
        outputs: The outputs of one conversion.
        paths: Where their bytes are now.
        stage: Opens a progress display for each phase.
        beside: What other programs do meanwhile.

    Returns the proof of each, and the records of its files, whose digests are taken while they are read. Raises
    VerificationError where they differ, and another of `formats.errors` for a file that cannot be read.
    """
    threads = workers(outputs[0].request.jobs)
    with ExitStack() as stack:
        opened = []
        for output, path in zip(outputs, paths, strict=True):
            opened.append(output.kind.reopen(output, path))
            stack.callback(opened[-1].close)
        begin(file for again in opened for file in again.files)
        groups = by_kind(outputs, opened)
        proofs = [proof for kind, some, own in groups for proof in kind.prove(some, own, stage, beside)]
        records = [files for kind, some, own in groups for files in kind.records(some, own, threads)]
        return list(zip(proofs, records, strict=True))


def receipts_of(outputs: Sequence[PlannedOutput], proofs: Sequence[tuple[Proof, list[Record]]]) -> list[OutputReceipt]:
    """Return the receipts of outputs that were proved together; of two files of one model, each names the other."""
    known: dict[int, Record] = {}
    found: list[OutputReceipt] = []
    for output, (proof, files) in zip(outputs, proofs, strict=True):
        receipt = output.kind.receipt(output, proof, files, source_records(output, known))
        is_mmproj = output.kind.name == MMPROJ
        others = [
            file
            for other, (_, records) in zip(outputs, proofs, strict=True)
            if (other.kind.name == MMPROJ) != is_mmproj
            for file in map(without_blocks, records)
        ]
        if others and is_mmproj:
            receipt = cast("OutputReceipt", {**receipt, TEXT: others})
        elif others:
            receipt = cast("OutputReceipt", {**receipt, MMPROJ: others})
        found.append(receipt)
    return found


def source_records(output: PlannedOutput, known: dict[int, Record]) -> list[Record]:
    """Return the source's files as a receipt names them; `known` keeps those that several outputs are made of.

    An archive is named once, however many files of it were read.
    """
    files = [file for file in output.plan.graph.checkpoint.files if not isinstance(file, Dequantized)]
    wholes = wholes_of(files)
    for file in wholes:
        if id(file) not in known:
            known[id(file)] = record(file, workers(output.request.jobs))
    return [known[id(file)] for file in wholes]


def _result(output: PlannedOutput, proof: Proof, receipt: OutputReceipt) -> Result:
    graph, kind = output.plan.graph, output.kind
    assumed = {name: param for name, param in graph.hparams.items() if param.known is Known.ASSUMED}
    lines = (_read_line(graph.checkpoint), kind.wrote_line(output), kind.proved_line(output, proof, receipt))
    place = kind.receipt_path(output)
    return Result(kind.name, output.paths[0], receipt, place, lines, kind.paths(output), proof, assumed)


def _read_line(checkpoint: Checkpoint) -> str:
    count = sum(not isinstance(file, Computed | Dequantized) for file in checkpoint.files)
    parts = f" ({count} files)" if count > 1 else ""
    return f"read     {known_by(checkpoint.path)}{parts}: {what_was_read(checkpoint)}"
