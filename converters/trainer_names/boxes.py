"""Tensors as boxes that say where they stand: rows taken, an axis taken away, several joined, or transposed over.

Nothing is read. `trainer_names.pieces` does the same where a tensor is one run of bytes.
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

    Raises UnsupportedError for pieces that are runs of elements and no boxes.
    """
    if len(ref.spans) == 1 and ref.spans[0].at is None:
        return (replace(ref.spans[0], at=(0,) * len(ref.shape)),)
    if any(span.at is None or len(span.at) != len(ref.shape) for span in ref.spans):
        hint = "save it as one file first"
        raise UnsupportedError(f"{ref.name} lies in several pieces", path=path, expected="boxes", hint=hint)
    return ref.spans


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


def transposed(ref: TensorRef, name: str, path: str) -> TensorRef:
    """Return a matrix with its axes exchanged. Raises ShapeError for another tensor, and as `boxes`."""
    if len(ref.shape) != 2:
        raise ShapeError(f"{ref.name} is no matrix", path=path, found=list(ref.shape))
    spans = [
        replace(
            span,
            shape=span.shape[::-1],
            at=(span.at or ())[::-1],
            strides=(span.strides or (span.shape[1], 1))[::-1],
        )
        for span in boxes(ref, path)
    ]
    return made(ref, name, ref.shape[::-1], spans, path)
