"""Read rows of a tensor as the bytes in its files.

Pieces in several files are joined and views are gathered (torch strides); byte order and values stay as found. Memory
use is the rows asked for plus one slab, whatever the strides are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from ggferry.formats.checkpoint import Checkpoint, Span, TensorRef
from ggferry.formats.files.sources import Source
from ggferry.quant.types import BlockError, BlockType
from ggferry.support.heavy import np

if TYPE_CHECKING:
    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

SLAB = 1 << 20  # bytes read at once to gather from; a slab of a strided view is never larger
SPARSE = 16  # read through gaps while at most one byte in SPARSE is wanted: above that, seek
_WHOLE = {2: "u2", 4: "u4", 8: "u8"}
"""Bytes of a number → a type of as many."""
SEEK = 4096  # gaps within one page cost nothing


def read_rows(checkpoint: Checkpoint, ref: TensorRef, start: int, stop: int) -> Bytes:
    """Return rows `start:stop` of a tensor as stored bytes.

    A row runs along the last axis; a tensor without axes is one row.

    Args:
        checkpoint: The checkpoint whose files hold the tensor.
        ref: The tensor.
        start: First row.
        stop: The row after the last.

    Returns:
        uint8 `(stop - start, ref.row_bytes)`.

    Raises:
        IndexError: The rows are outside the tensor.
        BlockError: The pieces cannot be joined as bytes (planar rows split over files; a strided view of blocks).
        TruncatedError: A file has shrunk since it was opened.
    """
    _check_range(ref.name, start, stop, ref.rows)
    out = np.empty((stop - start, ref.row_bytes), np.uint8)
    if ref.spans and ref.spans[0].at is not None:
        _place(checkpoint, ref, start, stop, out)
    elif len(ref.spans) == 1 or ref.axis == 0:
        _stack_rows(checkpoint, ref, start, stop, out)
    elif ref.axis == -1:
        _join_columns(checkpoint, ref, start, stop, out)
    else:
        raise BlockError(f"{ref.name}: pieces are joined along axis 0 or -1, not {ref.axis}")
    return out


def read_span_rows(checkpoint: Checkpoint, ref: TensorRef, span_index: int, start: int, stop: int) -> Bytes:
    """Return rows `start:stop` of one piece of `ref` as uint8 `(stop - start, row bytes of the piece)`.

    Raises as `read_rows`.
    """
    span = ref.spans[span_index]
    _check_range(f"{ref.name}, piece {span_index}", start, stop, span_rows(span))
    out = np.empty((stop - start, span_row_bytes(ref, span)), np.uint8)
    _fill(checkpoint.files[span.file], ref, span, start, stop, out)
    return out


def span_rows(span: Span) -> int:
    """Return the number of rows of a piece."""
    return prod(span.shape[:-1])


def span_row_bytes(ref: TensorRef, span: Span) -> int:
    """Return the bytes of a row of a piece of `ref`."""
    return ref.type.row_bytes(span.shape[-1] if span.shape else 1)


def _check_range(name: str, start: int, stop: int, rows: int) -> None:
    if not 0 <= start <= stop <= rows:
        raise IndexError(f"rows {start}:{stop} of {name}, which has {rows}")


def _stack_rows(checkpoint: Checkpoint, ref: TensorRef, start: int, stop: int, out: Bytes) -> None:
    first = 0  # the piece's first row, counted in the whole tensor
    for span in ref.spans:
        last = first + span_rows(span)
        if span_row_bytes(ref, span) != ref.row_bytes:
            raise BlockError(f"{ref.name}: a piece of shape {span.shape} cannot be stacked to {ref.shape}")
        begin, end = max(start, first), min(stop, last)
        if begin < end:
            _fill(checkpoint.files[span.file], ref, span, begin - first, end - first, out[begin - start : end - start])
        first = last
    if first != ref.rows:
        raise BlockError(f"{ref.name}: the pieces hold {first} rows, the tensor {ref.rows}")


def _join_columns(checkpoint: Checkpoint, ref: TensorRef, start: int, stop: int, out: Bytes) -> None:
    if ref.type.planar:
        raise BlockError(f"{ref.name}: rows of planar {ref.type} that are split over files must be decoded by piece")
    left = 0
    for span in ref.spans:
        if span_rows(span) != ref.rows:
            raise BlockError(f"{ref.name}: a piece of shape {span.shape} cannot be joined to {ref.shape}")
        right = left + span_row_bytes(ref, span)
        part = np.empty((stop - start, right - left), np.uint8)
        _fill(checkpoint.files[span.file], ref, span, start, stop, part)
        out[:, left:right] = part
        left = right
    if left != ref.row_bytes:
        raise BlockError(f"{ref.name}: the pieces' rows hold {left} bytes, the tensor's {ref.row_bytes}")


def _place(checkpoint: Checkpoint, ref: TensorRef, start: int, stop: int, out: Bytes) -> None:
    """Fill rows `start:stop` from pieces that say where they stand, and cover the tensor, as their reader has seen."""
    item = _item_bytes(ref.type, ref.name)
    for span in ref.spans:
        assert span.at is not None
        source = checkpoint.files[span.file]
        if len(span.at) < 2:
            run = out.reshape(-1)
            first, size = sum(span.at) * item - start * ref.row_bytes, prod(span.shape) * item
            begin, end = max(first, 0), min(first + size, run.size)
            if begin < end:
                offset, strides = _inside(span, (begin - first) // item, item), span.strides and span.strides[-1:]
                part = Span(span.file, offset, ((end - begin) // item,), strides)
                _fill(source, ref, part, 0, 1, run[begin:end].reshape(1, -1))
            continue
        left, right = span.at[-1] * item, (span.at[-1] + span.shape[-1]) * item
        for row, inner, count in _runs(span.at[:-1], span.shape[:-1], ref.shape[:-1]):
            begin, end = max(row, start), min(row + count, stop)
            if begin < end:
                target = out[begin - start : end - start, left:right]
                own = target if target.flags.c_contiguous else np.empty(target.shape, np.uint8)
                _fill(source, ref, span, inner + begin - row, inner + end - row, own)
                if own is not target:
                    target[...] = own


def _inside(span: Span, element: int, item: int) -> int:
    """Return the byte at which an element of a run is."""
    return span.offset + element * item * (span.strides[-1] if span.strides else 1)


def _runs(at: Sequence[int], shape: Sequence[int], whole: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the rows of a piece as runs of neighbors: the first's number in the tensor and in the piece, and how many.

    Axes that the piece has in full are one with the axis before them, so that a piece cut along its first axis is one
    run.
    """
    axes = [(at[0], shape[0], whole[0])]
    for first, size, full in zip(at[1:], shape[1:], whole[1:], strict=True):
        if size == full:
            before = axes.pop()
            axes.append((before[0] * full, before[1] * full, before[2] * full))
        else:
            axes.append((first, size, full))
    *outer, (first, count, full) = axes
    for number, index in enumerate(product(*(range(size) for _, size, _ in outer))):
        row = 0
        for (begin, _, many), place in zip(outer, index, strict=True):
            row = row * many + begin + place
        yield row * full + first, number * count, count


def _fill(source: Source, ref: TensorRef, span: Span, start: int, stop: int, out: Bytes) -> None:
    if not out.size:
        return
    if span.strides is None:
        source.read_into(span.offset + start * out.shape[1], _flat(out))
        return
    item = _item_bytes(ref.type, ref.name)
    shape, strides = span.shape or (1,), span.strides or (1,)
    done = 0
    for begin, box in _boxes(shape[:-1], start, stop):
        offset = span.offset + item * sum(i * s for i, s in zip(begin, strides[:-1], strict=True))
        rows = prod(box)
        target = out[done : done + rows].reshape(*box, shape[-1], item)
        _gather(source, offset, (*box, shape[-1]), strides, item, target)
        done += rows


def _item_bytes(type: BlockType, name: str) -> int:
    if type.elements != 1:
        raise BlockError(f"{name}: blocks of {type} have no strides")
    return type.block_bytes


def _flat(array: Bytes) -> memoryview:
    return array.reshape(-1).data


def _boxes(shape: Sequence[int], start: int, stop: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return rows `start:stop` of an array of `shape`, counted in C order, as (first index, box) pairs."""
    if not shape:
        return [((), ())] if start < stop else []
    inner = prod(shape[1:])
    boxes = []
    while start < stop:
        index, rest = divmod(start, inner)
        whole = (stop - start) // inner
        if rest == 0 and whole:
            boxes.append(((index, *[0] * (len(shape) - 1)), (whole, *shape[1:])))
            start += whole * inner
        else:
            end = min(stop - index * inner, inner)
            boxes.extend(((index, *at), (1, *box)) for at, box in _boxes(shape[1:], rest, end))
            start = index * inner + end
    return boxes


def _gather(source: Source, offset: int, shape: Sequence[int], strides: Sequence[int], item: int, out: Bytes) -> None:
    """Copy a strided box of items of `item` bytes at `offset` into `out` `(*shape, item)`, slab by slab."""
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    extent = reach * item
    nbytes = prod(size for size, stride in zip(shape, strides, strict=True) if stride) * item
    if extent <= item or (extent <= SLAB and (extent <= SEEK or extent <= nbytes * SPARSE)):
        slab = np.empty(extent, np.uint8)
        source.read_into(offset, _flat(slab))
        steps = tuple(stride * item for stride in strides)
        if item in _WHOLE:  # numbers are copied whole, not byte by byte
            numbers, place = slab.view(_WHOLE[item]), out.view(_WHOLE[item])[..., 0]
            place[...] = np.lib.stride_tricks.as_strided(numbers, place.shape, steps, writeable=False)
        else:
            out[...] = np.lib.stride_tricks.as_strided(slab, out.shape, (*steps, 1), writeable=False)
        return
    # The axis with the largest extent is cut; what remains inside it is denser.
    axis = max(range(len(shape)), key=lambda i: (shape[i] - 1) * strides[i])
    inside = extent - (shape[axis] - 1) * strides[axis] * item
    step = _cut(shape[axis], strides[axis] * item, inside)
    for begin in range(0, shape[axis], step):
        size = min(step, shape[axis] - begin)
        box = (*shape[:axis], size, *shape[axis + 1 :])
        part = out[(slice(None),) * axis + (slice(begin, begin + size),)]
        _gather(source, offset + begin * strides[axis] * item, box, strides, item, part)


def _cut(size: int, stride: int, inside: int) -> int:
    """Return how many steps of `stride` bytes fit a slab; one when the bytes between them are mostly unwanted."""
    if stride > max(inside * SPARSE, SEEK):
        return 1
    return min(max(1, (SLAB - inside) // stride + 1), max(1, size // 2))
