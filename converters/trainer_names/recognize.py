"""Find out by which trainer's names the tensors of a checkpoint are called."""

from __future__ import annotations

from ggferry.converters.trainer_names import litgpt, torchtune
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.reader import Kind, kind_of

_TRAINERS = (litgpt, torchtune)


def with_known_names(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint by the names of transformers, where its own are a trainer's; else as it is.

    Raises as the modules of the trainers.
    """
    if kind_of(checkpoint.container) is Kind.TRAINING:
        for trainer in _TRAINERS:
            if trainer.is_named_so(checkpoint.tensors):
                return trainer.as_transformers(checkpoint)
    return checkpoint
