"""Whether quantized blocks hold the values they are said to hold, judged without knowing who quantized them.

A block that was rounded to its type lies near its values; one that was zeroed, shuffled or put in another's place does
not: the relative RMS error of two unrelated blocks is about 1.4, that of zeros exactly 1. `LIMITS` stand between that
and the largest error found when ggml's own encoders round blocks of every kind of distribution (normal, Laplace,
Student's t of 2 and 3 degrees of freedom, uniform, offset, sparse, columns and sub-blocks of other scales, single
outliers), with and without importances that spread over e^±1.5 (tests/quant/accuracy/test_likeness.py measures again).
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

LIMITS: dict[str, tuple[float, float]] = {
    "Q8_0": (0.25, 0.05),
    "Q6_K": (0.30, 0.20),
    "Q5_K": (0.30, 0.20),
    "Q5_1": (0.30, 0.20),
    "Q5_0": (0.30, 0.20),
    "Q4_K": (0.50, 0.35),
    "Q4_1": (0.50, 0.35),
    "Q4_0": (0.50, 0.35),
    "IQ4_NL": (0.50, 0.35),
    "IQ4_XS": (0.50, 0.35),
    "MXFP4": (0.50, 0.40),
    "NVFP4": (0.50, 0.40),
    "Q3_K": (0.60, 0.45),
    "IQ3_S": (0.90, 0.80),
    "IQ3_XXS": (0.90, 0.80),
    "Q2_K": (0.95, 0.75),
}
"""Type → largest relative RMS error of a block, and of a row."""
FEW_BITS = (1.15, 1.05)
"""The same for types of two bits and fewer, whose blocks may lie as far from their values as zeros do."""

FLOORS = {"NVFP4": 6 * 2.0**-9, "MXFP4": 2.0**-120}
"""Values below which a type's scale cannot go: smaller blocks are lost whatever the encoder does."""
FLOOR = 2.0**-24 * 128
"""The same for types with a float16 scale: its smallest step times the largest level."""


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
    elements = codec(kind).type.elements
    block_limit, row_limit = LIMITS.get(kind, FEW_BITS)
    blocks = expected.reshape(len(expected), -1, elements)
    delta = found.reshape(blocks.shape) - blocks
    power = np.einsum("rbe,rbe->rb", blocks, blocks, dtype=np.float64)
    error = np.einsum("rbe,rbe->rb", delta, delta, dtype=np.float64)
    largest = np.abs(blocks).max(axis=2)
    seen = largest > FLOORS.get(kind, FLOOR)
    gone = seen & ~found.reshape(blocks.shape).any(axis=2)
    far = seen & (error > power * block_limit**2)
    invented = ~seen & (error > elements * FLOORS.get(kind, FLOOR) ** 2)
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
