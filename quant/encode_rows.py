"""Encode rows of a tensor in a block type, weighted by importances: for writing a file and for proving one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ggferry.quant.blocks import ValueRefused
from ggferry.quant.codec import codec
from ggferry.quant.levels import LEVELS
from ggferry.quant.rounding.feedback import encode_by_directions
from ggferry.quant.types import SEARCH, STOCK, BlockType
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.rounding.directions import Directions
    from ggferry.quant.types import Bytes, Floats

WHOLE_NUMBERS = {"I32": "<i4", "I64": "<i8"}
"""Types of GGUF that hold whole numbers → numpy's names of them."""


def by_directions(kind: BlockType, rounding: str) -> bool:
    """Return whether rows of a type are rounded by directions of their inputs, where there are some."""
    return rounding == SEARCH and kind.name in LEVELS


def encode_rows(
    kind: BlockType,
    rows: Floats,
    weights: Floats | None,
    start: int,
    shape: Sequence[int],
    rounding: str = STOCK,
    directions: Callable[[int], Directions | None] | None = None,
) -> Bytes:
    """Encode float32 rows of a tensor.

    Args:
        kind: The block type.
        rows: float32 `(n, columns)`.
        weights: float32 `(matrices, columns)`, one row for each expert, or None: `Imatrix.weights`.
        start: Number of the first row in the tensor.
        shape: Shape of the tensor, outermost first.
        rounding: `STOCK` or `SEARCH`, which means something where there are weights.
        directions: From the number of a matrix to the directions of its inputs, by which later columns correct the
            errors of earlier ones (`by_directions`); None for no corrections.

    Returns:
        uint8 `(n, row bytes)`, little-endian.

    Raises:
        BlockError: The type cannot hold a value.
    """
    if kind.name in WHOLE_NUMBERS:
        return _whole_numbers(rows, WHOLE_NUMBERS[kind.name])
    one = codec(kind.name)
    encode = one.encode
    assert encode is not None, kind.name
    if weights is None or not kind.quantized:
        return encode(rows, None)
    if rounding == SEARCH and one.searched is not None:
        encode = one.searched
    stop = start + len(rows)
    height = max(1, shape[-2]) if len(weights) > 1 else stop
    cuts = [start, *range(-(-(start + 1) // height) * height, stop, height), stop]
    pieces = []
    for low, high in pairwise(cuts):
        matrix, own = min(low // height, len(weights) - 1), rows[low - start : high - start]
        of_inputs = directions(matrix) if directions else None
        if of_inputs is None:
            pieces.append(encode(own, weights[matrix]))
        else:
            pieces.append(encode_by_directions(kind, own, weights[matrix], of_inputs))
    return np.concatenate(pieces)


def _whole_numbers(rows: Floats, dtype: str) -> Bytes:
    """Return float32 rows as integers of numpy's `dtype`.

    Raises ValueRefused for what is no whole number that float32 holds for certain.
    """
    wrong = np.argwhere(~((rows == np.rint(rows)) & (np.abs(rows) < 2**24)))
    if len(wrong):
        row, column = wrong[0].tolist()
        raise ValueRefused(row, column, f"{rows[row, column]!s} is not a whole number below 2^24")
    copy: Any = rows.astype(dtype, order="C")
    found: Bytes = copy.view(np.uint8)
    return found
