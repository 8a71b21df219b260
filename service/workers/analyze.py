"""What would become of one model: its headers read, its tensors bound, the conversion planned. No tensor data.

Runs in a worker process: these are the first eyes on a file that may be hostile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ggferry.converters.conversion_plan.output_metadata import output_name
from ggferry.converters.conversion_plan.steps import Options, Plan, count_types
from ggferry.converters.convert import LEVELS, Request, make_plan
from ggferry.converters.model_graph.graph import losses
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError, UsageError

BASE_MEMORY = 640 << 20  # torch, numba's compiled kernels and two forward passes' activations, measured
THREAD_MEMORY = 96 << 20  # chunks in flight of one thread, with their float32 values
TENSOR_MEMORY, TOKEN_MEMORY = 4 << 10, 2 << 10  # Python objects of a tensor's records, and of a piece of vocabulary

_OPTIONS = ("expand", "allow_requantize", "allow_nonfinite", "big_endian", "pure", "leave_output_tensor",
            "output_tensor_type", "token_embedding_type")  # fmt: skip
_VOCAB = {"tokenizer_model": "model", "pre": "pre", "huggingface_json": "keep_json", "trim_vocab": "trim",
          "no_vocab": "none", "tokenizer": "source"}  # fmt: skip
_REQUEST = ("hparams", "model_name", "base", "ggla_permute", "imatrix", "arch", "config")
PATHS = ("tokenizer_model", "tokenizer", "base", "imatrix", "config")  # options that name files
_FLAGS = ("allow_requantize", "allow_nonfinite", "big_endian", "pure", "leave_output_tensor", "huggingface_json",
          "trim_vocab", "no_vocab", "ggla_permute")  # fmt: skip
_MAPS = ("hparams",)
TEXT, FLAG, MAP = (str, type(None)), bool, dict
WORDS = {TEXT: "text", FLAG: "true or false", MAP: "an object of texts"}
RECIPE_KEYS = ("outtype", "verify", *_OPTIONS, *_VOCAB, *_REQUEST)


def request_of(source: str, recipe: Mapping[str, Any], out: str | None = None, jobs: int | None = None) -> Request:
    """The conversion that a plan's line asks for. Raises UsageError for an option that is none."""
    odd = sorted(set(recipe) - set(RECIPE_KEYS))
    if odd:
        raise UsageError("an option of the plan", path=source, found=odd[0], expected=", ".join(sorted(RECIPE_KEYS)))
    for key, value in recipe.items():
        kind = FLAG if key in _FLAGS else MAP if key in _MAPS else TEXT
        inner = value.values() if isinstance(value, dict) else ()
        if not isinstance(value, kind) or not all(isinstance(each, str) for each in inner):
            raise UsageError(f"the option {key} of the plan", path=source, found=value, expected=WORDS[kind])
    options = Options(outtype=str(recipe.get("outtype", "keep")), **{k: recipe[k] for k in _OPTIONS if k in recipe})
    options.check()
    if recipe.get("verify", "full") not in LEVELS:
        raise UsageError("verify in the plan", path=source, found=recipe["verify"], expected=", ".join(LEVELS))
    vocab = VocabOptions(**{ours: recipe[key] for key, ours in _VOCAB.items() if key in recipe})
    rest = {key: recipe[key] for key in _REQUEST if key in recipe}
    return Request(source, out, options, vocab=vocab, level=str(recipe.get("verify", "full")), jobs=jobs, **rest)


def analyze(source: str, recipe: Mapping[str, Any], threads: int, config: str | None = None) -> dict[str, Any]:
    """The fields of a plan's line that the file itself decides. `config`: the config.json that stands beside a file of
    the GGML era, for what its header leaves open. Raises one of `formats.errors`."""
    plan, options, notes = _planned(source, recipe, config)
    checkpoint = plan.graph.checkpoint
    try:
        facts: dict[str, Any] = {
            "container": checkpoint.container,
            "version": checkpoint.version,
            "era": checkpoint.era,
            "types": count_types(list(checkpoint.tensors.values())),
            "architecture": plan.graph.architecture.name,
            "bytes_out": plan.bytes_written,
            "memory": _memory(plan, threads),
            "grades": dict(Counter(step.grade for step in plan.steps)),
            "name": output_name(plan.metadata, plan.options, None),
            "options": options,
            "lost": [asdict(loss) for loss in losses(plan.graph.dropped)],
            "notes": list(dict.fromkeys((*notes, *checkpoint.notes, *plan.graph.notes, *plan.notes))),
        }
        if _is_done(checkpoint, plan):
            facts |= {"verdict": "skip", "reason": "GGUF v3 already; its structure is intact"}
        return facts
    finally:
        checkpoint.close()


def _planned(source: str, recipe: Mapping[str, Any], config: str | None) -> tuple[Plan, dict[str, Any], list[str]]:
    """The first plan that can be made, what it needed beside `recipe`, and why: what stands beside a legacy file is
    used where it fits the file or fills what the file lacks, and each such choice is told."""
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
                plan, _ = make_plan(request, checkpoint)
            except BaseException:
                checkpoint.close()
                raise
            return plan, more, [f"{note}: {first.message}"] if first is not None else []
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
