"""Rows of a node, streamed: blocks of the source's type in the order of the layout, or float32 values.

No more than the requested rows is held. Pieces of a tensor that was split along its columns are decoded or repacked one
by one and joined afterwards, because rows of planar eras are planar in each piece (docs/formats/ggml-era.md "Parts").
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.graph import Node
from ggferry.converters.schema.layouts.base import SAME, Layout, Rowwise, Then, row_count
from ggferry.converters.schema.layouts.columns import SideBySide
from ggferry.converters.schema.layouts.parts import BehindZeros, Reshape, Row, Transpose
from ggferry.converters.schema.layouts.projected import ComputedRows
from ggferry.converters.schema.layouts.towers import Joined, Resampled
from ggferry.converters.schema.layouts.values import Scaled
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import UnsupportedError
from ggferry.formats.tensor_read import read_rows, read_span_rows
from ggferry.quant.codec import codec
from ggferry.quant.endian import swap
from ggferry.quant.types import BlockType
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

    Array = np.ndarray[Any, Any]

CHUNK = 4 << 20
"""Bytes of the widest form (source, target or float32) that one worker holds of a tensor at a time."""
_PIECES = 4
COPY = 1 << 20
"""Bytes of a run that a thread copies or compares at once: what the cache of its core holds."""
MAX_VECTOR = 1 << 26
"""Most elements of a permuted vector: biases, which are held whole."""

Convert = Callable[["Bytes", int], "Array"]


def raw_rows(checkpoint: Checkpoint, ref: TensorRef, start: int, stop: int) -> Bytes:
    """Return rows as little-endian blocks, uint8 `(stop - start, ref.row_bytes)`."""
    rows = read_rows(checkpoint, ref, start, stop)
    return swap(ref.type, rows) if ref.big_endian else rows


def converted_rows(checkpoint: Checkpoint, ref: TensorRef, start: int, stop: int, convert: Convert) -> Array:
    """Return `convert(rows, columns)` of rows `start:stop`, piece by piece where columns were split over files."""
    if ref.type.interleaved > 1:
        return _whole_groups(checkpoint, ref, start, stop, convert)
    if ref.axis == 0 or len(ref.spans) == 1:
        return convert(raw_rows(checkpoint, ref, start, stop), ref.columns)
    pieces = []
    for number, span in enumerate(ref.spans):
        rows = read_span_rows(checkpoint, ref, number, start, stop)
        pieces.append(convert(swap(ref.type, rows) if ref.big_endian else rows, span.shape[-1]))
    return np.concatenate(pieces, axis=1)


def _whole_groups(checkpoint: Checkpoint, ref: TensorRef, start: int, stop: int, convert: Convert) -> Array:
    """Return the same of rows that are interleaved, which are read group by group."""
    count = ref.type.interleaved
    first, last = start - start % count, stop + -stop % count
    return convert(raw_rows(checkpoint, ref, first, last), ref.columns)[start - first : stop - first]


def values_of(checkpoint: Checkpoint, ref: TensorRef, start: int, stop: int) -> Floats:
    """Return rows `start:stop` decoded, float32 `(stop - start, columns)`; no layout is applied."""
    return converted_rows(checkpoint, ref, start, stop, codec(ref.type.name).values)


def view_for_streaming(node: Node, target: BlockType) -> Node:
    """Return the node as a view of the same bytes, with rows short enough to stream.

    A row that alone would not fit into a chunk is cut where the tensor is contiguous and has no layout: it is one run
    of blocks, which may be cut between any whole blocks of both types. Rows that are one thing (`whole_rows`) and
    joined columns stay as they are, because none of them comes near the size of a chunk.
    """
    ref = node.inputs[0]
    wide = ref.columns * 4 > CHUNK or row_count(ref.shape) == 1
    if node.layout != SAME or not wide or len(ref.spans) > 1 or ref.spans[0].strides or ref.type.whole_rows:
        return node
    width = math.lcm(ref.type.elements, target.elements)
    rows = ref.elements // width
    span = replace(ref.spans[0], shape=(rows, width))
    return replace(node, shape=(rows, width), inputs=(replace(ref, shape=(rows, width), spans=(span,)),))


def row_chunks(node: Node, target: BlockType) -> Iterator[tuple[int, int]]:
    """Yield consecutive row ranges of the node's output, each within CHUNK bytes in every form, of whole pieces.

    A single row may exceed the limit.
    """
    rows, step = math.prod(node.shape[:-1]), piece_rows(node, target)
    step *= max(1, min(_PIECES, CHUNK // (step * _widest(node, target))))
    for start in range(0, rows, step):
        yield start, min(rows, start + step)


def pieces(node: Node, target: BlockType) -> Iterator[tuple[int, int]]:
    """Yield consecutive row ranges as `row_chunks` does, a quarter as large: what a comparison holds twice."""
    rows, step = math.prod(node.shape[:-1]), piece_rows(node, target)
    for start in range(0, rows, step):
        yield start, min(rows, start + step)


def piece_rows(node: Node, target: BlockType) -> int:
    """Return the number of rows in a piece.

    Of a matrix whose columns lie in the file as rows it is a whole chunk: each piece reads through all of the matrix.
    """
    spans = (span for ref in node.inputs for span in ref.spans)
    gathered = any(span.strides and span.strides[-1] != 1 and span.shape[-1] > 1 for span in spans)
    return max(1, CHUNK // (1 if gathered else _PIECES) // _widest(node, target))


def _widest(node: Node, target: BlockType) -> int:
    """Return the bytes of a row in its widest form."""
    columns = node.shape[-1]
    return max(columns * 4, target.row_bytes(columns), *(ref.row_bytes for ref in node.inputs))


def run_of_bytes(node: Node) -> tuple[int, int, int] | None:
    """Return (file, offset, bytes) where the node is one contiguous run of bytes without a layout, else None."""
    ref = node.inputs[0]
    span = ref.spans[0]
    if node.layout != SAME or len(ref.spans) > 1 or span.strides or ref.big_endian:
        return None
    return span.file, span.offset, ref.nbytes


def cuts(start: int, stop: int, size: int, unit: int = 1) -> Iterator[tuple[int, int]]:
    """Return `start:stop` in ranges of at most `size`, of which all but the last are multiples of `unit`."""
    step = size - size % unit
    return ((at, min(stop, at + step)) for at in range(start, stop, step))


_scratch = threading.local()


def scratch(size: int, number: int = 0) -> memoryview:
    """Return a buffer of this thread, `size` ≤ COPY bytes, that is used again by the next call with the same number.

    Allocating fresh pages would cost more than the copy.
    """
    buffers: dict[int, bytearray] = _scratch.__dict__.setdefault("buffers", {})
    if number not in buffers:
        buffers[number] = bytearray(COPY)
    return memoryview(buffers[number])[:size]


def laid_out(checkpoint: Checkpoint, node: Node, start: int, stop: int, convert: Convert | None = None) -> Array:
    """Return rows `start:stop` of the node's output: blocks of the source's type, or the result of `convert` on them.

    For block-safe layouts only; others change values and need `laid_out_values`.
    """
    if node.layout == SAME:
        (ref,) = node.inputs
        if convert is None and not ref.type.planar:
            return raw_rows(checkpoint, ref, start, stop)
        return converted_rows(checkpoint, ref, start, stop, convert or _as_is)
    if isinstance(node.layout, Row):
        at = int(node.layout.index)
        return converted_rows(checkpoint, node.inputs[0], at, at + 1, convert or _as_is)
    if len(node.shape) == 1:
        return _vector(checkpoint, node, convert or _as_is)
    shapes = tuple(ref.shape for ref in node.inputs)
    source, row = node.layout.locate(np.arange(start, stop), *shapes)
    out: Array | None = None
    for number in np.unique(source):
        indices = np.flatnonzero(source == number)
        rows = _scattered(checkpoint, node.inputs[number], row[indices], convert or _as_is)
        if out is None:
            out = np.empty((stop - start, rows.shape[1]), rows.dtype)
        out[indices] = rows
    assert out is not None
    return out


def laid_out_values(checkpoint: Checkpoint, node: Node, start: int, stop: int) -> Floats:
    """Return rows `start:stop` of the node's output as float32, for any layout. Raises UnsupportedError."""
    if node.layout.block_safe:
        return laid_out(checkpoint, node, start, stop, codec(node.inputs[0].type.name).values)
    return _apply(checkpoint, node, node.layout, start, stop)


Values = Callable[[Checkpoint, Node, int, int], "Floats"]
"""`laid_out_values`, or one that remembers."""


class LastValues(threading.local):
    """`laid_out_values` that keeps, in every thread, what it returned last: for several users of one chunk in turn.

    A chunk is known by its tensor's name and its elements, so the users' graphs may be different ones, but must be of
    the same source.
    """

    def __init__(self) -> None:
        self._key: tuple[str, int, int] | None = None
        self._values: Any = None

    def __call__(self, checkpoint: Checkpoint, node: Node, start: int, stop: int) -> Floats:
        """Return rows `start:stop` of the node's output as float32; they are not to be changed."""
        columns = node.shape[-1]
        key = (node.name, start * columns, stop * columns)
        if key != self._key:
            self._values = np.ascontiguousarray(laid_out_values(checkpoint, node, start, stop))
            self._key = key
        found: Floats = self._values.reshape(stop - start, columns)
        return found


def _apply(checkpoint: Checkpoint, node: Node, layout: Layout, start: int, stop: int) -> Floats:
    match layout:
        case Reshape() | Then(first=Reshape()):
            rest = layout.second if isinstance(layout, Then) else SAME
            return laid_out_values(checkpoint, replace(_reshaped(checkpoint, node), layout=rest), start, stop)
        case Then(first=Rowwise() as first, second=Reshape()):
            return _cut(checkpoint, node, first, start, stop)
        case Then(first=first, second=Rowwise() as second):
            return second.apply(_apply(checkpoint, node, first, start, stop))
        case Joined():
            if node.shape[0] > MAX_VECTOR:
                raise UnsupportedError(f"{node.name}: a vector of {node.shape[0]} elements", path=checkpoint.path)
            return layout.apply(*(values_of(checkpoint, ref, 0, ref.rows).reshape(1, -1) for ref in node.inputs))
        case Resampled():
            return _resampled(checkpoint, node, layout, start, stop)
        case BehindZeros():
            return _behind_zeros(checkpoint, node, layout, start, stop)
        case ComputedRows():
            return layout.rows(
                lambda number, first, last: values_of(checkpoint, node.inputs[number], first, last),
                tuple(ref.shape for ref in node.inputs),
                start,
                stop,
            )
        case Scaled():
            return layout.scaled(_apply(checkpoint, node, SAME, start, stop), start)
        case SideBySide():
            return layout.apply(*(values_of(checkpoint, ref, start, stop) for ref in node.inputs))
        case Rowwise():
            return layout.apply(_apply(checkpoint, node, SAME, start, stop))
        case Then(first=Transpose(), second=second) if second.block_safe and _is_plain(node):
            return laid_out_values(checkpoint, replace(_rotated_at(node), layout=second), start, stop)
        case Then(first=first, second=Transpose()) if first.block_safe:
            return _rotated_items(checkpoint, node, first, start, stop)
        case Transpose() if len(node.shape) == 2:
            return _columns(checkpoint, node.inputs[0], start, stop)
        case Transpose() if _is_plain(node):
            return laid_out_values(checkpoint, replace(_rotated_at(node), layout=SAME), start, stop)
        case Transpose():
            return _rotated_items(checkpoint, node, SAME, start, stop)
        case _ if layout.block_safe:
            shape = layout.shape(*(ref.shape for ref in node.inputs))
            return laid_out_values(checkpoint, replace(node, layout=layout, shape=shape), start, stop)
    raise UnsupportedError(f"{node.name}: no streamed form of {layout}", path=checkpoint.path)


def _reshaped(checkpoint: Checkpoint, node: Node) -> Node:
    """Return the node with its input viewed in the shape that the `Reshape` at the start of its layout gives it."""
    (ref,) = node.inputs
    first = node.layout.first if isinstance(node.layout, Then) else node.layout
    shape = first.shape(ref.shape)
    if ref.type.elements != 1 or len(ref.spans) != 1 or ref.spans[0].strides:
        raise UnsupportedError(f"{ref.name}: {ref.type} in pieces or blocks cannot be reshaped", path=checkpoint.path)
    return replace(node, inputs=(replace(ref, shape=shape, spans=(replace(ref.spans[0], shape=shape),)),))


def _behind_zeros(checkpoint: Checkpoint, node: Node, layout: BehindZeros, start: int, stop: int) -> Floats:
    """Return rows of the input, or of zeros."""
    (ref,) = node.inputs
    _, at = layout.locate(np.arange(start, stop), ref.shape)
    out = np.zeros((stop - start, ref.columns), np.float32)
    if (found := at >= 0).any():
        out[found] = _scattered(checkpoint, ref, at[found], codec(ref.type.name).values)
    return out


def _resampled(checkpoint: Checkpoint, node: Node, layout: Resampled, start: int, stop: int) -> Floats:
    """Return rows that are each made of several of the input."""
    (ref,) = node.inputs
    out = np.zeros((stop - start, ref.columns), np.float32)
    for at, weights in layout.corners(np.arange(start, stop), ref.rows):
        out += weights[:, None] * _scattered(checkpoint, ref, at, codec(ref.type.name).values)
    return out


def _cut(checkpoint: Checkpoint, node: Node, first: Layout, start: int, stop: int) -> Floats:
    """Return rows that are equal pieces of the rows that `first` makes."""
    shape = first.shape(*(ref.shape for ref in node.inputs))
    pieces, rest = divmod(shape[-1], node.shape[-1])
    if rest:
        raise UnsupportedError(f"{node.name}: rows of {shape[-1]} cut to {node.shape[-1]}", path=checkpoint.path)
    low = start // pieces
    wide = _apply(checkpoint, replace(node, layout=first, shape=shape), first, low, -(-stop // pieces))
    cut: Floats = wide.reshape(-1, node.shape[-1])[start - low * pieces : stop - low * pieces]
    return cut


def _rotated_items(checkpoint: Checkpoint, node: Node, first: Layout, start: int, stop: int) -> Floats:
    """Return rows of a stack of transposed matrices; each is small (a head's keys) and is transposed whole."""
    stack = first.shape(*(ref.shape for ref in node.inputs))
    before, after = math.prod(stack[1:-1]), node.shape[-2]
    if before * after > MAX_VECTOR:
        raise UnsupportedError(f"{node.name}: matrices of {before} × {after} to turn", path=checkpoint.path)
    untouched = replace(node, layout=first, shape=stack)
    out = np.empty((stop - start, node.shape[-1]), np.float32)
    for item in range(start // after, (stop - 1) // after + 1):
        rotated = laid_out_values(checkpoint, untouched, item * before, (item + 1) * before).T
        low, high = max(start, item * after), min(stop, (item + 1) * after)
        out[low - start : high - start] = rotated[low - item * after : high - item * after]
    return out


def _is_plain(node: Node) -> bool:
    ref = node.inputs[0]
    return len(node.inputs) == 1 and ref.type.elements == 1 and len(ref.spans) == 1


def _rotated_at(node: Node) -> Node:
    """Return the node with its input, a matrix or a stack, viewed with the last two axes exchanged."""
    (ref,) = node.inputs
    span = ref.spans[0]
    strides = span.strides or tuple(math.prod(ref.shape[axis + 1 :]) for axis in range(len(ref.shape)))
    shape = (*ref.shape[:-2], ref.shape[-1], ref.shape[-2])
    rotated = replace(span, shape=shape, strides=(*strides[:-2], strides[-1], strides[-2]))
    return replace(node, inputs=(replace(ref, shape=shape, spans=(rotated,)),))


def _columns(checkpoint: Checkpoint, ref: TensorRef, start: int, stop: int) -> Floats:
    """Return columns `start:stop` of a matrix, transposed.

    They are read through a view with exchanged strides. Where the matrix has block types or several pieces, all its
    rows are decoded, and these columns kept.
    """
    if ref.type.elements != 1 or len(ref.spans) != 1:
        step = max(1, CHUNK // (ref.columns * 4))
        starts = range(0, ref.rows, step)
        return np.concatenate(
            [values_of(checkpoint, ref, row, min(ref.rows, row + step))[:, start:stop].T for row in starts], axis=1
        )
    span = ref.spans[0]
    strides = span.strides or (ref.columns, 1)
    rotated = replace(span, shape=ref.shape[::-1], strides=strides[::-1])
    return values_of(checkpoint, replace(ref, shape=ref.shape[::-1], spans=(rotated,)), start, stop)


def _vector(checkpoint: Checkpoint, node: Node, convert: Convert) -> Array:
    if sum(ref.elements for ref in node.inputs) > MAX_VECTOR:
        raise UnsupportedError(f"{node.name}: a permuted vector of {node.shape[0]} elements", path=checkpoint.path)
    items = [convert(raw_rows(checkpoint, ref, 0, 1), ref.columns).reshape(ref.columns, -1) for ref in node.inputs]
    source, row = node.layout.locate(np.arange(node.shape[0]), *(ref.shape for ref in node.inputs))
    out = np.empty((node.shape[0], items[0].shape[1]), items[0].dtype)
    for number, item in enumerate(items):
        mask = source == number
        out[mask] = item[row[mask]]
    return out.reshape(1, -1)


def _scattered(checkpoint: Checkpoint, ref: TensorRef, rows: Array, convert: Convert) -> Array:
    """Return rows in any order, read as one run where they are close together, else run by run."""
    low, high = int(rows.min()), int(rows.max()) + 1
    if high - low <= 2 * len(rows):
        whole: Array = converted_rows(checkpoint, ref, low, high, convert)
        picked: Array = whole[rows - low]
        return picked
    order = np.argsort(rows, kind="stable")
    cuts = np.flatnonzero(np.diff(rows[order]) != 1) + 1
    runs = [
        converted_rows(checkpoint, ref, int(rows[run[0]]), int(rows[run[-1]]) + 1, convert)
        for run in np.split(order, cuts)
    ]
    joined = np.concatenate(runs)
    out = np.empty_like(joined)
    out[order] = joined
    return out


def _as_is(rows: Bytes, columns: int) -> Bytes:
    return rows
