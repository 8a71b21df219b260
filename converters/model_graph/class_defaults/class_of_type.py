"""Which class a model has whose configuration states a model type and no class.

transformers' `AutoModelForCausalLM` and its kin go by the model type alone. Several classes share one; which of them
saved a checkpoint, the names of its tensors say: a head's are there or not, and a base model's lack the prefix that
they have within another class (`base_model_prefix`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ggferry.converters.model_graph.class_defaults.text_models import default_part, model_types
from ggferry.converters.schema.architecture import Dialect
from ggferry.formats.checkpoint import Checkpoint

_CLASSIFIES, _WHOLE, _ENCODER = "ForSequenceClassification", "ForConditionalGeneration", "EncoderModel"
_SCORES = re.compile(r"(?:.*\.)?(?:score|classifier)\..*")
_BARE = re.compile(r"(?:layers|layer|blocks|encoder|decoder|embed_tokens|embeddings|norm|transformer\.layer)\..*")
"""Names of a base model's tensors, where nothing stands before them. Not GPT-2's `h.`: OpenAI's own files, which make
words, are named so."""
_PARTS = ("text_config", "thinker_config", "llm_config")


def with_class(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the class in its configuration, where only the model type is stated and decides it.

    A note says so. Without a class that is certain, the checkpoint is returned as it is.
    """
    kind = checkpoint.metadata.get("model_type")
    if checkpoint.metadata.get("architectures") or not isinstance(kind, str) or not checkpoint.tensors:
        return checkpoint
    name = class_of_type(kind, checkpoint.metadata, checkpoint.tensors)
    if name is None:
        return checkpoint
    note = f'config.json names no class ("architectures"): {name} is taken, by its model_type {kind} and the tensors'
    metadata = {**checkpoint.metadata, "architectures": [name]}
    return replace(checkpoint, metadata=metadata, notes=(*checkpoint.notes, note))


def class_of_type(kind: str, config: Mapping[str, Any], tensors: Collection[str]) -> str | None:
    """Return the class of that model type which has such tensors; None where there is none, or several may be meant."""
    found = [name for name in classes_of(kind) if _has_head(name, tensors)]
    encodes = not any(re.search(r"(?:^|\.)decoder\.", name) for name in tensors)
    found = [name for name in found if name.endswith(_ENCODER) == encodes] if _with(found, _ENCODER) else found
    bare = any(_BARE.fullmatch(name) for name in tensors)
    bases = [name for name in found if name.endswith("Model") and not name.endswith((_ENCODER, "LMHeadModel"))]
    if bases and len(bases) < len(found):
        found = bases if bare else [name for name in found if name not in bases]
    if _with(found, _WHOLE) and not all(name.endswith(_WHOLE) for name in found):
        whole = any(part in config for part in _PARTS)
        found = [name for name in found if name.endswith(_WHOLE) == whole]
    language = [name for name in found if name.endswith(("ForMaskedLM", "ForPreTraining"))]
    return found[0] if len(found) == 1 or (found and found == language) else None


def class_of_text_half(config: Mapping[str, Any], dialect: Dialect) -> str | None:
    """Return the class that the text model within another has alone (`Dialect.types`); None where nothing says it."""
    part = config.get(dialect.config_section)
    kind = part.get("model_type") if isinstance(part, Mapping) else None
    kind = kind if isinstance(kind, str) else default_part(config, dialect.config_section)
    alone = [name for name in classes_of(kind) if name.endswith("ForCausalLM")] if kind else []
    return alone[0] if alone else None


def classes_of(kind: str) -> tuple[str, ...]:
    """Return the classes of our tables that have this model type of transformers, or the whole's of this text model's.

    A class that has several is left to the one it is named like: InternLM3's is LLaMA's, too.
    """
    kinds = model_types()
    own = kinds[kind].classes if kind in kinds else ()
    if not own and kind.endswith("_text"):
        whole = kinds.get(kind.removesuffix("_text"))
        own = tuple(name for name in (whole.classes if whole else ()) if name.endswith("ForCausalLM"))
    others = [(each, listed.classes) for each, listed in kinds.items() if each.removesuffix("_text") != kind]
    return tuple(
        name
        for name in own
        if _alike(name, kind) or not any(name in listed and _alike(name, each) for each, listed in others)
    )


def _alike(name: str, kind: str) -> bool:
    return _plain(name).startswith(_plain(kind))


def _plain(name: str) -> str:
    return re.sub(r"[_-]", "", name.removesuffix("_text").lower())


def _has_head(name: str, tensors: Collection[str]) -> bool:
    """Return whether the tensors have the head of a classifier, where the class is one, and none where it is not."""
    return name.endswith(_CLASSIFIES) == any(_SCORES.fullmatch(tensor) for tensor in tensors)


def _with(names: Collection[str], end: str) -> bool:
    return any(name.endswith(end) for name in names)
