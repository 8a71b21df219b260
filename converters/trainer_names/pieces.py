"""Rows of one tensor as another tensor: taken from it, put together, in another order; axes, too. Nothing is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from ggferry.formats.checkpoint import Checkpoint, Span, TensorRef
from ggferry.formats.errors import ShapeError, UnsupportedError


def rows_of(checkpoint: Checkpoint, ref: TensorRef, name: str, runs: Sequence[tuple[int, int]]) -> TensorRef:
    """Return the tensor of this name that has rows `start:stop` of `ref` for each of `runs`, in their order.

    The elements of a vector count as rows. Raises ShapeError where it has too few, UnsupportedError where it lies in
    several pieces.
    """
    path = checkpoint.path
    if len(ref.spans) != 1 or ref.spans[0].strides is not None or ref.spans[0].at is not None or not ref.shape:
        hint = "save it as one file first"
        raise UnsupportedError(f"{ref.name} lies in several pieces", path=path, expected="one run", hint=hint)
    last = max(stop for _, stop in runs)
    if last > ref.shape[0] or any(not 0 <= start <= stop for start, stop in runs):
        raise ShapeError(f"rows of {ref.name}", path=path, found=ref.shape[0], expected=f"{last} for {name}")
    span, inner = ref.spans[0], ref.shape[1:]
    step = ref.type.row_bytes(prod(inner)) if inner else ref.type.block_bytes
    spans = tuple(replace(span, offset=span.offset + a * step, shape=(b - a, *inner)) for a, b in runs)
    count = sum(stop - start for start, stop in runs)
    return replace(ref, name=name, shape=(count, *inner), spans=spans, axis=0 if inner else -1)


def stacked(checkpoint: Checkpoint, refs: Sequence[TensorRef], name: str) -> TensorRef:
    """Return the tensor of this name that has the rows of several matrices, one behind the other.

    Raises ShapeError where they have different columns or types.
    """
    first = refs[0]
    for ref in refs:
        if (ref.shape[1:], ref.type.name, ref.big_endian) != (first.shape[1:], first.type.name, first.big_endian):
            raise ShapeError(
                f"{ref.name} beside {first.name}", path=checkpoint.path, found=ref.shape, expected=first.shape
            )
    whole = [rows_of(checkpoint, ref, name, [(0, ref.shape[0])]) for ref in refs]
    count = sum(ref.shape[0] for ref in refs)
    return replace(first, name=name, shape=(count, *first.shape[1:]), spans=tuple(ref.spans[0] for ref in whole))


def unpaired_heads(checkpoint: Checkpoint, ref: TensorRef, name: str, heads: int) -> TensorRef:
    """Return a matrix whose rows of each head are pairs (Meta's order) with the first of all pairs before the others.

    Raises ShapeError where the rows are not pairs of so many heads, and as `rows_of`.
    """
    if len(ref.shape) != 2 or heads < 1 or ref.shape[0] % (2 * heads):
        raise ShapeError(
            f"rows of {ref.name}", path=checkpoint.path, found=ref.shape, expected=f"pairs of {heads} heads"
        )
    whole = rows_of(checkpoint, ref, name, [(0, ref.shape[0])])
    pairs, columns = ref.shape[0] // (2 * heads), ref.shape[1]
    span = whole.spans[0]
    strides = (2 * pairs * columns, columns, 2 * columns, 1)
    return replace(whole, spans=(replace(span, shape=(heads, 2, pairs, columns), strides=strides),))


def transposed(checkpoint: Checkpoint, ref: TensorRef, name: str, order: Sequence[int]) -> TensorRef:
    """Return the tensor of this name that has the axes of `ref` in another order: the file is read with strides.

    A matrix whose pieces are runs of its elements becomes boxes of rows and columns. Raises UnsupportedError for other
    pieces, and for runs of more than two axes.
    """
    shape = tuple(ref.shape[axis] for axis in order)
    steps = tuple(prod(ref.shape[axis + 1 :]) for axis in order)
    first = ref.spans[0] if ref.spans else None
    if first is not None and len(ref.spans) == 1 and first.strides is None and first.at is None:
        return replace(ref, name=name, shape=shape, spans=(replace(first, shape=shape, strides=steps),), axis=0)
    runs = all(span.strides is None and span.at is not None and len(span.at) == 1 for span in ref.spans)
    if not runs or tuple(order) != (1, 0):
        hint = "save it in one piece first"
        raise UnsupportedError(f"{ref.name} lies in several pieces", path=checkpoint.path, expected="one", hint=hint)
    boxes = [box for span in ref.spans for box in _columns_of(ref, span)]
    return replace(ref, name=name, shape=shape, spans=tuple(boxes), axis=0)


def _columns_of(ref: TensorRef, span: Span) -> Iterator[Span]:
    """Yield what a run of a matrix holds, as boxes of the matrix with rows and columns exchanged."""
    width, item = ref.columns, ref.type.block_bytes
    assert span.at is not None
    at, end = span.at[0], span.at[0] + span.shape[0]
    while at < end:
        row, column = divmod(at, width)
        rows = (end - at) // width if not column else 0
        count = rows * width if rows else min(end, (row + 1) * width) - at
        shape = (width, rows) if rows else (count, 1)
        offset = span.offset + (at - span.at[0]) * item
        yield Span(span.file, offset, shape, (1, width), (column, row))
        at += count
