"""The class that a checkpoint by a trainer's names is of, and the checkpoint by those of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import MissingError


def classes_of(checkpoint: Checkpoint, trainer: str, hint: str) -> list[str]:
    """Return the classes that config.json names. Raises MissingError, with `hint`, where there is none."""
    named = checkpoint.metadata.get("architectures")
    classes = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    if not classes:
        raise MissingError(f"a model of {trainer} without its config.json", path=checkpoint.path, hint=hint)
    return classes


def renamed(checkpoint: Checkpoint, trainer: str, tensors: Mapping[str, TensorRef]) -> Checkpoint:
    """Return a checkpoint with the tensors by the names of transformers, and a note of it."""
    note = f"tensors have {trainer}'s names; those of transformers were taken"
    header = {**checkpoint.header, "names": trainer}
    return replace(checkpoint, tensors=tensors, header=header, notes=(*checkpoint.notes, note))
