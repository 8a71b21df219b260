"""What is read of tensors before the run: numbers, and lists of them, that GGUF keeps in a key; biases of zeros."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import count, takewhile

from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import InconsistentError, ShapeError
from ggferry.formats.tensor_read import read_rows
from ggferry.quant.codec import codec
from ggferry.quant.endian import swap
from ggferry.support.heavy import np

WHOLE = {"I64": "i8", "I32": "i4"}
"""Types of tensors that hold lists of whole numbers → numpy's."""
MOST = 4096
"""How many such a list may have."""

LONGEST_BIAS = 1 << 20
"""Numbers of a bias; no model is that wide."""


def numbers(checkpoint: Checkpoint, pattern: str) -> tuple[tuple[float, ...] | float, str] | None:
    """Return the numbers of the tensors named `pattern` with {n} = 0, 1, …, and where they are; None for no tensors.

    Without {n} it is one number of one tensor, and with * the whole numbers of the one tensor of such a name. A
    checkpoint of a base model alone has the names without their first part. Raises ShapeError for a tensor of other
    numbers than that, and InconsistentError for several lists.
    """
    if "*" in pattern:
        return _whole_numbers(checkpoint, pattern)
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
    span = ref.spans[0]
    if checkpoint.files[span.file].size < span.offset + ref.nbytes:  # of a model that is only imagined (hf_export)
        return False
    row = read_rows(checkpoint, ref, 0, 1)
    return not codec(ref.type.name).decode(swap(ref.type, row) if ref.big_endian else row, ref.columns).any()


def _whole_numbers(checkpoint: Checkpoint, pattern: str) -> tuple[tuple[int, ...], str] | None:
    refs = [ref for name, ref in checkpoint.tensors.items() if fnmatchcase(name, pattern)]
    if not refs:
        return None
    if len(refs) > 1:
        raise InconsistentError(f"tensors {pattern}", path=checkpoint.path, found=len(refs), expected="one of them")
    (ref,) = refs
    if ref.type.name not in WHOLE or len(ref.shape) != 1 or not 0 < ref.elements <= MOST:
        expected = f"a list of at most {MOST} whole numbers"
        raise ShapeError(
            f"tensor {ref.name!r}", path=checkpoint.path, found=f"{ref.type.name} {ref.shape}", expected=expected
        )
    row = read_rows(checkpoint, ref, 0, 1)
    kind = np.dtype(WHOLE[ref.type.name]).newbyteorder(">" if ref.big_endian else "<")
    return tuple(int(number) for number in row.view(kind).ravel()), f"tensor {ref.name}"
