"""Find out by which trainer's names the tensors of a checkpoint are called."""

from __future__ import annotations

from ggferry.converters.trainer_names import litgpt
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.reader import Kind, kind_of


def with_known_names(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint by the names of transformers, where its own are a trainer's; else as it is.

    Raises as the modules of the trainers.
    """
    ours = kind_of(checkpoint.container) is Kind.TRAINING and litgpt.is_named_so(checkpoint.tensors)
    return litgpt.as_transformers(checkpoint) if ours else checkpoint
