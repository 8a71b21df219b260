"""Names and layouts of transformers' TensorFlow classes, carried by rule to those of its torch classes.

Source: transformers 4.49 `modeling_tf_pytorch_utils.py` (`convert_tf_weight_name_to_pt_weight_name`,
`apply_transpose`) and `modeling_tf_utils.py` (`save_pretrained`, `load_tf_weights_from_h5`): a dataset has the name of
its layer, then that of its variable, which begins with the model's.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ggferry.converters.trainer_names.boxes import transposed
from ggferry.converters.trainer_names.model_class import renamed
from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.errors import UnexpectedTensorError

NAME = "TensorFlow"
_LAST = {"kernel": "weight", "embeddings": "weight", "gamma": "weight", "beta": "bias"}
_RENAMED = re.compile(r"[^/]*___")
_PICTURES = (3, 2, 0, 1)  # a convolution over height and width: output channels, input channels, height, width
_SHARED = "the same variable under another layer"


def is_named_so(checkpoint: Checkpoint) -> bool:
    """Return whether tensors are called as TensorFlow calls variables."""
    return checkpoint.container == "hdf5" or _is_in_safetensors(checkpoint)


def _is_in_safetensors(checkpoint: Checkpoint) -> bool:
    """Return whether such a class wrote safetensors, which say so."""
    declared = checkpoint.header.get("metadata")
    return checkpoint.container == "safetensors" and isinstance(declared, dict) and declared.get("format") == "tf"


def as_transformers(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the names and the layouts of transformers' torch classes.

    A variable that several layers share, which Keras writes with each of them, is taken once. Raises
    UnexpectedTensorError where two that differ get one name, UnsupportedError as `transposed`.
    """
    in_shards = len(checkpoint.files) > 1 or "index" in checkpoint.header or _is_in_safetensors(checkpoint)
    tensors: dict[str, TensorRef] = {}
    dropped = list(checkpoint.dropped)
    for name, ref in checkpoint.tensors.items():
        new = _name(name, in_shards)
        found = _laid_out(checkpoint, ref, new)
        if (first := tensors.get(new)) is None:
            tensors[new] = found
        elif (first.shape, first.type) == (found.shape, found.type):
            dropped.append(Dropped(replace(found, name=name), _SHARED, same_as=first))
        else:
            raise UnexpectedTensorError("duplicate tensor name", path=checkpoint.path, found=new)
    return replace(renamed(checkpoint, NAME, tensors), dropped=tuple(dropped))


def _name(dataset: str, in_shards: bool) -> str:
    """Return the torch name of a variable; in shards and in safetensors neither its layer nor its model precedes it."""
    parts = dataset.removesuffix(":0").replace("_._", "/").split("/")
    if not in_shards:
        parts = parts[2:] if len(parts) > 2 else parts[-1:]
    *outer, last = (_RENAMED.sub("", part) for part in parts if part)
    return ".".join((*outer, _LAST.get(last, last)))


def _laid_out(checkpoint: Checkpoint, ref: TensorRef, name: str) -> TensorRef:
    last = ref.name.removesuffix(":0").rpartition("/")[2]
    rank = len(ref.shape)
    if last in ("kernel", "pointwise_kernel", "depthwise_kernel") and rank > 1:
        order = _PICTURES if rank == 4 else tuple(reversed(range(rank)))
        return transposed(ref, name, checkpoint.path, order)
    if last == "bias" and rank == 2 and ref.shape[0] == 1:  # of GPT-2's matrices, as TensorFlow keeps them
        span = replace(ref.spans[0], shape=ref.shape[1:])
        return replace(ref, name=name, shape=ref.shape[1:], spans=(span,))
    return replace(ref, name=name)
