"""Tensors as boxes that say where they stand: rows taken, an axis taken away, several joined, axes exchanged.

Nothing is read: the tensors that are returned say from where in the files they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from ggferry.formats.checkpoint import Span, TensorRef
from ggferry.formats.errors import ShapeError, UnsupportedError
from ggferry.formats.limits import MAX_PIECES


def boxes(ref: TensorRef, path: str) -> tuple[Span, ...]:
    """Return the pieces of a tensor, each with the index of its first element along every axis.

    Runs of a matrix's elements become boxes of its rows. Raises UnsupportedError for runs of a tensor of more axes, and
    for pieces that do not say where they stand.
    """
    if len(ref.spans) == 1 and ref.spans[0].at is None:
        return (replace(ref.spans[0], at=(0,) * len(ref.shape)),)
    if all(span.at is not None and len(span.at) == len(ref.shape) for span in ref.spans):
        return ref.spans
    if len(ref.shape) == 2 and all(span.strides is None and span.at is not None for span in ref.spans):
        return tuple(box for span in ref.spans for box in _rows_of_run(ref, span))
    hint = "save it as one file first"
    raise UnsupportedError(f"{ref.name} lies in several pieces", path=path, expected="boxes", hint=hint)


def _rows_of_run(ref: TensorRef, span: Span) -> Iterator[Span]:
    """Yield what a run of a matrix's elements holds: the end of a row, whole rows, and the beginning of one."""
    assert span.at is not None
    at, end = span.at[0], span.at[0] + span.shape[0]
    while at < end:
        row, column = divmod(at, ref.columns)
        count = (end - at) // ref.columns if not column else 0
        shape = (count, ref.columns) if count else (1, min(end, (row + 1) * ref.columns) - at)
        yield Span(span.file, span.offset + ref.type.row_bytes(at - span.at[0]), shape, at=(row, column))
        at += prod(shape)


def made(ref: TensorRef, name: str, shape: tuple[int, ...], spans: Sequence[Span], path: str) -> TensorRef:
    """Return a tensor of `ref`'s type from boxes; a box that is all of it stands alone.

    Raises ShapeError where they do not have its number of elements.
    """
    if sum(prod(span.shape) for span in spans) != prod(shape) or len(spans) > MAX_PIECES:
        raise ShapeError(f"pieces of {name}", path=path, found=len(spans), expected=f"elements of {shape}, each once")
    own = tuple(spans) if len(spans) > 1 else (replace(spans[0], at=None),)
    return replace(ref, name=name, shape=shape, spans=own, axis=0)


def rows(ref: TensorRef, name: str, runs: Sequence[tuple[int, int]], path: str) -> TensorRef:
    """Return the tensor of this name that has rows `start:stop` of `ref`, for each of `runs`, in their order.

    The elements of a vector count as rows. Raises ShapeError where it has too few, and as `boxes`.
    """
    last = max(stop for _, stop in runs)
    if not ref.shape or last > ref.shape[0] or any(not 0 <= start <= stop for start, stop in runs):
        raise ShapeError(f"rows of {ref.name}", path=path, found=list(ref.shape), expected=f"{last} for {name}")
    whole, before = boxes(ref, path), 0
    spans: list[Span] = []
    for start, stop in runs:
        spans += _cut(ref, whole, start, stop, before)
        before += stop - start
    return made(ref, name, (before, *ref.shape[1:]), spans, path)


def _cut(ref: TensorRef, whole: Sequence[Span], start: int, stop: int, before: int) -> Iterator[Span]:
    """Yield the parts of boxes in rows `start:stop`, which become rows from `before` on."""
    for span in whole:
        assert span.at is not None
        first, last = max(start, span.at[0]), min(stop, span.at[0] + span.shape[0])
        if first >= last:
            continue
        inside, inner = first - span.at[0], span.shape[1:]
        step = span.strides[0] if span.strides is not None else prod(inner)
        yield replace(
            span,
            offset=span.offset + ref.type.row_bytes(inside * step),
            shape=(last - first, *inner),
            at=(before + first - start, *span.at[1:]),
        )


def entry(ref: TensorRef, name: str, number: int, path: str) -> TensorRef:
    """Return entry `number` along the first axis, without that axis. Raises ShapeError, and as `boxes`."""
    one = rows(ref, name, [(number, number + 1)], path)
    spans = [
        replace(
            span,
            shape=span.shape[1:],
            at=(span.at or ())[1:],
            strides=span.strides if span.strides is None else span.strides[1:],
        )
        for span in boxes(one, path)
    ]
    return made(ref, name, ref.shape[1:], spans, path)


def joined(refs: Sequence[TensorRef], name: str, axis: int, path: str) -> TensorRef:
    """Return tensors one behind the other along an axis.

    Raises ShapeError where their other axes or their types differ, and as `boxes`.
    """
    first, before = refs[0], 0
    spans: list[Span] = []
    for ref in refs:
        others = [(one.shape[:axis], one.shape[axis + 1 :], one.type.name, one.big_endian) for one in (first, ref)]
        if axis >= len(ref.shape) or others[0] != others[1]:
            raise ShapeError(f"{ref.name} beside {first.name}", path=path, found=ref.shape, expected=first.shape)
        for span in boxes(ref, path):
            at = list(span.at or ())
            at[axis] += before
            spans.append(replace(span, at=tuple(at)))
        before += ref.shape[axis]
    shape = (*first.shape[:axis], before, *first.shape[axis + 1 :])
    return made(first, name, shape, spans, path)


def transposed(ref: TensorRef, name: str, path: str, order: Sequence[int] = (1, 0)) -> TensorRef:
    """Return the tensor that has the axes of `ref` in this order. Raises ShapeError for other axes, and as `boxes`."""
    if sorted(order) != list(range(len(ref.shape))):
        raise ShapeError(f"axes of {ref.name}", path=path, found=list(ref.shape), expected=f"{len(order)} of them")

    def moved(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(values[axis] for axis in order)

    spans = [
        replace(span, shape=moved(span.shape), at=moved(span.at or ()), strides=moved(span.strides or _steps(span)))
        for span in boxes(ref, path)
    ]
    return made(ref, name, moved(ref.shape), spans, path)


def flat(ref: TensorRef, name: str, path: str) -> TensorRef:
    """Return the tensor as a vector of its elements in their order. Raises UnsupportedError where it is not in one
    contiguous piece."""
    whole = boxes(ref, path)
    if len(whole) != 1 or whole[0].strides not in (None, _steps(whole[0])):
        hint = "save it as one file first"
        raise UnsupportedError(f"{ref.name} lies in several pieces", path=path, expected="one", hint=hint)
    elements = (prod(ref.shape),)
    return replace(ref, name=name, shape=elements, spans=(replace(whole[0], shape=elements, strides=None, at=None),))


def _steps(span: Span) -> tuple[int, ...]:
    """Return the strides of a piece that is contiguous."""
    return tuple(prod(span.shape[axis + 1 :]) for axis in range(len(span.shape)))


def unpaired_heads(ref: TensorRef, name: str, heads: int, path: str) -> TensorRef:
    """Return a matrix whose rows of each head are pairs (Meta's order) with the first of all pairs before the others.

    Raises ShapeError where the rows are not pairs of so many heads, UnsupportedError where it lies in several pieces.
    """
    if len(ref.shape) != 2 or heads < 1 or ref.shape[0] % (2 * heads):
        raise ShapeError(f"rows of {ref.name}", path=path, found=ref.shape, expected=f"pairs of {heads} heads")
    whole = boxes(ref, path)
    if len(whole) != 1:
        hint = "save it as one file first"
        raise UnsupportedError(f"{ref.name} lies in several pieces", path=path, expected="one", hint=hint)
    pairs, (row, column) = ref.shape[0] // (2 * heads), whole[0].strides or _steps(whole[0])
    strides = (2 * pairs * row, row, 2 * row, column)
    span = replace(whole[0], shape=(heads, 2, pairs, ref.shape[1]), strides=strides, at=None)
    return replace(ref, name=name, spans=(span,), axis=0)
