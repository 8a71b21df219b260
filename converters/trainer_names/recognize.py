"""Find out by which trainer's names the tensors of a checkpoint are called."""

from __future__ import annotations

from ggferry.converters.trainer_names import litgpt, torchtune
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.reader import Kind, kind_of

_TRAINERS = (
    (litgpt.is_named_so, litgpt.as_transformers),
    (torchtune.is_named_so, torchtune.as_transformers),
)


def with_known_names(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint by the names of transformers, where its own are a trainer's; else as it is.

    Raises as the modules of the trainers.
    """
    if kind_of(checkpoint.container) is Kind.TRAINING:
        for is_named_so, as_transformers in _TRAINERS:
            if is_named_so(checkpoint.tensors):
                return as_transformers(checkpoint)
    return checkpoint
