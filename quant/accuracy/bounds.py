"""How far a value may lie from the value it was made of, element by element, by the arithmetic of each type.

A bound is a proof obligation, not a tolerance: an encoder that rounds to nearest cannot exceed it. Sources: the
significands of IEEE 754 binary16 (11 bits) and bfloat16 (8 bits), and the scale formula of each block
(docs/formats/ggml-era.md "Block eras", ggml-common.h). Each codec holds its own numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.quant.blocks import as_blocks
from ggferry.quant.codec import SUBNORMAL_SCALE, Bound, codec
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import numpy as np

    from ggferry.quant.codec import Bytes, Floats
else:
    np = lazy("numpy")

_SLACK = 1.001  # the comparison itself is made in float32

SCALES = ("d", "m")


def narrowing_bound(target: str, values: Floats) -> Floats | None:
    """Return the largest |Δ| of each element when float32 `values` `(rows, columns)` are stored as `target`.

    None where the type's arithmetic gives no such bound.
    """
    one = codec(target)
    limit = one.accuracy.bound
    if limit is None:
        return None
    if limit == Bound():
        return np.zeros_like(values)
    if limit.of_block:
        elements = one.type.elements
        largest = _largest_of_runs(np.abs(values).reshape(-1), elements)
        bound = largest * np.float32(limit.of_block * _SLACK) + np.float32(limit.least)
        return bound.repeat(elements).reshape(values.shape)
    bound = np.abs(values)
    bound *= np.float32(limit.of_value * _SLACK)
    bound += np.float32(limit.least)
    return bound


def _largest_of_runs(values: Floats, length: int) -> Floats:
    """Return the largest of every `length` neighbors, a power of two.

    Halving takes a fifth of the time of `max(axis=1)`.
    """
    while length > 1:
        values, length = np.maximum(values[0::2], values[1::2]), length // 2
    return values


def rescaling_bound(source: str, rows: Bytes, columns: int) -> Floats:
    """Return the largest |Δ| of each element when the float32 scales of blocks of type `source` become float16.

    It is 2^-11 of every term of d·q + m, taken by magnitude so that terms which cancel do not hide it.

    Args:
        source: Name of the block type.
        rows: uint8 `(R, row bytes)`.
        columns: Elements of a row.

    Returns:
        float32 `(R, columns)`.
    """
    kind = codec(source).type
    copy = np.ascontiguousarray(rows).copy()
    parts = as_blocks(kind, copy)
    for name in SCALES:
        if name in parts:
            np.abs(parts[name], out=parts[name])
    plus = np.abs(codec(source).values(copy, columns))
    if "m" not in parts:
        return plus * np.float32(2.0**-11 * _SLACK) + np.float32(SUBNORMAL_SCALE)
    # |d|·q + |m| is what decode gives with both made positive: q is never negative in types that have a minimum.
    return plus * np.float32(2.0**-11 * _SLACK) + 2 * np.float32(SUBNORMAL_SCALE)
