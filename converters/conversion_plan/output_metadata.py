"""Assemble the metadata of an output file: general.*, the architecture's and the tokenizer's keys, with origins."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.converters.conversion_plan.steps import Options, Step, type_table
from ggferry.converters.metadata.beside import MMPROJ, mmproj_name
from ggferry.converters.metadata.file_names import file_name, guess
from ggferry.converters.metadata.general_keys import Entry, describe_origin, general_metadata, name_parts
from ggferry.converters.metadata.model_card import read_card
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.tokenizers.legacy.ids_alone import NO_MODEL
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.gguf.shards import SET_DIGEST
from ggferry.formats.gguf.values import Value, ValueType
from ggferry.formats.json_files.text import load_object
from ggferry.formats.reader import Kind, kind_of
from ggferry.quant.recipes.file_types import file_type_of
from ggferry.support.records import dataclass

SPLIT = "split."
TOKENS = "tokenizer.ggml.tokens"
MODEL = "tokenizer.ggml.model"


@dataclass(frozen=True, slots=True)
class Described:
    """What the metadata of an output says of a model whatever it is called.

    Attributes:
        parameters: Number of its weights.
        expert_parameters: Number of those in experts.
        file_type: The value of `general.file_type`; None without weights.
        quantized: Whether a tensor is quantized.
        own: The architecture's and the tokenizer's keys.
    """

    parameters: int
    expert_parameters: int
    file_type: int | None
    quantized: bool
    own: Mapping[str, Entry]


def describe(graph: ModelGraph, steps: Sequence[Step], tokenizer: Tokenizer | None, options: Options) -> Described:
    """Return what the metadata says of a model whatever it is called. The arguments are those of `assemble`."""
    return Described(
        graph.parameters,
        sum(r.elements for n in graph.nodes if "_exps" in n.name for r in n.inputs),
        file_type_of(type_table(steps), _declared(graph, options)) if steps else None,
        any(step.type.quantized for step in steps),
        {**architecture_entries(graph), **_without_texts(graph), **tokenizer_entries(tokenizer)},
    )


def assemble(
    graph: ModelGraph,
    steps: Sequence[Step],
    tokenizer: Tokenizer | None,
    options: Options,
    model_name: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    described: Described | None = None,
) -> tuple[dict[str, Entry], tuple[str, ...]]:
    """Return all keys of the output but `general.alignment` (which the writer adds), in order, and notes for the user.

    Args:
        graph: The model.
        steps: What happens to its tensors; empty where only the vocabulary is written.
        tokenizer: The vocabulary to write, if any.
        options: What the user asked for.
        model_name: The value of `--model-name`.
        overrides: The object of `--metadata`.
        described: What `describe` returns for the first four, where it is known.
    """
    checkpoint = graph.checkpoint
    found = described or describe(graph, steps, tokenizer, options)
    inherited = {
        k: v
        for k, v in checkpoint.metadata.items()
        if isinstance(v, Value) and not k.startswith(SPLIT) and k != SET_DIGEST
    }
    beside = checkpoint.sidecars
    card, card_notes = read_card(beside["README.md"]) if "README.md" in beside else ({}, ())
    is_mmproj = bool(graph.architecture.projector)
    sampled = "generation_config" in beside and not is_mmproj
    generation = load_object(beside["generation_config"]) if sampled else {}
    experts = graph.sizes.get("n_expert", 0)
    # Where the user gives a name, the path is not consulted, so it cannot contradict the name.
    named = model_name or checkpoint.title or os.path.abspath(checkpoint.path)
    guessed = guess(named, parameters=found.parameters, fallback=graph.architecture.name)
    general, notes = general_metadata(
        architecture=graph.architecture.name,
        guessed=guessed,
        description=_origin(checkpoint),
        parameters=found.parameters,
        experts=experts if isinstance(experts, int) else 0,
        expert_parameters=found.expert_parameters,
        file_type=found.file_type,
        quantized=found.quantized,
        kind=MMPROJ if is_mmproj else "model",
        model_name=model_name,
        overrides=overrides,
        inherited=inherited,
        card=card,
        config={} if inherited else checkpoint.metadata,
        generation_config=generation,
    )
    ours = {**general, **found.own}
    unwanted = ("general.", "tokenizer.") if tokenizer is None and TOKENS in inherited else ("general.",)
    rest = {
        key: Entry(value, f"key {key} of the source")
        for key, value in inherited.items()
        if key not in ours and not key.startswith(unwanted)
    }
    return {**ours, **rest}, (*guessed.notes, *card_notes, *notes)


def _origin(checkpoint: Checkpoint) -> str:
    """Return in words which file a legacy model was converted from; "" for other sources.

    Training checkpoints of the same weights must give the same bytes in whatever container they are stored; their
    origin is in the receipt.
    """
    kind = kind_of(checkpoint.container)
    if kind is Kind.LEGACY or (kind is Kind.GGUF and checkpoint.version != 3):
        return describe_origin(checkpoint.path, checkpoint.container, checkpoint.version, checkpoint.era)
    return ""


def _declared(graph: ModelGraph, options: Options) -> int | None:
    """Return the file type that the source or the user names; it is written only where the tensors agree with it."""
    recipe = options.recipe()
    if recipe.default != "keep" or recipe.rules:
        return recipe.file_type
    declared = graph.checkpoint.header.get("ftype")
    if declared is None:
        value = graph.checkpoint.metadata.get("general.file_type")
        declared = value.data if isinstance(value, Value) else None
    return declared if isinstance(declared, int) else None


def architecture_entries(graph: ModelGraph) -> dict[str, Entry]:
    """Return the hparams under their GGUF keys."""
    return {key: Entry(value, origin) for key, value, origin in graph.written()}


def _without_texts(graph: ModelGraph) -> dict[str, Entry]:
    """Return the key that says that a model has no vocabulary, of one that never has one (`llama-vocab.cpp`)."""
    if not graph.sizes.get("no_vocabulary"):
        return {}
    return {MODEL: Entry(Value(ValueType.STRING, NO_MODEL), "the model reads no text")}


def tokenizer_entries(tokenizer: Tokenizer | None) -> dict[str, Entry]:
    """Return the tokenizer's keys, with the origin of each where it is known."""
    if tokenizer is None:
        return {}
    origins = tokenizer.origins
    return {
        key: Entry(value, origins.get(key.rsplit(".", 1)[-1].removesuffix("_token_id"), "the source's vocabulary"))
        for key, value in tokenizer.to_kv().items()
    }


def output_name(metadata: Mapping[str, Entry], options: Options, shard: str | None = None) -> str:
    """Return the file name by the GGUF naming convention. `shard`: for example '00001-of-00003'."""
    parts = name_parts(metadata, vocab_only=options.vocab_only, shard=shard)
    name = file_name(parts)
    return mmproj_name(name) if parts.type == MMPROJ else name
