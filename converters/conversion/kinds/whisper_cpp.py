"""A ggml-*.bin file of whisper.cpp, which runs no other container.

It is written as GGUF files are, by the same plan of steps to offsets that are known beforehand; the proof opens it with
the reader of such files, binds it by their table and compares it with the source.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import cast

from ggferry.converters.architectures.whisper import HEADER
from ggferry.converters.conversion.kinds.gguf import GgufKind, VocabularyCheck, plan_in, text_request
from ggferry.converters.conversion.kinds.gguf_plan import tokenizer_of, understood
from ggferry.converters.conversion.kinds.kind import PlannedOutput, check_options, depth_of
from ggferry.converters.conversion.request import WHISPER_CPP, OutputSpec, Request
from ggferry.converters.metadata.receipt_fields import OutputReceipt, Receipt, TokenizerRecord
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof import receipt as receipts
from ggferry.converters.proof.compare import Case, Proof
from ggferry.converters.proof.references.beside import Beside
from ggferry.converters.proof.tensors import Encoding, Sides
from ggferry.converters.proof.vocabulary import Vocabularies, check_tokenizer
from ggferry.converters.tokenizers.compare import compare
from ggferry.converters.tokenizers.legacy.families import matched
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import encoder
from ggferry.converters.understand import understand
from ggferry.converters.whisper_cpp.file_types import FILE_TYPES, check_name
from ggferry.converters.whisper_cpp.plan import as_run, check_header, plan_file
from ggferry.formats.checkpoint import Checkpoint, RawVocab
from ggferry.formats.errors import GgferryError, VerificationError
from ggferry.formats.files.digests import Record

_TAKES = {
    "out",
    "to",
    "force",
    "outtype",
    "arch",
    "config",
    "hparams",
    "tokenizer_model",
    "tokenizer",
    "pre",
    "verify",
    "witness",
    "text",
    "allow_requantize",
    "allow_nonfinite",
    "allow_quantization_error",
    "dequantize",
    "mistral_format",
    "jobs",
    "device",
}
"""The options of `convert` that mean something for such a file."""
_NAMED = re.compile(rf"(?:^ggml-)|(?:-(?:{'|'.join(FILE_TYPES)})$)")
"""What a file of whisper.cpp's is called besides the model."""


class WhisperCppKind(GgufKind):
    """Files of whisper.cpp."""

    name = WHISPER_CPP
    takes: Collection[str] = _TAKES

    @property
    def outtypes(self) -> Sequence[str]:
        """Those of whisper.cpp's own programs."""
        return ("keep", "auto", *FILE_TYPES)

    def check(self, request: Request) -> None:
        """Raise UsageError for an option that only GGUF has, and for a type that whisper.cpp does not read."""
        check_options(request, self.takes)
        for spec in request.outputs:
            if spec.outtype.lower() != "auto":
                check_name(spec.outtype)

    def plan(self, request: Request, specs: Sequence[OutputSpec], checkpoint: Checkpoint) -> list[PlannedOutput]:
        """Understand the source once, and plan a file of every type that is asked for."""
        requests = [text_request(request.of_output(spec)) for spec in specs]
        source = understood(requests[0], checkpoint)
        notes = source.tokenizer.notes if source.tokenizer else ()
        found = []
        for one in requests:
            plan = plan_file(source.graph, source.tokenizer, one.options)
            plan = replace(plan, notes=(*plan.notes, *notes))
            paths = (_path(one, plan.options.outtype),)
            found.append(PlannedOutput(self, one, plan, source.tokenizer, paths, known=source))
        return found

    # --- proof -----------------------------------------------------------------------------------------------------

    def check_header(self, output: PlannedOutput, again: Checkpoint) -> None:
        """Raise VerificationError for a field that is not the plan's."""
        check_header(plan_in(output), again)

    def new_check(self) -> VocabularyCheck:
        """Return what compares the vocabularies of outputs of one source."""
        return _VocabularyCheck()

    def _with_others(self, found: Sequence[Proof], opened: Sequence[Checkpoint], beside: Beside) -> list[Proof]:
        """Return the proofs with what other programs found of the source; such files have no chat template."""
        second = beside.reading()
        return [replace(proof, second_reader=second) for proof in found]

    def receipt(
        self, output: PlannedOutput, proof: Proof, files: Sequence[Record], source: Sequence[Record]
    ) -> Receipt:
        """Return what every tensor and field of the header was made of, and what was proved."""
        found = super().receipt(output, proof, files, source)
        runs = {"run_it": [WHISPER_CPP], "none": False}
        return cast("Receipt", {**found, "to": WHISPER_CPP, "runtimes": runs})

    def wrote_line(self, output: PlannedOutput) -> str:
        """Name the file, the tensors and their types."""
        plan = plan_in(output)
        kinds = ", ".join(dict.fromkeys(f"{step.type}" for step in plan.steps))
        return (
            f"wrote    {output.paths[0]}: a file of whisper.cpp, {plan.options.outtype}, {len(plan.steps)} tensors "
            f"({kinds}), {plan.bytes_written:,} bytes"
        )

    def proved_line(self, output: PlannedOutput, proof: Proof, receipt: OutputReceipt) -> str:
        """Say what was compared."""
        return receipts.line_of(proof)


def _path(request: Request, outtype: str) -> str:
    """Return the file to write: as named, or named as whisper.cpp's are, in that folder or beside the source."""
    out = request.out
    if out is not None and not os.path.isdir(out):
        return out
    source = os.path.normpath(request.source)
    name = os.path.basename(source)
    stem = name if os.path.isdir(source) else os.path.splitext(name)[0]
    ending = "" if outtype == "f16" else f"-{outtype}"
    folder = out if out is not None else os.path.dirname(os.path.abspath(request.source))
    return os.path.join(folder, f"ggml-{_NAMED.sub('', stem)}{ending}.bin")


class _VocabularyCheck:
    """That of whisper.cpp's files."""

    def __init__(self) -> None:
        self._held: RawVocab | None = None
        self._found = TokenizerRecord()

    def case(self, output: PlannedOutput, again: Checkpoint) -> Case:
        """Return what is to be compared for an output that was opened again; its vocabulary is compared here."""
        request, graph = output.request, as_run(understand(again))
        if self._held is None or again.vocab != self._held:
            self._held, self._found = again.vocab, _check_vocabulary(output, graph, again)
        encoding = Encoding(None, ours=True, marks=output.marks, any_error=request.allow_quantization_error)
        return Case(Sides(plan_in(output).graph, graph, encoding), request.level, self._found)


def _check_vocabulary(output: PlannedOutput, graph: ModelGraph, again: Checkpoint) -> TokenizerRecord:
    """Hold the source's vocabulary against the library that made it, and against it what the file holds.

    Raises VerificationError.
    """
    request, source, path = output.request, output.tokenizer, again.path
    assert source is not None
    sides = Vocabularies(source, source, plan_in(output).graph.checkpoint, request.vocab)
    found = check_tokenizer(sides, path, depth_of(request))
    try:
        assert again.vocab is not None  # `HEADER` has one
        matched(source, again.vocab, HEADER.vocab, path)
    except GgferryError as error:
        raise VerificationError(f"the vocabulary differs: {error.message}", path=path) from None
    read = tokenizer_of(graph, again, Request(path))
    assert read is not None
    check = compare(encoder(source), encoder(read), TEXTS)
    if check.first is not None:
        raise VerificationError("the vocabularies tokenize differently", path=path, found=check.first)
    return found
