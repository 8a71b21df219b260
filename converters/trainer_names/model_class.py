"""The class that a checkpoint by a trainer's names is of, and the checkpoint by those of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import MissingError
from ggferry.formats.pytorch.nested_state import plain_names
from ggferry.support.printable import printable


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


def unwrapped(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint without the names of modules that training puts around others (DDP, torch.compile, FSDP).

    Raises DuplicateError where two tensors would have one name.
    """
    plain = plain_names(checkpoint.tensors, checkpoint.path)
    if all(name == short for name, short in plain.items()):
        return checkpoint
    tensors = {short: replace(checkpoint.tensors[name], name=short) for name, short in plain.items()}
    example = next(f"{name!r} is {short!r}" for name, short in plain.items() if name != short)
    note = f"names of tensors are taken without the modules that training puts around a model: {printable(example)}"
    return replace(checkpoint, tensors=tensors, notes=(*checkpoint.notes, note))
