"""The bytes and the values of a tensor in pieces of a few MiB, whatever its shape is and wherever its bytes lie."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ggferry.converters.model_graph import rows
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.quant.codec import codec

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

PIECE = 1 << 18
"""Elements of a piece: the float32 of one is a MiB."""


def pieces(checkpoint: Checkpoint, ref: TensorRef) -> Iterator[Bytes]:
    """Yield the bytes of a tensor, little-endian and without padding, uint8 `(rows, bytes of a row)`.

    The rows are those of the tensor, or shorter ones of the same order where it is one run of bytes.
    """
    short = in_short_rows(ref)
    step = _rows_at_once(short)
    for start in range(0, short.rows, step):
        yield rows.raw_rows(checkpoint, short, start, min(short.rows, start + step))


def values(checkpoint: Checkpoint, ref: TensorRef) -> Iterator[Floats]:
    """Yield the values of a tensor in order, float32, in as many pieces as `pieces` has of the same shape."""
    short = in_short_rows(ref)
    step = _rows_at_once(short)
    for start in range(0, short.rows, step):
        yield rows.values_of(checkpoint, short, start, min(short.rows, start + step)).reshape(-1)


def _rows_at_once(ref: TensorRef) -> int:
    """Return how many rows a piece has: whole groups of those that are interleaved."""
    count = max(1, PIECE // max(1, ref.columns))
    return count + -count % ref.type.interleaved


def decoded(ref: TensorRef, piece: Bytes) -> Floats:
    """Return what a piece of a tensor's bytes holds, float32."""
    return codec(ref.type.name).decode(piece, in_short_rows(ref).columns).reshape(-1)


def in_short_rows(ref: TensorRef) -> TensorRef:
    """Return the tensor as many rows of one width, where its own are too long and it is one run of blocks."""
    span = ref.spans[0] if len(ref.spans) == 1 else None
    if span is None or span.strides is not None or ref.type.whole_rows or ref.columns <= PIECE:
        return ref
    width = math.gcd(ref.elements, 1 << 12)  # which every type's blocks divide: their sizes are powers of two
    shape = (ref.elements // width, width)
    return replace(ref, shape=shape, spans=(replace(span, shape=shape),))


def together(one: Iterator[Floats], other: Iterator[Floats]) -> Iterator[tuple[Floats, Floats]]:
    """Yield two streams of as many values in pieces of equal length."""
    a, b = next(one, None), next(other, None)
    while a is not None and b is not None:
        count = min(a.size, b.size)
        yield a[:count], b[:count]
        a = a[count:] if a.size > count else next(one, None)
        b = b[count:] if b.size > count else next(other, None)
