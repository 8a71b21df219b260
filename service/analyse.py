"""What would become of one model: its headers read, its tensors bound, the conversion planned. No tensor data.

Runs in a worker process: these are the first eyes on a file that may be hostile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ggferry.converters.convert import Request, make_plan
from ggferry.converters.load import VocabOptions, open_checkpoint
from ggferry.converters.model_metadata import output_name
from ggferry.converters.plan import Options, Plan, count_types
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError, UsageError

BASE_MEMORY = 640 << 20  # torch, numba's compiled kernels and two forward passes' activations, measured
THREAD_MEMORY = 96 << 20  # chunks in flight of one thread, with their float32 values
TENSOR_MEMORY, TOKEN_MEMORY = 4 << 10, 2 << 10  # Python objects of a tensor's records, and of a piece of vocabulary

_OPTIONS = ("expand", "allow_requantize", "allow_nonfinite", "big_endian", "pure", "leave_output_tensor",
            "output_tensor_type", "token_embedding_type")  # fmt: skip
_VOCAB = {"tokenizer_model": "model", "pre": "pre", "huggingface_json": "keep_json", "trim_vocab": "trim",
          "no_vocab": "none"}  # fmt: skip
_REQUEST = ("hparams", "model_name", "base", "ggla_permute", "imatrix")
RECIPE_KEYS = ("outtype", "verify", *_OPTIONS, *_VOCAB, *_REQUEST)


def request_of(source: str, recipe: Mapping[str, Any], out: str | None = None, jobs: int | None = None) -> Request:
    """The conversion that a plan's line asks for. Raises UsageError for an option that is none."""
    odd = sorted(set(recipe) - set(RECIPE_KEYS))
    if odd:
        raise UsageError("an option of the plan", path=source, found=odd[0], expected=", ".join(sorted(RECIPE_KEYS)))
    options = Options(outtype=str(recipe.get("outtype", "keep")), **{k: recipe[k] for k in _OPTIONS if k in recipe})
    options.check()
    vocab = VocabOptions(**{ours: recipe[key] for key, ours in _VOCAB.items() if key in recipe})
    rest = {key: recipe[key] for key in _REQUEST if key in recipe}
    return Request(source, out, options, vocab=vocab, level=str(recipe.get("verify", "full")), jobs=jobs, **rest)


def analyse(source: str, recipe: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """The fields of a plan's line that the file itself decides. Raises one of `formats.errors`."""
    request = request_of(source, recipe)
    checkpoint = open_checkpoint(source)
    try:
        facts: dict[str, Any] = {
            "container": checkpoint.container,
            "version": checkpoint.version,
            "era": checkpoint.era,
            "types": count_types(list(checkpoint.tensors.values())),
        }
        plan, options, notes = _planned(request, checkpoint)
        facts |= {
            "architecture": plan.graph.architecture.name,
            "bytes_out": plan.bytes_written,
            "memory": _memory(plan, threads),
            "grades": dict(Counter(step.grade for step in plan.steps)),
            "name": output_name(plan.metadata, plan.options, None),
            "options": options,
            "notes": list(dict.fromkeys((*notes, *checkpoint.notes, *plan.graph.notes, *plan.notes))),
        }
        if _is_done(checkpoint, plan):
            facts |= {"verdict": "skip", "reason": "GGUF v3 already; its structure is intact"}
        return facts
    finally:
        checkpoint.close()


def _planned(request: Request, checkpoint: Checkpoint) -> tuple[Plan, dict[str, Any], list[str]]:
    """The plan; the tokenizer.model beside a legacy file is used where it fits the file, and told where it does not."""
    try:
        return make_plan(request, checkpoint)[0], {}, []
    except GgferryError as error:
        beside = request.vocab.model
        if beside is None:
            raise
        plan, _ = make_plan(replace(request, vocab=replace(request.vocab, model=None)), checkpoint)
        note = f"the tokenizer.model beside it is not this model's and is not used: {error.message}"
        return plan, {"tokenizer_model": None}, [note]


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
