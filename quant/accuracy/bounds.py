"""How far a value may lie from the value it was made of, element by element, by the arithmetic of each type.

A bound is a proof obligation, not a tolerance: an encoder that rounds to nearest cannot exceed it. Sources: the
significands of IEEE 754 binary16 (11 bits) and bfloat16 (8 bits), and the scale formula of each block
(docs/formats/ggml-era.md "Block eras", ggml-common.h). Each codec holds its own numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggferry.quant.blocks import as_blocks
from ggferry.quant.codec import SUBNORMAL_SCALE, Bound, codec
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

_SLACK = 1.001  # the comparison itself is made in float32

NONE, OF_VALUE, OF_BLOCK, GIVEN = range(4)
"""What a bound depends on, as the compiled comparison is told."""

SCALES = ("d", "m")


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest |Δ| of every element that was stored as another type.

    Attributes:
        target: The name of the type.
        given: The limits themselves, float32, where they do not follow from the expected value and the type.
    """

    target: str
    given: Floats | None = None

    def __call__(self, expected: Floats, here: slice) -> Floats | None:
        """Return the limits of some expected values, which are this slice of all; None where there is none."""
        return narrowing_bound(self.target, expected) if self.given is None else self.given[here]

    def as_numbers(self) -> tuple[Floats, int, Any, Any, int]:
        """Return the same as the compiled comparison takes it: limits, mode, factor, least, elements of a block."""
        given, none = self.given, np.empty(0, np.float32)
        one = codec(self.target)
        limit = one.accuracy.bound
        if given is not None:
            return np.ascontiguousarray(given), GIVEN, np.float32(0), np.float32(0), 1
        if limit is None:
            return none, NONE, np.float32(0), np.float32(0), 1
        mode = OF_BLOCK if limit.of_block else OF_VALUE
        factor = np.float32((limit.of_block or limit.of_value) * _SLACK)
        return none, mode, factor, np.float32(limit.least), one.type.elements


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
