"""What is read of tensors before the run: numbers that GGUF keeps in a key, and biases that may be all zeros."""

from __future__ import annotations

from itertools import count, takewhile

from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import ShapeError
from ggferry.formats.tensor_read import read_rows
from ggferry.quant.codec import codec
from ggferry.quant.endian import swap

LONGEST_BIAS = 1 << 20
"""Numbers of a bias; no model is that wide."""


def numbers(checkpoint: Checkpoint, pattern: str) -> tuple[tuple[float, ...] | float, str] | None:
    """Return the numbers of the tensors named `pattern` with {n} = 0, 1, …, and where they are; None for no tensors.

    Without {n} it is one number of one tensor. A checkpoint of a base model alone has the names without their first
    part. Raises ShapeError for a tensor of more than one number.
    """
    found = _numbers(checkpoint, pattern)
    return found or _numbers(checkpoint, pattern.partition(".")[2])


def _numbers(checkpoint: Checkpoint, pattern: str) -> tuple[tuple[float, ...] | float, str] | None:
    if "{n}" not in pattern:
        one = checkpoint.tensors.get(pattern)
        return (_number(checkpoint, one), f"tensor {pattern}") if one else None
    names = (pattern.format(n=n) for n in count())
    refs = [checkpoint.tensors[name] for name in takewhile(lambda name: name in checkpoint.tensors, names)]
    return (tuple(_number(checkpoint, ref) for ref in refs), f"tensors {pattern}") if refs else None


def _number(checkpoint: Checkpoint, ref: TensorRef) -> float:
    if ref.elements != 1:
        raise ShapeError(f"tensor {ref.name!r}", path=checkpoint.path, found=ref.shape, expected="one number")
    row = read_rows(checkpoint, ref, 0, 1)
    return float(codec(ref.type.name).decode(swap(ref.type, row) if ref.big_endian else row, 1).flat[0])


def is_zero(checkpoint: Checkpoint, ref: TensorRef) -> bool:
    """Return whether a bias is read as zeros alone, of either sign; False for one that is no vector of floats."""
    if len(ref.shape) != 1 or not 0 < ref.elements <= LONGEST_BIAS or ref.type.name not in ("F32", "F16", "BF16"):
        return False
    row = read_rows(checkpoint, ref, 0, 1)
    return not codec(ref.type.name).decode(swap(ref.type, row) if ref.big_endian else row, ref.columns).any()
