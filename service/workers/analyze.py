"""Analyze one model: read its headers, bind its tensors, plan its conversion. No tensor data.

This runs in a worker process: it is the first code to read a file that may be hostile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from ggferry.converters.conversion_plan.output_metadata import output_name
from ggferry.converters.conversion_plan.steps import Plan, count_types
from ggferry.converters.model_graph.graph import losses
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.options import PLAN_NAMES, Option, option
from ggferry.converters.request import Request
from ggferry.converters.request import request_of as options_to_request
from ggferry.converters.rungs import rungs_of
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


def _in_plan(each: Option) -> str:
    return f"the option {each.name} of the plan"


def analyze(source: str, recipe: Mapping[str, Any], threads: int, config: str | None = None) -> dict[str, Any]:
    """Return the fields of a plan's line that the file itself decides. Raises one of `formats.errors`.

    `config`: the config.json in the folder of a GGML-era file, for what its header leaves open.
    """
    (plan, *beside), options, notes = _planned(source, recipe, config)
    checkpoint = plan.graph.checkpoint
    try:
        facts: dict[str, Any] = {
            "container": checkpoint.container,
            "version": checkpoint.version,
            "era": checkpoint.era,
            "types": count_types(list(checkpoint.tensors.values())),
            "architecture": plan.graph.architecture.name,
            "bytes_out": plan.bytes_written,
            "bytes_beside": sum(each.bytes_written for each in beside),
            "memory": _memory(plan, threads),
            "grades": dict(Counter(step.grade for step in plan.steps)),
            "name": output_name(plan.metadata, plan.options, None),
            "options": options,
            "lost": [asdict(loss) for loss in losses(plan.graph.dropped)],
            "notes": list(dict.fromkeys((*notes, *checkpoint.notes, *plan.graph.notes, *plan.notes))),
        }
        for each in beside:
            told = f"what sees and hears becomes a file of its own beside the output: {each.bytes_written:,} bytes"
            facts["notes"] = list(dict.fromkeys((*facts["notes"], told, *each.graph.notes, *each.notes)))
        if _is_done(checkpoint, plan):
            facts |= {"verdict": "skip", "reason": "GGUF v3 already; its structure is intact"}
        return facts
    finally:
        checkpoint.close()


def _planned(
    source: str, recipe: Mapping[str, Any], config: str | None
) -> tuple[list[Plan], dict[str, Any], list[str]]:
    """Return the first plans that can be made, the options they needed besides `recipe`, and why.

    There are two of a model that also sees or hears. A sidecar file of a legacy file is used where it fits the file or
    fills a gap, and each such choice is reported.
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
        try:
            checkpoint = open_checkpoint(source, request.arch, request.config)
            try:
                plans = [rung.plan for rung in rungs_of([request], checkpoint)]
            except BaseException:
                checkpoint.close()
                raise
            return plans, more, [f"{note}: {first.message}"] if first is not None else []
        except GgferryError as error:
            first = first or error
    assert first is not None
    raise first


def _is_done(checkpoint: Checkpoint, plan: Plan) -> bool:
    asked = plan.options
    return (
        checkpoint.container == "gguf"
        and checkpoint.version == 3
        and asked.outtype.lower() == "keep"
        and checkpoint.big_endian == asked.big_endian
    )


def _memory(plan: Plan, threads: int) -> int:
    tokens = plan.metadata.get("tokenizer.ggml.tokens")
    vocabulary = len(tokens.value.data) if tokens is not None else 0
    return BASE_MEMORY + threads * THREAD_MEMORY + len(plan.steps) * TENSOR_MEMORY + vocabulary * TOKEN_MEMORY
