"""Prove an existing output again: for `ggferry verify SOURCE OUTPUT`, and for outputs that an archive run finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

from ggferry.converters.adapters.merge_any import with_adapters
from ggferry.converters.adapters.plan import is_adapter
from ggferry.converters.adapters.prove import prove_adapter
from ggferry.converters.conversion.adapters_of_receipt import with_adapters_found
from ggferry.converters.conversion.kinds.adapter import adapter_plan
from ggferry.converters.conversion.kinds.folder_again import as_made, receipt_in
from ggferry.converters.conversion.kinds.gguf import plan_in, text_request
from ggferry.converters.conversion.kinds.gguf_plan import edited, imatrix_of, tokenizer_of
from ggferry.converters.conversion.kinds.kind import PlannedOutput, check_with_references, depth_of
from ggferry.converters.conversion.plan import KINDS, plan_conversion
from ggferry.converters.conversion.receipt_options import missing_files, with_receipt_options
from ggferry.converters.conversion.request import FOLDERS, WHISPER_CPP, Request, open_source_of
from ggferry.converters.conversion.run import others_beside, prove, receipts_of
from ggferry.converters.conversion_plan.output_metadata import assemble
from ggferry.converters.conversion_plan.steps import Plan, steps_of_types, type_in_file, with_set_digest
from ggferry.converters.forward.device import computing_on
from ggferry.converters.metadata.beside import RECEIPT
from ggferry.converters.metadata.general_keys import Entry
from ggferry.converters.metadata.receipt_fields import OutputReceipt
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.next_token_blocks import are_alone, bundled_dialect
from ggferry.converters.proof.compare import Case, Proof, check_accounting, check_hparams, compare_outputs
from ggferry.converters.proof.metadata import KeyProof, compare_keys
from ggferry.converters.proof.receipt import line_of
from ggferry.converters.proof.reference_checked import unchecked
from ggferry.converters.proof.references.beside import Beside
from ggferry.converters.proof.references.examine import chosen
from ggferry.converters.proof.runtime_notes import runtime_notes
from ggferry.converters.proof.second_reader.declared_keys import check_declared
from ggferry.converters.proof.tensors import Encoding, Sides
from ggferry.converters.proof.vocabulary import Vocabularies, check_tokenizer
from ggferry.converters.reranking.recognize import rerank_template
from ggferry.converters.rewrite.declared_digests import changed_files, digest_of_shards, receipt_beside
from ggferry.converters.rewrite.lineage import edited_keys
from ggferry.converters.schema.fused_attention import is_joined
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import CLIP, understand, understand_projector
from ggferry.converters.whisper_cpp.file_types import outtype_of
from ggferry.converters.whisper_cpp.plan import LAYOUT as WHISPER_LAYOUT
from ggferry.converters.whisper_cpp.plan import check_header
from ggferry.converters.write.watch_weights import check_sums
from ggferry.converters.write.write_tensors import check_replica
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import (
    ChangedError,
    GgferryError,
    TransientError,
    UsageError,
    VerificationError,
)
from ggferry.formats.files.digesting import digesting
from ggferry.formats.files.sources import Source
from ggferry.formats.gguf.shards import SET_DIGEST
from ggferry.formats.gguf.values import Value
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.packed.holding import holding
from ggferry.formats.packed.unpacking import unpacking
from ggferry.formats.reader import Kind, kind_of
from ggferry.quant.types import FEEDBACK
from ggferry.support.progress import Phase, Stage, silent
from ggferry.support.records import dataclass
from ggferry.support.threads import workers


@dataclass(frozen=True, slots=True)
class Report:
    """What verification found.

    Attributes:
        proof: The proof.
        keys: The comparison of the keys.
        notes: What a user should know besides.
        line: The result in one line.
    """

    proof: Proof
    keys: KeyProof
    notes: list[str]
    line: str

    def as_dict(self) -> dict[str, Any]:
        """Return the findings as plain data, for JSON."""
        return {**self.proof.as_dict(), "keys": asdict(self.keys), "notes": self.notes}


def reverify(request: Request, output: str, stage: Stage, allow_keys: Sequence[str] = ()) -> Report:
    """Compare `output` with the source of `request`, and return what was found.

    Where a receipt stands next to the output, the options it states replace those that `request` leaves at their
    defaults, and both files must be the ones for which it was written. Tensor types are taken from the output; its keys
    must be those that the plan gives.

    Args:
        request: The source, and how it was converted. With its `imatrix`, an output that was quantized with that matrix
            can be encoded again and compared.
        output: The file to verify, or the folder that was written with a receipt.
        stage: Opens a progress display for each phase.
        allow_keys: Patterns of keys that may differ.

    Raises:
        UsageError: The level is neither 'fast' nor 'full'.
        VerificationError: The output is not what the source gives, or not the file of its receipt.
    """
    if request.level not in ("fast", "full"):
        raise UsageError("--level", found=request.level, expected="fast, full")
    chosen(request.witness, request.level)
    with holding(), unpacking(stage):
        return _reverified(request, output, stage, allow_keys)


def _reverified(request: Request, output: str, stage: Stage, allow_keys: Sequence[str]) -> Report:
    after = open_checkpoint(output)
    try:
        receipt, notes = _receipt(after)
        request, found = with_adapters_found(request, receipt, after.path)
        notes += found
        before = open_source_of(_as_converted(request, receipt, after))
    except BaseException:
        after.close()
        raise
    try:
        if receipt:
            _check_digests(receipt, (*before.files, *_adapter_files(before)), after.files)
            notes += missing_files(request, receipt["options"])
            request = with_receipt_options(request, receipt["options"], after.path + RECEIPT)
            if edits := edited_keys(receipt):
                notes.append(f"edited after the conversion, by its receipt: {', '.join(edits)}")
                allow_keys = (*allow_keys, *edits)
        if is_adapter(before) or is_adapter(after):
            proof, keys = _adapter_again(request, before, after, stage, allow_keys)
            runtime: tuple[str, ...] = ()
        elif after.layout == WHISPER_LAYOUT:
            proof, keys, runtime = _whisper_cpp_again(request, before, after, stage)
        elif (made := receipt_in(after)) is not None:
            notes = []
            proof, keys, runtime = _folder_again(as_made(request, after, made), made, before, after, stage)
        elif kind_of(after.container) is not Kind.GGUF:
            raise UsageError(
                "only GGUF files, whisper.cpp's of a Whisper, and folders with their receipt are verified as outputs",
                path=after.path,
                found=after.container,
                hint="a folder that was made of a GGUF file: ggferry verify FOLDER FILE.gguf",
            )
        else:
            if (
                request.vocab == VocabOptions()
                and "tokenizer.ggml.tokens" not in after.metadata
                and not _is_mmproj(after)
            ):
                request = replace(request, vocab=VocabOptions(none=True))
                notes.append("the output has no vocabulary; the source's was not compared")
            proof, keys, runtime = _model_again(request, before, after, stage, allow_keys, _corrected(receipt))
        return Report(proof, keys, [*notes, *keys.notes, *runtime, *proof.notes], line_of(proof))
    finally:
        before.close()
        after.close()


def _corrected(receipt: Mapping[str, Any] | None) -> frozenset[str] | None:
    """Return the names of the tensors that were rounded with feedback, None where the receipt names none."""
    tensors = receipt.get("tensors") if receipt else None
    records = [each for each in tensors if isinstance(each, dict)] if isinstance(tensors, list) else []
    return frozenset(str(each.get("name")) for each in records if each.get("rounding") == FEEDBACK) or None


def _is_mmproj(checkpoint: Checkpoint) -> bool:
    """Return whether a GGUF file holds a vision or audio encoder."""
    kind = checkpoint.metadata.get("general.architecture")
    return isinstance(kind, Value) and kind.data == CLIP


def _as_converted(request: Request, receipt: Mapping[str, Any] | None, after: Checkpoint) -> Request:
    """Return the request with what decides which files of its source are opened, as it was when the output was made."""
    declared = receipt["options"] if receipt else {}
    own = request.mistral_format or (isinstance(declared, Mapping) and declared.get("mistral_format") is True)
    return replace(request, mistral_format=own, options=replace(request.options, vocab_only=not after.tensors))


def _model_again(
    request: Request,
    before: Checkpoint,
    after: Checkpoint,
    stage: Stage,
    allow: Sequence[str],
    corrected: frozenset[str] | None,
) -> tuple[Proof, KeyProof, tuple[str, ...]]:
    raw = before
    before, matrix = edited(request, with_adapters(before), imatrix_of(request))
    vocab_only = not after.tensors
    mirror = understand(after, vocab_only=vocab_only)
    graph = _same_half(request, before, mirror)
    check_hparams(graph, mirror)
    check_accounting(graph, mirror)
    tokenizer = tokenizer_of(graph, before, request)
    with closing(Beside(raw, graph, tokenizer, idle=False, vocab_only=vocab_only)) as beside:
        steps = steps_of_types(graph, {name: type_in_file(node) for name, node in mirror.by_name.items()})
        expected, _ = assemble(graph, steps, tokenizer, request.options, request.model_name, request.metadata)
        keys = compare_keys(_values(expected), after, (graph, mirror), allow)
        notes = (*graph.notes, "the output has no vocabulary") if request.vocab.none else graph.notes
        runtime = runtime_notes(mirror.architecture.name, after.metadata, after.tensors, notes, vocab_only=vocab_only)
        read = tokenizer_of(mirror, after, Request(after.path))
        sides = Vocabularies(tokenizer, read, before, request.vocab, keys.apart)
        tokens = check_tokenizer(sides, after.path, depth_of(request))
        if not mirror.architecture.projector:
            check_declared(before, after, request.vocab, request.metadata, keys.apart, rerank_template(graph))
        unexplained = request.allow_quantization_error
        encoding = Encoding(matrix, request.options.rounding, corrected, any_error=unexplained)
        with computing_on(request.device):
            case = Case(Sides(graph, mirror, encoding), request.level, tokens)
            (proof,) = compare_outputs([case], jobs=request.jobs, stage=stage)
            others = (*proof.testimonies, *beside.conversations(after))
            proof = replace(proof, second_reader=beside.reading(), testimonies=others)
            proof = check_with_references(proof, graph, mirror, request, stage)
    return proof, keys, (*runtime, *unchecked(graph))


def _whisper_cpp_again(
    request: Request, before: Checkpoint, after: Checkpoint, stage: Stage
) -> tuple[Proof, KeyProof, tuple[str, ...]]:
    """Prove a file of whisper.cpp's as if it had just been written in the type that its header states."""
    options = replace(request.options, outtype=outtype_of(after.header["ftype"]), allow_requantize=True)
    request = replace(request, to=WHISPER_CPP, options=options)
    output = KINDS[WHISPER_CPP].plan(request, request.outputs, before)[0]
    check_header(plan_in(output), after)
    with computing_on(request.device):
        (proof,) = output.kind.prove([output], [after], stage, None)
    return proof, KeyProof(len(plan_in(output).metadata)), output.plan.notes


def _folder_again(
    request: Request, receipt: Mapping[str, Any], before: Checkpoint, after: Checkpoint, stage: Stage
) -> tuple[Proof, KeyProof, tuple[str, ...]]:
    """Prove a folder as if it had just been written."""
    _check_digests(receipt, before.files, ())
    output = KINDS[FOLDERS[request.to]].plan(request, request.outputs, before)[0]
    with computing_on(request.device):
        (proof,) = output.kind.prove([output], [after], stage, None)
    return proof, KeyProof(len(proof.hparams)), output.plan.notes


def _same_half(request: Request, before: Checkpoint, output: ModelGraph) -> ModelGraph:
    """Return what the source has of the output's model: of a multimodal one, that half or the text model.

    Raises VerificationError where the source has no such half.
    """
    if not output.architecture.projector or before.container == "gguf":
        texts = text_request(request)
        options, mtp = request.options, request.mtp
        only = request.mtp_only or are_alone(output.checkpoint, output.architecture)
        only = only or bundled_dialect(before, output.architecture) is not None
        if mtp is None and not output.sizes.get("n_nextn") and not only:
            mtp = False  # written by --no-mtp, or by a program that drops them
        fuse = request.fuse_qkv or is_joined(output.architecture)
        return understand(
            before,
            texts.hparams,
            options.vocab_only,
            mtp=mtp,
            rerank=request.rerank,
            fuse_qkv=fuse,
            mtp_only=only,
        )
    graph = understand_projector(before, request.hparams)
    if graph is None:
        raise VerificationError(
            "the source has no vision or audio encoder", path=before.path, found=output.checkpoint.path
        )
    return graph


def _adapter_again(
    request: Request, before: Checkpoint, after: Checkpoint, stage: Stage, allow: Sequence[str]
) -> tuple[Proof, KeyProof]:
    plan = adapter_plan(request, before)
    keys = compare_keys(_values(plan.metadata), after, None, allow)
    with stage(Phase.VERIFYING, after.nbytes) as progress:
        proof = prove_adapter(plan.adapter, after, level=request.level, jobs=request.jobs, progress=progress)
    return proof, keys


def _values(entries: Mapping[str, Entry]) -> dict[str, Value]:
    return {key: entry.value for key, entry in entries.items()}


def reprove(request: Request, levels: Sequence[str], stage: Stage) -> list[OutputReceipt]:
    """Return the receipts that converting would write for the outputs of a request, which exist.

    Receipts next to the outputs are ignored: the source is planned, and they are read and proved as if they had just
    been written, each text model at its level of `levels`. Raises VerificationError for a file that this conversion
    would not write, and what converting raises for the source.
    """
    beside = None
    before = open_source_of(request)
    try:
        sums = check_sums(before, stage, workers(request.jobs))
        plan = plan_conversion(request, replace(before, files=digesting(before.files)))
        of_each = [*levels, levels[0]]  # the mmproj file comes last
        outputs = [
            replace(output, request=replace(output.request, level=level))
            for output, level in zip(plan.outputs, of_each, strict=False)
        ]
        beside = others_beside(outputs[0], before)
        try:
            for plan_of_file in (output.plan for output in outputs if isinstance(output.plan, Plan)):
                for drop in plan_of_file.graph.dropped:
                    check_replica(plan_of_file, drop)
            outputs = [_with_digest_of_shards(output) for output in outputs]
            proofs = prove(outputs, [output.paths[0] for output in outputs], stage, beside)
        except (TransientError, ChangedError):
            raise
        except GgferryError as error:
            odd = next((output.paths[0] for output in outputs if output.paths[0] == error.path), outputs[0].paths[0])
            raise VerificationError(f"not what this conversion gives: {error.message}", path=odd) from None
        outputs = [replace(one, plan=replace(one.plan, notes=(*one.plan.notes, *sums))) for one in outputs]
        return receipts_of(outputs, proofs)[: len(levels)]
    finally:
        if beside is not None:
            beside.close()
        before.close()


def _with_digest_of_shards(output: PlannedOutput) -> PlannedOutput:
    """Return an output that exists with the digest that its shards must hold; none where these hold none."""
    plan = output.plan
    if not isinstance(plan, Plan) or len(plan.layouts) < 2:
        return output
    with closing(open_checkpoint(output.paths[0])) as again:
        found = ""
        if SET_DIGEST in again.metadata:
            found = digest_of_shards(again, silent)
    return replace(output, plan=with_set_digest(plan, found))


def _receipt(output: Checkpoint) -> tuple[JSONObject | None, list[str]]:
    receipt = receipt_beside(output.path)
    missing = "no receipt beside the output: defaults stand for what the source does not state"
    return receipt, [] if receipt else [missing]


def _adapter_files(checkpoint: Checkpoint) -> list[Source]:
    return [file for adapter in checkpoint.adapters for file in adapter.checkpoint.files]


def _check_digests(receipt: Mapping[str, Any], *sides: Sequence[Source]) -> None:
    for name, side in zip(("source", "output"), sides, strict=True):
        records = receipt.get(name, {}).get("files", ())
        for file, found, declared in changed_files(records, side):
            raise VerificationError(
                f"not the {name} its receipt was written for", path=file.path, found=found, expected=declared
            )
