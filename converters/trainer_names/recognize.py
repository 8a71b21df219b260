"""Find out by which trainer's names the tensors of a checkpoint are called."""

from __future__ import annotations

from ggferry.converters.trainer_names import flax, litgpt, megatron, mlx_examples, openai, tensorflow, torchtune
from ggferry.converters.trainer_names.gemma import names as gemma
from ggferry.converters.trainer_names.keras_hub import names as keras_hub
from ggferry.converters.trainer_names.mlx_lm import names as mlx_lm
from ggferry.formats.checkpoint import Checkpoint

_TRAINERS = (
    (mlx_examples.is_named_so, mlx_examples.as_transformers),
    (mlx_lm.is_named_so, mlx_lm.as_transformers),
    (litgpt.is_named_so, litgpt.as_transformers),
    (openai.is_named_so, openai.as_transformers),
    (torchtune.is_named_so, torchtune.as_transformers),
    (megatron.is_named_so, megatron.as_transformers),
    (flax.is_named_so, flax.as_transformers),
    (tensorflow.is_named_so, tensorflow.as_transformers),
    (keras_hub.is_named_so, keras_hub.as_transformers),
    (gemma.is_named_so, gemma.as_transformers),
)


def is_of_trainer(checkpoint: Checkpoint) -> bool:
    """Return whether tensors have names from which no class of transformers can be told (mlx-lm's are nearly those)."""
    others = (named for named, as_transformers in _TRAINERS if as_transformers is not mlx_lm.as_transformers)
    return any(is_named_so(checkpoint) for is_named_so in others)


def with_known_names(checkpoint: Checkpoint) -> Checkpoint:
    """Return a training checkpoint by the names of transformers, where its own are a trainer's; else as it is.

    Raises as the modules of the trainers.
    """
    for is_named_so, as_transformers in _TRAINERS:
        if is_named_so(checkpoint):
            return as_transformers(checkpoint)
    return checkpoint
