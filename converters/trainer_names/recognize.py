"""Find out by which trainer's names the tensors of a checkpoint are called."""

from __future__ import annotations

from ggferry.converters.trainer_names import litgpt, mlx_examples, torchtune
from ggferry.formats.checkpoint import Checkpoint

_TRAINERS = (
    (litgpt.is_named_so, litgpt.as_transformers),
    (torchtune.is_named_so, torchtune.as_transformers),
)


def with_known_names(checkpoint: Checkpoint) -> Checkpoint:
    """Return a training checkpoint by the names of transformers, where its own are a trainer's; else as it is.

    Raises as the modules of the trainers.
    """
    if mlx_examples.is_named_so(checkpoint):
        return mlx_examples.as_transformers(checkpoint)
    for is_named_so, as_transformers in _TRAINERS:
        if is_named_so(checkpoint.tensors):
            return as_transformers(checkpoint)
    return checkpoint
