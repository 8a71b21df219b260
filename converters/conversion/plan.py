"""The plan of a conversion: what every output that is asked for will hold."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from ggferry.converters.adapters.merge_any import with_adapters
from ggferry.converters.adapters.plan import is_adapter
from ggferry.converters.conversion.kinds.adapter import AdapterKind
from ggferry.converters.conversion.kinds.gguf import GgufKind, plan_in
from ggferry.converters.conversion.kinds.gguf_plan import with_explicit_experts
from ggferry.converters.conversion.kinds.hf_folder import HfFolderKind
from ggferry.converters.conversion.kinds.kind import OutputKind, PlannedOutput
from ggferry.converters.conversion.kinds.mlx_folder import MlxFolderKind
from ggferry.converters.conversion.kinds.mmproj import MmprojKind, instead_of_text, missing_processor, related, unread
from ggferry.converters.conversion.kinds.whisper_cpp import WhisperCppKind
from ggferry.converters.conversion.options import AUTO, types_of
from ggferry.converters.conversion.request import (
    FOLDERS,
    GGUF,
    HF_FOLDER,
    MLX_FOLDER,
    MMPROJ,
    WHISPER_CPP,
    Request,
    open_source_of,
    split_mmproj,
)
from ggferry.converters.conversion.target_size import with_target_size
from ggferry.converters.proof.references.examine import chosen
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError, UnsupportedError, UsageError
from ggferry.formats.memory_cap import limited
from ggferry.support.progress import Stage, silent
from ggferry.support.records import dataclass

Item = TypeVar("Item")
KINDS: Mapping[str, OutputKind] = {
    GGUF: GgufKind(),
    MMPROJ: MmprojKind(),
    HF_FOLDER: HfFolderKind(),
    MLX_FOLDER: MlxFolderKind(),
    WHISPER_CPP: WhisperCppKind(),
}
"""The kind of each `OutputSpec.kind`."""
ADAPTER = AdapterKind()
"""The kind of GGUF that an adapter becomes."""


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What a request will write.

    Attributes:
        request: What is asked for.
        outputs: The outputs in the order of `Request.outputs`; those of one kind follow each other.
    """

    request: Request
    outputs: tuple[PlannedOutput, ...]

    @property
    def main(self) -> Sequence[PlannedOutput]:
        """The outputs without the mmproj file beside them; where that is the only one, it."""
        return split_mmproj(self.outputs, _kind_name)[0]

    @property
    def mmproj(self) -> PlannedOutput | None:
        """The mmproj file beside other outputs."""
        return split_mmproj(self.outputs, _kind_name)[1]

    def check_names(self) -> None:
        """Raise UsageError where two outputs would have one name."""
        names = [path for output in self.outputs for path in output.paths]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(
                "several types need several names of outputs",
                found=twice[0],
                hint="-o 'model-{outtype}.gguf', or a folder",
            )


def _kind_name(output: PlannedOutput) -> str:
    return output.kind.name


def kind_of_format(to: str) -> OutputKind:
    """Return the kind of the main output of a value of --to."""
    return KINDS[FOLDERS.get(to, to)]


def by_kind(
    outputs: Sequence[PlannedOutput], items: Sequence[Item]
) -> list[tuple[OutputKind, list[PlannedOutput], list[Item]]]:
    """Return outputs by kind, in their order, with the item that belongs to each."""
    pairs = zip(outputs, items, strict=True)
    groups = [list(group) for _, group in groupby(pairs, key=lambda pair: _kind_name(pair[0]))]
    return [(group[0][0].kind, [output for output, _ in group], [item for _, item in group]) for group in groups]


def check_request(request: Request) -> None:
    """Check what can be checked before a source is opened. Raises UsageError."""
    specs = request.outputs
    if any(spec.out == "" for spec in specs):
        raise UsageError("no output name", found="", expected="a file or a folder")
    for kind in dict.fromkeys(spec.kind for spec in specs):
        KINDS[kind].check(request)


def plan_conversion(request: Request, checkpoint: Checkpoint) -> ConversionPlan:
    """Return what a request will write, without reading tensor data.

    `checkpoint` is the request's source, as `request.open_source_of` returns it. Raises one of `formats.errors`.
    """
    request = with_auto_type(request, checkpoint)
    checkpoint = with_adapters(checkpoint)
    specs = request.outputs
    chosen(request.witness, request.level)
    texts = [spec for spec in specs if spec.kind != MMPROJ]
    others = [spec for spec in specs if spec.kind == MMPROJ]
    with limited(checkpoint.path):
        if texts and texts[0].kind == GGUF and is_adapter(checkpoint):
            return ConversionPlan(request, tuple(ADAPTER.plan(request, texts, checkpoint)))
        try:
            planned = KINDS[texts[0].kind].plan(request, texts, checkpoint) if texts else []
        except UnsupportedError as error:
            try:
                beside = KINDS[MMPROJ].plan(request, others, checkpoint)
            except GgferryError as other:  # the text model comes first, and so does the reason why it is not read
                also = f"nor is an mmproj file written: {other.message}"
                error.hint = f"{error.hint}; {also}" if error.hint else also
                raise error from None
            alone = instead_of_text(beside, checkpoint, error)
            if not alone:
                raise
            return ConversionPlan(request, tuple(alone))
        if not others:
            return ConversionPlan(request, tuple(planned))
        note = ""
        try:
            beside = KINDS[MMPROJ].plan(request, others, checkpoint)
            note = "" if beside else unread(checkpoint)
        except GgferryError as error:
            beside, note = [], missing_processor(request, checkpoint, error) or ""
            if not note:
                raise
    return ConversionPlan(request, tuple(_related(planned, beside, note)))


def with_auto_type(request: Request, checkpoint: Checkpoint) -> Request:
    """Return the request with the type that `auto` means for this source, as convert_hf_to_gguf.py chooses it.

    It is bf16 where the first matrix of the checkpoint is BF16, and f16 elsewhere (conversion/base.py, `ftype`);
    whisper.cpp's scripts write f16 whatever it is.
    """
    types = types_of(request.options.outtype)
    if AUTO not in map(str.lower, types):
        return request
    first = next((ref.type.name for ref in checkpoint.tensors.values() if len(ref.shape) > 1), "")
    auto = "bf16" if first == "BF16" and request.to != WHISPER_CPP else "f16"
    chosen_types = ",".join(auto if name.lower() == AUTO else name for name in types)
    return replace(request, options=replace(request.options, outtype=chosen_types))


def plan_source(request: Request, stage: Stage = silent) -> ConversionPlan:
    """Open the source of a request, plan, and close it. Raises as `check_request` and `plan_conversion`.

    Where a size is asked for, types are measured, and `stage` displays that.
    """
    check_request(request)
    checkpoint = open_source_of(request)
    try:
        request = with_target_size(with_explicit_experts(request, checkpoint), checkpoint, stage)
        return plan_conversion(request, checkpoint)
    finally:
        checkpoint.close()


def _related(texts: Sequence[PlannedOutput], beside: Sequence[PlannedOutput], note: str) -> list[PlannedOutput]:
    """Return the outputs of a multimodal model, each with what it leaves to the other, or with why there is none."""
    if not beside:
        return [
            replace(text, plan=replace(plan_in(text), notes=(*plan_in(text).notes, *([note] if note else []))))
            for text in texts
        ]
    if not texts:
        return list(beside)
    (mmproj,) = beside
    plan = plan_in(mmproj)
    name, first = os.path.basename(mmproj.paths[0]), texts[0]
    return [
        *(replace(text, plan=related(plan_in(text), plan, name)) for text in texts),
        replace(mmproj, plan=related(plan, plan_in(first), os.path.basename(first.paths[0]))),
    ]
