"""How far a value may lie from what it was made of: the arithmetic of each type, element by element.

A bound here is a proof obligation, not a tolerance: an encoder that rounds to nearest cannot exceed it. Sources: the
significands of IEEE 754 binary16 (11 bits) and bfloat16 (8 bits), and the scale formula of each block
(docs/formats/ggml-era.md "Block eras", ggml-common.h).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.quant.blocks import as_blocks
from ggferry.quant.codec import codec
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import numpy as np

    from ggferry.quant.codec import Bytes, Floats
else:
    np = lazy("numpy")

HALF_ULP = {"F16": 2.0**-11, "BF16": 2.0**-8}
"""Largest relative error of rounding to nearest."""
FLUSH = {"F16": 2.0**-25, "BF16": 2.0**-134}
"""Largest absolute error where the result is subnormal."""
_SLACK = 1.001  # the comparison itself is made in float32

ROUND_SHARE = {
    # |Δ| of rounding float values to the type, as a multiple of max|x| of the block: half a step, and the scale's
    # own rounding to float16 times the largest level.
    "Q8_0": (32, 0.5 / 127 + 2.0**-11),
}
SCALES = ("d", "m")
LARGEST_LEVEL = 128


def narrowing_bound(target: str, values: Floats) -> Floats | None:
    """Largest |Δ| of each element when float32 `values` `(rows, columns)` are stored as `target`; None where the
    type's arithmetic gives no such bound."""
    if target == "F32":
        return np.zeros_like(values)
    if target in HALF_ULP:
        bound = np.abs(values)
        bound *= np.float32(HALF_ULP[target] * _SLACK)
        bound += np.float32(FLUSH[target])
        return bound
    if target in ROUND_SHARE:
        elements, share = ROUND_SHARE[target]
        bound = _largest_of_runs(np.abs(values).reshape(-1), elements) * np.float32(share * _SLACK) + _subnormal_scale()
        return bound.repeat(elements).reshape(values.shape)
    return None


def _largest_of_runs(values: Floats, length: int) -> Floats:
    """The largest of every `length`, a power of two, neighbors: by halves, which takes a fifth of `max(axis=1)`."""
    while length > 1:
        values, length = np.maximum(values[0::2], values[1::2]), length // 2
    return values


def rescaling_bound(source: str, rows: Bytes, columns: int) -> Floats:
    """Largest |Δ| of each element, float32 `(R, columns)`, when the float32 scales of blocks of type `source` become
    float16: 2^-11 of every term of d·q + m, taken by its magnitude so that terms which cancel do not hide it."""
    kind = codec(source).type
    copy = np.ascontiguousarray(rows).copy()
    parts = as_blocks(kind, copy)
    for name in SCALES:
        if name in parts:
            np.abs(parts[name], out=parts[name])
    plus = np.abs(codec(source).decode(copy, columns))
    if "m" not in parts:
        return plus * np.float32(2.0**-11 * _SLACK) + _subnormal_scale()
    # |d|·q + |m| is what decode gives with both made positive: q is never negative in types that have a minimum.
    return plus * np.float32(2.0**-11 * _SLACK) + 2 * _subnormal_scale()


def _subnormal_scale() -> np.float32:
    """A scale below float16's normal range is off by up to 2^-25, whatever its size, times the level it multiplies."""
    return np.float32(2.0**-25 * LARGEST_LEVEL)
