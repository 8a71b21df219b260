"""MiMo-V2.5's queries, keys and values of FP8: one matrix, rank by rank of tensor parallelism, each with own blocks.

A rank's last block of scales may reach beyond its rows, so that more scales than the whole matrix needs tell how many
ranks there are. They are as many as heads of keys in a block without a window, also in blocks that predict further
tokens, which have one. Sources: SGLang 0.5.23
(`get_mimo_v2_fused_qkv_expected_tp_size`, `_resolve_deferred_qkv_scale_inv` in `models/mimo_v2.py`); llama.cpp
`conversion/mimo.py` (b11549, `_tp_aware_qkv_dequant`), which counts scales and tries 8, then 4.
"""

from __future__ import annotations

from ggferry.converters.prequantized.dequantized_rows import Grid
from ggferry.converters.prequantized.schemes._common import Found, find_scale, fp8_scale, matrix, of_shape, take
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import ShapeError

LAYOUT, FUSED = "attention_projection_layout", "fused_qkv"
_CLASS = "MiMoV2ForCausalLM"
_END = ".self_attn.qkv_proj.weight"


def is_ranked(checkpoint: Checkpoint, ref: TensorRef) -> bool:
    """Return whether a matrix lies rank by rank."""
    return ref.name.endswith(_END) and _is_of_class(checkpoint)


def is_left_out(checkpoint: Checkpoint, ref: TensorRef, tall: int, wide: int) -> bool:
    """Return whether a matrix is of a block that predicts further tokens, and its scales are not those of ranks: such a
    block is no part of the decoder, and is dropped, where those of the decoder are refused."""
    if not (ref.name.startswith("model.mtp.") and is_ranked(checkpoint, ref)):
        return False
    ranks, scale = checkpoint.metadata.get("num_key_value_heads"), find_scale(checkpoint, ref.name)
    if type(ranks) is not int or ranks < 1 or len(ref.shape) != 2 or ref.shape[0] % ranks or not (tall and wide):
        return True
    return scale is None or scale.shape != _scales(ref.shape, ranks, tall, wide)


def _scales(shape: tuple[int, ...], ranks: int, tall: int, wide: int) -> tuple[int, int]:
    """Return the shape of the scales of a matrix in ranks, each of which begins with a block of its own."""
    return ranks * -(-(shape[0] // ranks) // tall), -(-shape[1] // wide)


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
    of_shape(checkpoint, scale, ref.name, _scales((rows, columns), ranks, tall, wide))
    take(checkpoint, found, ref, Grid(scale, tall, wide, run=run))
    if scale.shape[0] != -(-rows // tall):
        found.declared.setdefault(LAYOUT, FUSED)
