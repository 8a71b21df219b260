"""The model that a draft guesses tokens for: what its configuration tells of the draft (`--target-model`).

A draft reads states of its target's blocks, and has no vocabulary of its own. So its file takes the target's tokenizer,
and a few numbers that the draft's configuration need not state. Source: llama.cpp `conversion/llama.py`, `qwen.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.next_token_blocks import bundled_dialect
from ggferry.converters.schema.architecture import TARGET, Architecture
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.sidecars import architectures
from ggferry.formats.errors import InconsistentError, MissingError, UsageError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.json_files.text import load_object
from ggferry.formats.reader import Kind, kind_of

_KEPT = ("vocab_size", "num_hidden_layers", "hidden_size")


def with_target(checkpoint: Checkpoint, path: str) -> Checkpoint:
    """Return a draft's checkpoint, to whose configuration the member `TARGET` is added.

    Args:
        checkpoint: The draft, which is closed where the target cannot be read.
        path: The target's folder.

    Raises UsageError where either is no training checkpoint, and what reading config.json raises.
    """
    try:
        if kind_of(checkpoint.container) is not Kind.TRAINING:
            raise UsageError(f"{TARGET} is for drafts in Hugging Face's form", path=checkpoint.path)
        if not os.path.isfile(os.path.join(path, "config.json")):
            raise UsageError(f"{TARGET}: no config.json in the folder", path=path)
        facts = _draft_facts(load_object(os.path.join(path, "config.json")), path)
    except BaseException:
        checkpoint.close()
        raise
    return replace(checkpoint, metadata={**checkpoint.metadata, TARGET: facts})


def _draft_facts(config: Mapping[str, Any], path: str) -> JSONObject:
    """Return what a draft's table may ask of its target, of the text part where the target has one."""
    part = config.get("text_config")
    text = {**config, **part} if isinstance(part, Mapping) else config
    found = {key: text[key] for key in _KEPT if key in text}
    places = [text.get("rope_parameters"), text.get("rope_scaling")]
    axes = any(isinstance(place, Mapping) and "mrope_section" in place for place in places)
    return {**found, "axes": axes, "gemma": architectures(config, path)[0].startswith("Gemma")}


def reads_target(architecture: Architecture) -> bool:
    """Return whether models of the architecture are drafts that read a target's states."""
    return any(TARGET in param.fields.get("hf", "") for param in architecture.hparams)


def check_target(graph: ModelGraph, target: str | None, vocabulary: bool) -> None:
    """Check that a draft in Hugging Face's form has its target, and that nothing else has one.

    Args:
        graph: The model.
        target: What `--target-model` names.
        vocabulary: Whether a vocabulary is written, and no other option names one.

    Raises MissingError, UsageError, or InconsistentError for a draft of another width than what it takes over.
    """
    draft, folder = reads_target(graph.architecture), kind_of(graph.checkpoint.container) is Kind.TRAINING
    own = bundled_dialect(graph.checkpoint, graph.architecture) is not None
    if draft and folder and target is None and vocabulary and not own:
        raise MissingError(
            "speculative draft: it takes the vocabulary of its target model",
            path=graph.checkpoint.path,
            hint=f"{TARGET} DIR",
        )
    _check_width(graph)
    if target is not None and not draft:
        raise UsageError(f"{TARGET} is for drafts", path=graph.checkpoint.path, found=graph.architecture.name)


def _check_width(graph: ModelGraph) -> None:
    """Check that a draft which takes over its target's embeddings is as wide. Raises InconsistentError."""
    target = graph.checkpoint.metadata.get(TARGET)
    wide = target.get("hidden_size") if isinstance(target, Mapping) else None
    own = {"token_embd.weight", "output.weight"} <= set(graph.by_name)
    draft = graph.nodes and reads_target(graph.architecture)
    if draft and wide is not None and not own and wide != graph.sizes["n_embd"]:
        raise InconsistentError(
            "the draft takes over its target's embeddings or output matrix, and has another width",
            path=graph.checkpoint.path,
            found=graph.sizes["n_embd"],
            expected=wide,
        )
