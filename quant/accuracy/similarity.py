"""Decide whether quantized blocks hold the values they should hold, without knowing who quantized them.

A block that was rounded to its type lies near its values; one that was zeroed, shuffled or swapped with another does
not: the relative RMS error of two unrelated blocks is about 1.4, that of zeros exactly 1. The limits of each codec lie
between that and the largest error found when ggml's own encoders round blocks of every kind of distribution (normal,
Laplace, Student's t of 2 and 3 degrees of freedom, uniform, offset, sparse, columns and sub-blocks of other scales,
single outliers), with and without importances that spread over e^±1.5 (tests/quant/accuracy/test_similarity.py measures
them again).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ggferry.quant.codec import Accuracy, codec
from ggferry.quant.kernels import Compiled
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Floats


ALIKE = Compiled("ggferry.quant.kernels.differences", "alike", "ALIKE")
_LANES = 16


class Unlike(NamedTuple):
    """The first block whose values are not those it was made of.

    Attributes:
        row: Row of the block.
        block: Number of the block in its row; None: the row as a whole.
        error: Relative RMS error.
        limit: The largest error that rounding explains.
    """

    row: int
    block: int | None
    error: float
    limit: float


def prefetch(kind: str, elements: int) -> None:
    """Announce that so many elements are going to be held against a type's limits, as `differences.expect` does."""
    if codec(kind).type.elements % _LANES == 0:
        ALIKE.after(elements)


def limits_of(kind: str, corrected: bool) -> tuple[float, float]:
    """Return the largest relative RMS error of a block and of a row that rounding explains, with feedback or without.

    Corrections for the errors of earlier columns may be larger than the weights of a block, so that none holds for
    blocks; a row is moved further from its weights by twice at most where it was measured.
    """
    own = codec(kind).accuracy
    return (math.inf, min(2 * own.row_limit, Accuracy().row_limit)) if corrected else (own.block_limit, own.row_limit)


def surely_alike(kind: str, expected: Floats, found: Floats, corrected: bool = False) -> bool:
    """Return whether a compiled loop finds nothing near a limit; what it cannot tell is for `first_unlike`."""
    elements, floor = codec(kind).type.elements, codec(kind).accuracy.floor
    run = ALIKE.after(expected.size) if elements % _LANES == 0 else None
    if run is None or not expected.size:
        return False
    a, b = (np.ascontiguousarray(side) for side in (expected, found))
    numbers = floor, *limits_of(kind, corrected)
    return bool(run(a.reshape(-1), b.reshape(-1), a.shape[-1], elements, *numbers))


def first_unlike(kind: str, expected: Floats, found: Floats, corrected: bool = False) -> Unlike | None:
    """Compare decoded blocks with the values they should hold.

    Args:
        kind: Name of the block type.
        expected: float32 `(rows, columns)`.
        found: float32 `(rows, columns)`, decoded from blocks of `kind`.
        corrected: Whether they were rounded with feedback (`quant.rounding.feedback`).

    Returns:
        The first block or row that differs by more than rounding explains; None where there is none.
    """
    if surely_alike(kind, expected, found, corrected):
        return None
    elements, limits = codec(kind).type.elements, codec(kind).accuracy
    block_limit, row_limit = limits_of(kind, corrected)
    blocks = expected.reshape(len(expected), -1, elements)
    delta = found.reshape(blocks.shape) - blocks
    power = np.einsum("rbe,rbe->rb", blocks, blocks, dtype=np.float64)
    error = np.einsum("rbe,rbe->rb", delta, delta, dtype=np.float64)
    largest = np.abs(blocks).max(axis=2)
    seen = largest > limits.floor
    gone = seen & ~found.reshape(blocks.shape).any(axis=2)
    far = seen & (error > power * block_limit**2)
    invented = ~seen & (error > elements * limits.floor**2)
    odd = gone | far | invented
    if odd.any() and not corrected:
        row, block = (int(i) for i in np.argwhere(odd)[0])
        relative = float(np.sqrt(error[row, block] / max(power[row, block], 1e-300)))
        return Unlike(row, block, relative, block_limit)
    rows = np.where(seen, error, 0).sum(axis=1) > np.where(seen, power, 0).sum(axis=1) * row_limit**2
    if rows.any():
        row = int(np.flatnonzero(rows)[0])
        relative = float(np.sqrt(error[row].sum() / max(power[row].sum(), 1e-300)))
        return Unlike(row, None, relative, row_limit)
    return None
