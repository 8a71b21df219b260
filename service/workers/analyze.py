"""Analyze one model: read its headers, bind its tensors, plan its conversion. No tensor data.

This runs in a worker process: it is the first code to read a file that may be hostile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from ggferry.converters.conversion.options import PLAN_NAMES, Option, option, types_of
from ggferry.converters.conversion.outputs import Rung, check_kinds, rungs_of
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.request import request_of as options_to_request
from ggferry.converters.conversion_plan.output_metadata import output_name
from ggferry.converters.conversion_plan.steps import Plan, count_types
from ggferry.converters.model_graph.graph import losses
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError, UsageError

BASE_MEMORY = 640 << 20  # torch, numba's compiled kernels and two forward passes' activations, measured
THREAD_MEMORY = 96 << 20  # chunks in flight of one thread, with their float32 values
TENSOR_MEMORY, TOKEN_MEMORY = 4 << 10, 2 << 10  # Python objects of a tensor's records, and of a piece of vocabulary


def request_of(source: str, recipe: Mapping[str, Any], out: str | None = None, jobs: int | None = None) -> Request:
    """Return the conversion that a plan's line asks for. Raises UsageError for an unknown option."""
    odd = sorted(set(recipe) - set(PLAN_NAMES))
    if odd:
        raise UsageError("an option of the plan", path=source, found=odd[0], expected=", ".join(sorted(PLAN_NAMES)))
    for name, value in recipe.items():
        if value is None and option(name).default is not None:
            raise UsageError(_in_plan(option(name)), path=source, found=value, expected=option(name).kind.value)
    try:
        return replace(options_to_request(source, recipe, _in_plan), out=out, jobs=jobs)
    except UsageError as error:
        error.path = source
        raise


def requests_of(
    source: str, recipe: Mapping[str, Any], outs: Sequence[str] = (), jobs: int | None = None
) -> list[Request]:  # fmt: skip
    """Return the conversions that a plan's line asks for, one for every type; `outs`: their outputs.

    Raises UsageError as `request_of`.
    """
    asked = recipe.get("outtype", option("outtype").default)
    types = types_of(asked) if isinstance(asked, str) else (asked,)
    found = [request_of(source, {**recipe, "outtype": each}, jobs=jobs) for each in types]
    return [replace(each, out=out) for each, out in zip(found, outs, strict=True)] if outs else found


def _in_plan(each: Option) -> str:
    return f"the option {each.name} of the plan"


def analyze(source: str, recipe: Mapping[str, Any], threads: int, config: str | None = None) -> dict[str, Any]:
    """Return the fields of a plan's line that the file itself decides. Raises one of `formats.errors`.

    `config`: the config.json in the folder of a GGML-era file, for what its header leaves open.
    """
    rungs, beside, options, notes = _planned(source, recipe, config)
    plan = rungs[0].plan
    checkpoint = plan.graph.checkpoint
    try:
        facts: dict[str, Any] = {
            "container": checkpoint.container,
            "version": checkpoint.version,
            "era": checkpoint.era,
            "types": count_types(list(checkpoint.tensors.values())),
            "architecture": plan.graph.architecture.name,
            "bytes_out": sum(rung.plan.bytes_written for rung in rungs),
            "bytes_beside": sum(each.bytes_written for each in beside),
            "memory": _memory([rung.plan for rung in rungs], threads),
            "grades": dict(Counter(step.grade for rung in rungs for step in rung.plan.steps)),
            "outputs": [_output(rung) for rung in rungs],
            "options": options,
            "lost": [asdict(loss) for loss in losses(plan.graph.dropped)],
            "notes": _notes([*notes, *checkpoint.notes, *plan.graph.notes], [rung.plan for rung in rungs]),
        }
        for each in beside:
            told = f"what sees and hears becomes a file of its own beside the output: {each.bytes_written:,} bytes"
            facts["notes"] = _notes([*facts["notes"], told, *each.graph.notes], [each])
        if _is_done(checkpoint, plan):
            facts |= {"verdict": "skip", "reason": "GGUF v3 already; its structure is intact"}
        return facts
    finally:
        checkpoint.close()


def _output(rung: Rung) -> dict[str, Any]:
    plan = rung.plan
    name = output_name(plan.metadata, plan.options, None)
    return {"outtype": rung.request.options.outtype, "name": name, "bytes": plan.bytes_written}


def _notes(notes: Sequence[str], plans: Sequence[Plan]) -> list[str]:
    return list(dict.fromkeys((*notes, *(note for plan in plans for note in plan.notes))))


Planned = tuple[list[Rung], list[Plan], dict[str, Any], list[str]]
"""The outputs, what is written beside them, the options they needed besides the recipe, and why."""


def _planned(source: str, recipe: Mapping[str, Any], config: str | None) -> Planned:
    """Return the first plans that can be made.

    Of a model that also sees or hears there is one beside the outputs. A sidecar file of a legacy file is used where it
    fits the file or fills a gap, and each such choice is reported.
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
        requests = requests_of(source, {**recipe, **more})
        try:
            checkpoint = open_checkpoint(source, requests[0].arch, requests[0].config)
            try:
                rungs, beside, fewer, why = _needed(requests, rungs_of(requests, checkpoint), checkpoint)
            except BaseException:
                checkpoint.close()
                raise
            return rungs, beside, more | fewer, [*([f"{note}: {first.message}"] if first is not None else []), *why]
        except GgferryError as error:
            first = first or error
    assert first is not None
    raise first


def _needed(requests: Sequence[Request], rungs: Sequence[Rung], checkpoint: Checkpoint) -> Planned:
    """Return what of several types is to be made, with the types that are left, where that is not all of them."""
    check_kinds(rungs)
    if len(rungs) < len(requests):  # the file of what sees and hears alone, which has a type of its own
        return [rungs[0]], [], {"outtype": requests[0].options.outtype}, []
    texts, beside = rungs[: len(requests)], [rung.plan for rung in rungs[len(requests) :]]
    left = [rung for rung in texts if not _is_done(checkpoint, rung.plan)]
    if not left or len(left) == len(texts):
        return [*texts], beside, {}, []
    types = ",".join(rung.request.options.outtype for rung in left)
    return left, beside, {"outtype": types}, ["it is GGUF v3 already: its types are kept in it, and not in a copy"]


def _is_done(checkpoint: Checkpoint, plan: Plan) -> bool:
    asked = plan.options
    return (
        checkpoint.container == "gguf"
        and checkpoint.version == 3
        and asked.outtype.lower() == "keep"
        and checkpoint.big_endian == asked.big_endian
    )


def _memory(plans: Sequence[Plan], threads: int) -> int:
    tokens = plans[0].metadata.get("tokenizer.ggml.tokens")
    vocabulary, steps = len(tokens.value.data) if tokens is not None else 0, sum(len(plan.steps) for plan in plans)
    return BASE_MEMORY + threads * THREAD_MEMORY + steps * TENSOR_MEMORY + vocabulary * TOKEN_MEMORY
