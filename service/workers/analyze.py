"""Analyze one model: read its headers, bind its tensors, plan its conversion. No tensor data.

This runs in a worker process: it is the first code to read a file that may be hostile.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ggferry.converters.conversion.kinds.folder_again import receipt_in
from ggferry.converters.conversion.kinds.kind import PlannedOutput
from ggferry.converters.conversion.options import PLAN_NAMES, Kind, Option, option, types_of
from ggferry.converters.conversion.plan import ConversionPlan, check_request, plan_conversion
from ggferry.converters.conversion.request import GGUF, MMPROJ, Request, open_source_of
from ggferry.converters.conversion.request import request_of as options_to_request
from ggferry.converters.conversion.target_size import with_planned_size
from ggferry.converters.conversion_plan.output_metadata import output_name
from ggferry.converters.conversion_plan.steps import Plan, Step, count_types
from ggferry.converters.hf_export.plan import FolderPlan
from ggferry.converters.hf_export.shards import Entry
from ggferry.converters.metadata.key_table import check_overrides
from ggferry.converters.model_graph.graph import losses
from ggferry.converters.whisper_cpp.plan import LAYOUT as WHISPER_LAYOUT
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError, UsageError
from ggferry.formats.packed.as_folder import Shown
from ggferry.service.workers.messages import Analysis, PlannedFile

if TYPE_CHECKING:
    from ggferry.service.records.fields import LossRecord

BASE_MEMORY = 640 << 20  # torch, numba's compiled kernels and two forward passes' activations, measured
THREAD_MEMORY = 96 << 20  # chunks in flight of one thread, with their float32 values
TENSOR_MEMORY, TOKEN_MEMORY = 4 << 10, 2 << 10  # Python objects of a tensor's records, and of a piece of vocabulary


FILE_TYPE = "general.file_type"
"""What names of files by convention end with; of a size it is known when the types are chosen."""
_WITHIN: Mapping[Kind, type] = {Kind.TEXT_FILE: list, Kind.JSON_FILE: dict}
"""Kinds of options that name a file on a command line, and of which a plan's line has the content."""
_EXPECTED = {Kind.TEXT_FILE: "a list of the text's lines", Kind.JSON_FILE: "a JSON object"}


def request_of(source: str, recipe: Mapping[str, Any], outs: Sequence[str] = (), jobs: int | None = None) -> Request:
    """Return the conversion that a plan's line asks for; `outs`: an output for every type.

    Raises UsageError for an unknown option.
    """
    odd = sorted(set(recipe) - set(PLAN_NAMES))
    if odd:
        raise UsageError("an option of the plan", path=source, found=odd[0], expected=", ".join(sorted(PLAN_NAMES)))
    for name, value in recipe.items():
        kind = option(name).kind
        if kind in _WITHIN and value is not None and not isinstance(value, _WITHIN[kind]):  # no file of this machine
            raise UsageError(_in_plan(option(name)), path=source, found=value, expected=_EXPECTED[kind])
        if value is None and option(name).default is not None:
            raise UsageError(_in_plan(option(name)), path=source, found=value, expected=kind.value)
    check_overrides(recipe.get("metadata") or {})
    try:
        return replace(options_to_request(source, recipe, _in_plan), out_paths=tuple(outs), jobs=jobs)
    except UsageError as error:
        error.path = source
        raise


def check_recipe(source: str, recipe: Mapping[str, Any]) -> None:
    """Check what a plan's line asks for before its source is opened, as the command line does.

    Raises UsageError for an unknown option, one that has no such value, and options that do not go together.
    """
    try:
        check_request(request_of(source, recipe))
    except UsageError as error:
        error.path = source
        raise


def _in_plan(each: Option) -> str:
    return f"the option {each.name} of the plan"


def analyze(source: str, recipe: Mapping[str, Any], threads: int, config: str | None = None) -> Analysis:
    """Return the fields of a plan's line that the file itself decides. Raises one of `formats.errors`.

    `config`: the config.json in the folder of a GGML-era file, for what its header leaves open.
    """
    plan, options, notes, limit = _planned(source, recipe, config)
    outputs, mmproj = plan.main, plan.mmproj
    plans, graph = [output.plan for output in outputs], outputs[0].plan.graph
    checkpoint = graph.checkpoint
    try:
        facts: Analysis = {
            "container": checkpoint.container,
            "version": checkpoint.version,
            "era": checkpoint.era,
            "types": count_types(list(checkpoint.tensors.values())),
            "architecture": graph.architecture.name,
            "bytes_out": sum(map(_bytes_of, plans)) if limit is None else limit,
            "bytes_beside": mmproj.plan.bytes_written if mmproj else 0,
            "memory": _memory(plans, threads),
            "grades": dict(Counter(each.grade for one in plans for each in _parts(one))),
            "outputs": [_output(output, limit) for output in outputs],
            "options": options,
            "lost": [cast("LossRecord", asdict(loss)) for loss in losses(graph.dropped)],
            "notes": _notes([*notes, *checkpoint.notes, *graph.notes], plans),
        }
        if mmproj:
            size, more = mmproj.plan.bytes_written, mmproj.plan.graph.notes
            note = f"the vision or audio encoder becomes an mmproj file beside the output: {size:,} bytes"
            facts["notes"] = _notes([*facts["notes"], note, *more], [mmproj.plan])
        if why := _is_done(checkpoint, outputs[0]):
            facts |= {"verdict": "skip", "reason": why}
        return facts
    finally:
        checkpoint.close()


def _output(output: PlannedOutput, limit: int | None) -> PlannedFile:
    plan, outtype = output.plan, output.request.options.outtype
    if isinstance(plan, FolderPlan) or output.request.to != GGUF:
        return {"outtype": outtype, "name": os.path.basename(output.paths[0]), "bytes": _bytes_of(plan), "shards": 1}
    metadata = plan.metadata if limit is None else {k: v for k, v in plan.metadata.items() if k != FILE_TYPE}
    name = output_name(metadata, plan.options, None)
    shards = max(1, len(plan.layouts))
    size = plan.bytes_written if limit is None else limit
    return {"outtype": outtype, "name": name, "bytes": size, "shards": shards}


def _bytes_of(plan: Plan | FolderPlan) -> int:
    """Return the bytes of an output; of a folder those of all its files but the receipt."""
    return plan.bytes_of_files if isinstance(plan, FolderPlan) else plan.bytes_written


def _notes(notes: Sequence[str], plans: Sequence[Plan | FolderPlan]) -> list[str]:
    return list(dict.fromkeys((*notes, *(note for plan in plans for note in plan.notes))))


class Planned(NamedTuple):
    """What will be written, the options it needed besides the recipe, and why; `limit`: the size that is asked for."""

    plan: ConversionPlan
    options: dict[str, Any]
    notes: list[str]
    limit: int | None = None


def _planned(source: str, recipe: Mapping[str, Any], config: str | None) -> Planned:
    """Return the first plan that can be made.

    A sidecar file of a legacy file is used where it fits the file or fills a gap, and each such choice is reported.
    """
    tries: list[tuple[dict[str, Any], str]] = [({}, "")]
    if recipe.get("tokenizer_model"):
        tries.append(({"tokenizer_model": None}, "the tokenizer.model beside it is not this model's and is not used"))
    if config is not None:
        tries += [
            ({**more, "config": config}, "the config.json beside it fills what its header lacks") for more, _ in tries
        ]
    first: GgferryError | None = None
    for more, note in tries:
        request = request_of(source, {**recipe, **more})
        check_request(request)
        try:
            checkpoint = open_source_of(request)
            try:
                request, limit = with_planned_size(request, checkpoint)
                plan, fewer, why = _needed(plan_conversion(request, checkpoint), checkpoint)
            except BaseException:
                checkpoint.close()
                raise
            notes = [f"{note}: {first.message}"] if first is not None else []
            if limit is not None:
                notes.append(f"the types are chosen when the weights are read: {limit:,} bytes at most")
            return Planned(plan, more | fewer, [*notes, *why], limit)
        except GgferryError as error:
            first = first or error
    assert first is not None
    raise first


def _needed(plan: ConversionPlan, checkpoint: Checkpoint) -> tuple[ConversionPlan, dict[str, Any], list[str]]:
    """Return what of several types is to be made, with the types that are left, where that is not all of them."""
    if plan.main[0].kind.name == MMPROJ:  # alone, and of a type of its own
        return plan, {"outtype": types_of(plan.request.options.outtype)[0]}, []
    left = [output for output in plan.main if not _is_done(checkpoint, output)]
    if not left or len(left) == len(plan.main):
        return plan, {}, []
    types = ",".join(output.request.options.outtype for output in left)
    plan = replace(plan, outputs=tuple(left))
    return plan, {"outtype": types}, ["it is GGUF v3 already: its types are kept in it, and not in a copy"]


def _is_done(checkpoint: Checkpoint, output: PlannedOutput) -> str:
    """Return why a source needs no conversion; '' where it does."""
    request, plan = output.request, output.plan
    if isinstance(plan, FolderPlan):
        made = receipt_in(checkpoint) or {}
        return f"a folder of this form already (--to {request.to})" if _is_as_made(request, made) else ""
    if request.to != GGUF:
        is_done = checkpoint.layout == WHISPER_LAYOUT and request.options.outtype.lower() == "keep"
        return "a file of whisper.cpp already" if is_done else ""
    options = plan.options
    is_done = (
        checkpoint.container == "gguf"
        and checkpoint.version == 3
        and options.outtype.lower() == "keep"
        and options.recipe_text is None
        and not checkpoint.adapters
        and checkpoint.big_endian == options.big_endian
        and not isinstance(checkpoint.files[0], Shown)
    )
    return "GGUF v3 already; its structure is intact" if is_done else ""


def _is_as_made(request: Request, receipt: Mapping[str, Any]) -> bool:
    """Return whether a folder with this receipt is what a request asks for."""
    options = receipt.get("options")
    declared = options if isinstance(options, dict) else {}
    types = (declared.get("dtype"), declared.get("outtype", "keep"))
    return receipt.get("to") == request.to and types == (request.dtype, request.options.outtype)


def _memory(plans: Sequence[Plan | FolderPlan], threads: int) -> int:
    vocabulary, steps = _pieces(plans[0]), sum(len(_parts(plan)) for plan in plans)
    return BASE_MEMORY + threads * THREAD_MEMORY + steps * TENSOR_MEMORY + vocabulary * TOKEN_MEMORY


def _parts(plan: Plan | FolderPlan) -> Sequence[Step | Entry]:
    """Return the tensors that are written."""
    return plan.shards.entries if isinstance(plan, FolderPlan) else plan.steps


def _pieces(plan: Plan | FolderPlan) -> int:
    """Return the number of pieces in the vocabulary of an output."""
    if isinstance(plan, FolderPlan):
        return len(plan.tokenizer.tokens) if plan.tokenizer else 0
    tokens = plan.metadata.get("tokenizer.ggml.tokens")
    return len(tokens.value.data) if tokens is not None else 0
