"""Levels that are packed down the rows of a matrix, as hqq and SINQ pack them.

In the bits of one row lie rows that are a half, a third, … of all rows apart, the first of them highest. Source: hqq
`core/bitpack.py`; sinq 0.2.0 `bitpack.py`, which has 5 and 6 bits besides.
"""

from __future__ import annotations

from typing import Any

from ggferry.converters.model_graph.rows import raw_rows
from ggferry.converters.prequantized.dequantized_rows import columns_of
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.support.heavy import np

PACKINGS = {"8bit_u8": ("U8", 8, 1), "4bit_u8": ("U8", 4, 2), "2bit_u8": ("U8", 2, 4), "1bit_u8": ("U8", 1, 8),
            "3bit_32": ("I32", 3, 10)}  # fmt: skip
"""Name of a packing → the type of what holds the levels, their bits, and how many one holds."""
WORDS = (3, 5, 6)
"""Bits of levels that stand in the lowest bits of words."""


def unpacked(checkpoint: Checkpoint, packed: TensorRef, bits: int, box: tuple[int, int, int, int]) -> Any:
    """Return the levels of rows `top:bottom` and columns `left:right` of a packed matrix, uint8."""
    top, bottom, left, right = box
    step, mask = packed.rows, (1 << bits) - 1
    part, whole = columns_of(packed, left, right), 32 // bits * bits if bits in WORDS else 8
    kind = "<u4" if bits in WORDS else np.uint8
    found = np.empty((bottom - top, right - left), np.uint8)
    for number in range(top // step, -(-bottom // step)):  # of the rows that one row of `packed` holds
        first, last = max(top, number * step), min(bottom, (number + 1) * step)
        stored = raw_rows(checkpoint, part, first - number * step, last - number * step).view(kind)
        found[first - top : last - top] = stored >> (whole - bits * (number + 1)) & mask
    return found
