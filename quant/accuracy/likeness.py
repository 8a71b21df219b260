"""Whether quantized blocks hold the values they are said to hold, judged without knowing who quantized them.

A block that was rounded to its type lies near its values; one that was zeroed, shuffled or put in another's place does
not: the relative RMS error of two unrelated blocks is about 1.4, that of zeros exactly 1. The limits that stand with
each codec lie between that and the largest error found when ggml's own encoders round blocks of every kind of
distribution (normal, Laplace, Student's t of 2 and 3 degrees of freedom, uniform, offset, sparse, columns and
sub-blocks of other scales, single outliers), with and without importances that spread over e^±1.5
(tests/quant/accuracy/test_likeness.py measures again).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ggferry.quant.codec import codec
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import numpy as np

    from ggferry.quant.codec import Floats
else:
    np = lazy("numpy")


class Unlike(NamedTuple):
    """The first row, and block in it, whose values are not those it was made of; `error`: its relative RMS, `limit`:
    the largest that rounding explains. `block` None: the row as a whole."""

    row: int
    block: int | None
    error: float
    limit: float


def first_unlike(kind: str, expected: Floats, found: Floats) -> Unlike | None:
    """Compare float32 arrays `(rows, columns)`, `found` being decoded from blocks of `kind`; None where every block and
    every row is like what it was made of."""
    elements, limits = codec(kind).type.elements, codec(kind).accuracy
    block_limit, row_limit = limits.block_limit, limits.row_limit
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
    if odd.any():
        row, block = (int(i) for i in np.argwhere(odd)[0])
        relative = float(np.sqrt(error[row, block] / max(power[row, block], 1e-300)))
        return Unlike(row, block, relative, block_limit)
    rows = np.where(seen, error, 0).sum(axis=1) > np.where(seen, power, 0).sum(axis=1) * row_limit**2
    if rows.any():
        row = int(np.flatnonzero(rows)[0])
        relative = float(np.sqrt(error[row].sum() / max(power[row].sum(), 1e-300)))
        return Unlike(row, None, relative, row_limit)
    return None
