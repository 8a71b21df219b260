"""Convert one file from source to proven GGUF: open, understand, plan, write, re-read, verify, publish, receipt."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ggferry.converters.adapters.plan import AdapterPlan
from ggferry.converters.adapters.prove import prove_adapter
from ggferry.converters.conversion.outputs import Rung, check_rungs, halves, rungs_of
from ggferry.converters.conversion.plan import tokenizer_of
from ggferry.converters.conversion.request import Naming, open_source_of, request_of, stated_options
from ggferry.converters.conversion.request import Request as Request
from ggferry.converters.conversion_plan.steps import Plan
from ggferry.converters.forward.device import computing_on
from ggferry.converters.forward.weights import prepare
from ggferry.converters.metadata.beside import SECOND, TEXT
from ggferry.converters.model_graph.computed_tensors import Computed
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.hparams import Known, Param
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.prequantized.dequantized_rows import Dequantized
from ggferry.converters.proof import receipt as receipts
from ggferry.converters.proof.compare import Case, Proof, expect_comparing, of_texts, verify_together
from ggferry.converters.proof.metadata import check_metadata
from ggferry.converters.proof.references.beside import Beside
from ggferry.converters.proof.references.examine import chosen, examine
from ggferry.converters.proof.references.llama_cpp_texts import testify
from ggferry.converters.proof.second_reader.stated_keys import check_stated
from ggferry.converters.proof.tensors import Encoding, Sides
from ggferry.converters.proof.vocabulary import Depth, Vocabularies, check_tokenizer
from ggferry.converters.reranking.recognize import asked_with
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.converters.understand import CLIP, understand
from ggferry.converters.write.output_files import OutputSet
from ggferry.converters.write.recovery import recover
from ggferry.converters.write.watch_weights import Watch, check_sums
from ggferry.converters.write.write_tensors import Writing, expect_writing, run_together, steps_in_order
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import CorruptError, RefusedError, UsageError, VerificationError
from ggferry.formats.files.digests import Record
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.opened_files import Opened, recorded, unrecorded
from ggferry.formats.files.passing import begin, passing, record
from ggferry.formats.files.publication import publish
from ggferry.formats.files.sources import Source, known_by
from ggferry.support.allocator import give_back
from ggferry.support.interrupts import interrupts_wait
from ggferry.support.progress import Phase, Stage, silent
from ggferry.support.records import dataclass
from ggferry.support.threads import each, workers


@dataclass(frozen=True, slots=True)
class Result:
    """A finished conversion.

    Attributes:
        path: The output file; of several, the first.
        receipt: The receipt, as written next to the output.
        lines: Three lines for people: what was read, what was written, how it was proved.
        paths: All output files.
        proof: The findings of the proof.
        assumed: The hparams for which a default was taken, by short name.
        receipt_path: Where the receipt is, if not beside the output.
        second: What became of the file of what sees and hears, which was written beside it; None where there is none.
    """

    path: str
    receipt: Mapping[str, Any]
    lines: tuple[str, str, str]
    paths: tuple[str, ...]
    proof: Proof
    assumed: Mapping[str, Param]
    receipt_path: str = ""
    second: Result | None = None


def quantize_request(source: str, out: str, outtype: str, given: Mapping[str, Any], naming: Naming) -> Request:
    """Return the request that quantizes a GGUF file, keeping the source's byte order and alignment.

    Args:
        source: A GGUF file.
        out: The file or folder to write.
        outtype: The name of a recipe, such as 'q4_k_m'.
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


def _approve(receipt: Mapping[str, Any]) -> None:
    pass


def convert(request: Request, stage: Stage = silent, approve: Callable[[Mapping[str, Any]], None] = _approve) -> Result:
    """Convert, verify and publish one model.

    Args:
        request: What to convert, and how.
        stage: Opens a progress display for each phase.
        approve: Called with the receipt of the proven output before the output gets its name. What it raises ends the
            conversion like any other error.

    Returns:
        The finished conversion.

    Raises one of `formats.errors`; then nothing is left but the source.
    """
    return convert_together([request], stage, approve)[0]


def convert_together(
    requests: Sequence[Request], stage: Stage = silent, approve: Callable[[Mapping[str, Any]], None] = _approve
) -> list[Result]:
    """Convert one model to several outputs, which differ in their types: it is read and decoded once for all of them.

    Every output has the bytes and the receipt that a conversion of its own would have given it, and none gets its name
    before all are proved. The arguments are those of `convert`; the requests differ in `out` and the type only.
    """
    first = requests[0]
    if any(request.out == "" for request in requests):
        raise UsageError("no name to write to", found="", expected="a file or a folder")
    with recorded() as opened, computing_on(first.device), ExitStack() as stack:
        checkpoint = open_source_of(first)
        stack.callback(checkpoint.close)
        opened.add_beside(checkpoint.sidecars.values())
        rungs = rungs_of(requests, replace(checkpoint, files=passing(checkpoint.files)))
        check_rungs(rungs)
        with unrecorded():
            return _results(_carry_out(rungs, checkpoint, opened, stage, approve))


def _results(found: Sequence[Result]) -> list[Result]:
    """Return the results of the text models, each with that of the file beside them, if there is one."""
    *first, last = found
    beside = [result.receipt["architecture"] == CLIP for result in found] == [False] * len(first) + [True]
    return [replace(result, second=last) for result in first] if first and beside else list(found)


def _carry_out(
    rungs: Sequence[Rung],
    source: Checkpoint,
    opened: Opened,
    stage: Stage,
    approve: Callable[[Mapping[str, Any]], None],
) -> list[Result]:
    """Write, re-read, verify and publish what is planned; `opened` holds the state of every source file when it was."""
    with ExitStack() as stack:
        resumed = [recover(rung.paths[0]) == "finished" for rung in rungs]  # all, before any of them is claimed
        outputs = [
            stack.enter_context(
                OutputSet(
                    rung.paths,
                    rung.plan.layouts,
                    overwrite=rung.request.force,
                    sources=opened.identities,
                    same=rung.is_second or any(resumed),
                )
            )
            for rung in rungs
        ]
        _check_space(rungs)
        beside = others_beside(rungs[0], source)
        stack.callback(beside.close)
        try:
            rungs = _write(rungs, outputs, stage)
            proofs = prove_together(rungs, [output.partials[0] for output in outputs], stage, beside)
        except (CorruptError, VerificationError):
            opened.check_unchanged()  # the likelier reason
            raise
        for output in outputs:  # all, before one of them has its name
            output.flush()
        found = []
        for rung, (proof, _), receipt in zip(rungs, proofs, receipts_of(rungs, proofs), strict=True):
            approve(receipt)
            found.append(_result(rung, proof, receipt))
        opened.check_unchanged()
        with interrupts_wait():
            texts = [receipts.to_json(result.receipt).encode("utf-8", "backslashreplace") for result in found]
            publish([output.complete(text) for output, text in zip(reversed(outputs), reversed(texts), strict=True)])
    return found


def others_beside(rung: Rung, source: Checkpoint) -> Beside:
    """Begin what other programs do for a proof meanwhile; `source`: as its reader returned it."""
    request, graph = rung.request, rung.plan.graph
    idle, vocab_only = request.level == "none", request.options.vocab_only
    return Beside(source, graph, rung.tokenizer, idle=idle, vocab_only=vocab_only)


def receipts_of(rungs: Sequence[Rung], proofs: Sequence[tuple[Proof, list[Record]]]) -> list[dict[str, Any]]:
    """Return the receipts of outputs that were proved together; of two files of one model, each names the other."""
    files = [
        [{**one, "name": os.path.basename(path)} for one, path in zip(records, rung.paths, strict=True)]
        for rung, (_, records) in zip(rungs, proofs, strict=True)
    ]
    known: dict[int, Record] = {}
    found = []
    for rung, (proof, _), own in zip(rungs, proofs, files, strict=True):
        done = options_of(rung.plan, replace(rung.request, level=proof.level))
        receipt = receipts.make_receipt(rung.plan, proof, own, _source_records(rung, known), done)
        others = [
            one for some, each in zip(rungs, files, strict=True) if some.is_second != rung.is_second for one in each
        ]
        found.append({**receipt, **({TEXT if rung.is_second else SECOND: others} if others else {})})
    return found


def _source_records(rung: Rung, known: dict[int, Record]) -> list[Record]:
    """Return the source's files as a receipt names them; `known` keeps those that several outputs are made of."""
    files = [file for file in rung.plan.graph.checkpoint.files if not isinstance(file, Dequantized)]
    for file in files:
        if id(file) not in known:
            known[id(file)] = record(file, workers(rung.request.jobs))
    return [known[id(file)] for file in files]


def _result(rung: Rung, proof: Proof, receipt: Mapping[str, Any]) -> Result:
    plan, paths = rung.plan, rung.paths
    assumed = {name: param for name, param in plan.graph.hparams.items() if param.known is Known.ASSUMED}
    return Result(paths[0], receipt, _lines(plan, proof, paths, receipt), paths, proof, assumed)


def _write(rungs: Sequence[Rung], outputs: Sequence[OutputSet], stage: Stage) -> list[Rung]:
    """Write the outputs; return the rungs with the notes made on the way."""
    first = rungs[0]
    checkpoint, threads = first.plan.graph.checkpoint, workers(first.request.jobs)
    writings = [
        Writing(rung.plan, output, Watch(rung.plan.graph.checkpoint, rung.request.options.allow_nonfinite))
        for rung, output in zip(rungs, outputs, strict=True)
    ]
    _expect(rungs, writings)
    sums = check_sums(checkpoint, stage, threads)
    begin(checkpoint.files)
    with stage(Phase.WRITING, sum(rung.plan.bytes_written for rung in rungs)) as progress:
        for half in halves(rungs, writings):
            run_together(half, threads, progress)
    give_back()
    done = []
    for rung, output, writing in zip(rungs, outputs, writings, strict=True):
        output.finish()
        plan, request = replace(rung.plan, notes=(*rung.plan.notes, *sums, *writing.watch.notes())), rung.request
        if writing.watch.not_finite and request.level == "full":  # a forward pass with NaN proves nothing
            request = replace(request, level="fast")
        done.append(replace(rung, plan=plan, request=request, marks=writing.marks))
    return done


def _expect(rungs: Sequence[Rung], writings: Sequence[Writing]) -> None:
    """Announce what will be needed, in the order in which it will be, so that it is loaded in the background."""
    expect_writing(writings)
    for rung in rungs:
        if rung.request.level != "none":
            expect_comparing((step.source_type, step.type, step.elements) for step in steps_in_order(rung.plan))
    for rung in rungs:
        if rung.request.level == "full" and rung.plan.graph.architecture.recipe:
            prepare(rung.plan.graph)


def prove(
    plan: Plan, tokenizer: Tokenizer | None, path: str, request: Request, stage: Stage
) -> tuple[Proof, list[Record]]:
    """Re-read the file at `path` without knowledge of the plan, and compare it with the source.

    Returns the proof, and the records of the files, whose digests are taken while they are read. Raises
    VerificationError where they differ, and another of `formats.errors` for a file that cannot be read.
    """
    return prove_together([Rung(request, plan, tokenizer, (path,))], [path], stage)[0]


def prove_together(
    rungs: Sequence[Rung], paths: Sequence[str], stage: Stage, beside: Beside | None = None
) -> list[tuple[Proof, list[Record]]]:
    """Do for several outputs of one source what `prove` does for one.

    Args:
        rungs: The outputs.
        paths: Where their bytes are now.
        stage: Opens a progress display for each phase.
        beside: What other programs do meanwhile.
    """
    request = rungs[0].request
    with ExitStack() as stack:
        opened = []
        for rung, path in zip(rungs, paths, strict=True):
            again = open_checkpoint(Named(path))
            stack.callback(again.close)
            check_metadata(rung.plan, again)
            opened.append(replace(again, files=passing(again.files)))
        begin(file for again in opened for file in again.files)
        proofs = _proofs(rungs, opened, stage, beside)
        found = _records([file for again in opened for file in again.files], workers(request.jobs))
        return [(proof, [found[id(file)] for file in again.files]) for proof, again in zip(proofs, opened, strict=True)]


def _records(files: Sequence[Source], threads: int) -> dict[int, Record]:
    """Return files as a receipt names them, by identity; several are digested side by side, a single one by threads."""
    found: dict[int, Record] = {}

    def add(file: Source) -> None:
        found[id(file)] = record(file, max(1, threads // len(files)))

    each(files, add, min(threads, len(files)))
    return found


def _proofs(rungs: Sequence[Rung], opened: Sequence[Checkpoint], stage: Stage, beside: Beside | None) -> list[Proof]:
    request, plan, vocabulary = rungs[0].request, rungs[0].plan, Said()
    if isinstance(plan, AdapterPlan):
        with stage(Phase.VERIFYING, plan.bytes_written) as progress:
            level, jobs = request.level, request.jobs
            proof = prove_adapter(plan.adapter, opened[0], level=level, jobs=jobs, progress=progress)
            return [replace(proof, second_reader=beside.reading()) if beside else proof]
    cases = [_case(rung, again, vocabulary) for rung, again in zip(rungs, opened, strict=True)]
    if request.level == "none":
        return [Proof("none", (), {}, None, case.tokenizer, testimonies=of_texts(case.tokenizer)) for case in cases]
    found = [proof for half in halves(rungs, cases) for proof in verify_together(half, jobs=request.jobs, stage=stage)]
    if beside is not None:
        second, said = beside.reading(), beside.conversations(opened[0])
        found = [
            replace(proof, second_reader=second, testimonies=(*proof.testimonies, *(() if rung.is_second else said)))
            for rung, proof in zip(rungs, found, strict=True)
        ]
    return [
        witnessed(proof, case.sides.source, case.sides.output, rung.request, stage)
        for rung, case, proof in zip(rungs, cases, found, strict=True)
    ]


@dataclass(slots=True)
class Said:
    """What was found about the vocabulary of an output, for others of the same source that hold the same.

    Attributes:
        output: That vocabulary, as it was read again.
        found: What `check_tokenizer` found.
    """

    output: Tokenizer | None = None
    found: dict[str, Any] | None = None


def _case(rung: Rung, again: Checkpoint, vocabulary: Said) -> Case:
    """Return what is to be compared for an output that was opened again; its vocabulary is compared here."""
    request, plan = rung.request, rung.plan
    output = understand(again, vocab_only=request.options.vocab_only)
    read = tokenizer_of(output, again, Request(again.path))
    if vocabulary.found is None or vocabulary.output != read:
        sides = Vocabularies(rung.tokenizer, read, plan.graph.checkpoint, request.vocab)
        vocabulary.output, vocabulary.found = read, check_tokenizer(sides, again.path, depth_of(request))
    if not output.architecture.projector:
        check_stated(plan.graph.checkpoint, again, request.vocab, request.metadata, asked=asked_with(plan.graph))
    encoding = Encoding(plan.imatrix, ours=True, marks=rung.marks, any_error=request.allow_quantization_error)
    return Case(Sides(plan.graph, output, encoding), request.level, vocabulary.found)


def witnessed(proof: Proof, source: ModelGraph, output: ModelGraph, request: Request, stage: Stage) -> Proof:
    """Return the proof with the findings of the requested witnesses, where logits were computed.

    Raises VerificationError where a witness contradicts.
    """
    names = chosen(request.witness)
    if not names or proof.logits is None:
        return proof
    said = examine(source, output, names, request.jobs, stage)
    return replace(proof, testimonies=(*proof.testimonies, *said, *testify(output, said)))


def depth_of(request: Request) -> Depth:
    """Return how much of the vocabulary a proof of this request's level encodes."""
    return Depth(pieces=request.level == "full", own=tuple(request.text.split("\n")) if request.text else ())


def _check_space(rungs: Sequence[Rung]) -> None:
    folder = os.path.dirname(os.path.abspath(rungs[0].paths[0]))
    if not os.path.isdir(folder):
        return
    free, wanted = os.statvfs(folder), sum(rung.plan.bytes_written for rung in rungs)
    if free.f_bavail * free.f_frsize < wanted:
        raise RefusedError(
            "not enough room", path=folder, found=f"{free.f_bavail * free.f_frsize:,} bytes free",
            expected=f"{wanted:,} bytes",
        )  # fmt: skip


def options_of(plan: Plan, request: Request) -> dict[str, Any]:
    """Return the options that were given, as the receipt of this plan states them."""
    return stated_options(request, adapter=isinstance(plan, AdapterPlan))


def _lines(plan: Plan, proof: Proof, paths: Sequence[str], receipt: Mapping[str, Any]) -> tuple[str, str, str]:
    checkpoint = plan.graph.checkpoint
    count = sum(not isinstance(file, Computed | Dequantized) for file in checkpoint.files)
    parts = f" ({count} files)" if count > 1 else ""
    more = f" and {len(paths) - 1} more" if paths[1:] else ""
    kinds = ", ".join(dict.fromkeys(f"{step.type}" for step in plan.steps)) or "vocabulary only"
    return (
        f"read     {known_by(checkpoint.path)}{parts}: {receipts.what_was_read(checkpoint)}",
        f"wrote    {paths[0]}{more}: GGUF v3, {plan.graph.architecture.name}, {len(plan.steps)} tensors ({kinds}), "
        f"{plan.bytes_written:,} bytes",
        receipts.line_of(proof) + receipts.in_llama_cpp(receipt, plan),
    )
