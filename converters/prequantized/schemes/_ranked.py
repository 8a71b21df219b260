"""MiMo-V2.5's queries, keys and values of FP8: one matrix, rank by rank of tensor parallelism, each with own blocks.

A rank's last block of scales may reach beyond its rows, so that more scales than the whole matrix needs tell how many
ranks there are. They are as many as heads of keys in a block without a window. Sources: SGLang 0.5.23
(`get_mimo_v2_fused_qkv_expected_tp_size`, `_resolve_deferred_qkv_scale_inv` in `models/mimo_v2.py`); llama.cpp
`conversion/mimo.py` (b11549, `_tp_aware_qkv_dequant`), which counts scales and tries 8, then 4.
"""

from __future__ import annotations

from ggferry.converters.prequantized.dequantized_rows import Grid
from ggferry.converters.prequantized.schemes._common import Found, fp8_scale, matrix, of_shape, take
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import ShapeError

LAYOUT, FUSED = "attention_projection_layout", "fused_qkv"
_CLASS = "MiMoV2ForCausalLM"
_END = ".self_attn.qkv_proj.weight"


def is_ranked(checkpoint: Checkpoint, ref: TensorRef) -> bool:
    """Return whether a matrix lies rank by rank."""
    return ref.name.endswith(_END) and _is_of_class(checkpoint)


def is_left_out(checkpoint: Checkpoint, ref: TensorRef) -> bool:
    """Return whether a tensor is of a block that predicts further tokens, which the table drops: SGLang takes its
    matrix for one of ranks, llama.cpp's converter for one of the whole, and no file was there to decide."""
    return ref.name.startswith("model.mtp.") and _is_of_class(checkpoint)


def _is_of_class(checkpoint: Checkpoint) -> bool:
    return bool(checkpoint.metadata.get("architectures") == [_CLASS])


def take_ranked(checkpoint: Checkpoint, found: Found, ref: TensorRef, tall: int, wide: int) -> None:
    """Add such a matrix in the order of its rows, and note what its scales tell. Raises ShapeError, MissingError."""
    rows, columns = matrix(checkpoint, ref)
    ranks = checkpoint.metadata.get("num_key_value_heads")
    if type(ranks) is not int or ranks < 1 or rows % ranks or not (tall and wide):
        raise ShapeError(
            f"{ref.name!r} for as many ranks as there are heads of keys",
            path=checkpoint.path,
            found=list(ref.shape),
            expected=f"a multiple of {ranks} rows, scales of blocks",
        )
    scale, run = fp8_scale(checkpoint, ref), rows // ranks
    of_shape(checkpoint, scale, ref.name, (ranks * -(-run // tall), -(-columns // wide)))
    take(checkpoint, found, ref, Grid(scale, tall, wide, run=run))
    if scale.shape[0] != -(-rows // tall):
        found.declared.setdefault(LAYOUT, FUSED)
