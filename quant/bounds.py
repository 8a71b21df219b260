"""How far a value may lie from what it was made of: the arithmetic of each type, element by element.

A bound here is a proof obligation, not a tolerance: an encoder that rounds to nearest cannot exceed it. Sources: the
formats' mantissas (IEEE 754 binary16, bfloat16) and the scale formula of each block (facts/legacy-llama.md §6–7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.quant.registry import lazy

if TYPE_CHECKING:
    import numpy as np

    from ggferry.quant.codec import Floats
else:
    np = lazy("numpy")

HALF_ULP = {"F16": 2.0**-11, "BF16": 2.0**-9}
"""Largest relative error of rounding to nearest."""
FLUSH = {"F16": 2.0**-25, "BF16": 0.0}
"""Largest absolute error where the result is subnormal."""
_SLACK = 1.001  # the comparison itself is made in float32

SCALE_SHARE = {
    # |Δ| of a block whose float32 scales became float16, as a multiple of 2^-11 · max|x| of the block.
    "Q4_0": 1.0,  # x = d·q
    "Q4_1": 3.0,  # x = d·q + m with |m| ≤ A and |d·q| ≤ 2A
    "Q5_0": 1.0,
    "Q5_1": 3.0,
    "Q8_0": 1.0,
}
ROUND_SHARE = {
    # |Δ| of rounding float values to the type, as a multiple of max|x| of the block.
    "Q8_0": 0.5 / 127 + 2.0**-11,
}


def narrowing_bound(target: str, values: Floats) -> Floats | None:
    """Largest |Δ| of each element when float32 `values` `(rows, columns)` are stored as `target`; None where the
    type's arithmetic gives no such bound."""
    if target == "F32":
        return np.zeros_like(values)
    if target in HALF_ULP:
        return np.abs(values) * np.float32(HALF_ULP[target] * _SLACK) + np.float32(FLUSH[target])
    if target in ROUND_SHARE:
        return _per_block(values, ROUND_SHARE[target])
    return None


def rescaling_bound(target: str, values: Floats) -> Floats | None:
    """Largest |Δ| of each element when the block's float32 scales became float16."""
    share = SCALE_SHARE.get(target)
    return None if share is None else _per_block(values, share * 2.0**-11)


def _per_block(values: Floats, share: float, elements: int = 32) -> Floats:
    blocks = np.abs(values).reshape(-1, elements)
    # A scale below float16's normal range keeps fewer bits: 2^-25 absolute, times the largest quant (127).
    bound = blocks.max(axis=1, keepdims=True) * np.float32(share * _SLACK) + np.float32(2.0**-18)
    return np.broadcast_to(bound, blocks.shape).reshape(values.shape)
