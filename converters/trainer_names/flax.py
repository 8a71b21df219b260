"""Names and layouts of transformers' Flax classes, carried by rule to those of its torch classes.

Source: transformers 4.49 `modeling_flax_pytorch_utils.py` (`load_flax_weights_in_pytorch_model`), which knows no
class: the names are the same, but for the last part, and matrices are multiplied from the other side.
"""

from __future__ import annotations

from dataclasses import replace

from ggferry.converters.trainer_names.boxes import transposed
from ggferry.converters.trainer_names.model_class import renamed
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import UnexpectedTensorError

NAME = "Flax"
_LAST = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
_PICTURES = (3, 2, 0, 1)  # a convolution over height and width: output channels, input channels, height, width


def is_named_so(checkpoint: Checkpoint) -> bool:
    """Return whether tensors are called as Flax calls them: its container alone has such names."""
    return checkpoint.container == "flax"


def as_transformers(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the names and the layouts of transformers' torch classes.

    Raises UnexpectedTensorError where two tensors get one name, UnsupportedError as `transposed`.
    """
    tensors: dict[str, TensorRef] = {}
    for name, ref in checkpoint.tensors.items():
        *outer, last = name.split("/")
        new = ".".join((*outer, _LAST.get(last, last)))
        if new in tensors:
            raise UnexpectedTensorError("duplicate tensor name", path=checkpoint.path, found=new)
        rank = len(ref.shape)
        if last == "kernel" and rank > 1:
            order = _PICTURES if rank == 4 else tuple(reversed(range(rank)))
            tensors[new] = transposed(ref, new, checkpoint.path, order)
        else:
            tensors[new] = replace(ref, name=new)
    return renamed(checkpoint, NAME, tensors)
