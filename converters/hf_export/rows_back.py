"""Rows of a checkpoint's tensor made from the tensors of GGUF: every layout undone, streamed.

A stream has a shape, and gives any of its rows as float32. A vector counts as a column of one-element rows, as for
layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

from ggferry.converters.model_graph.graph import Node
from ggferry.converters.model_graph.rows import MAX_VECTOR, laid_out_values
from ggferry.converters.schema.layouts.base import Elementwise, Layout, Same, Shape, row_count
from ggferry.converters.schema.layouts.columns import Columns
from ggferry.converters.schema.layouts.parts import Extended, Reshape, Squeeze, Transpose, Unsqueeze
from ggferry.converters.schema.layouts.values import Scaled, Whole
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UnsupportedError
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

    Array = np.ndarray[Any, Any]

STEP = 8 << 20
"""Bytes of float32 that are held of a matrix while its columns are read."""


class Rows(Protocol):
    """Rows of a tensor, on demand."""

    @property
    def shape(self) -> Shape:
        """Elements along each axis, outermost first."""
        ...

    @property
    def rotated(self) -> bool:
        """Whether a row costs as much as the whole matrix it is in."""
        ...

    def read(self, rows: Array) -> Floats:
        """Return rows (int64), float32 `(len(rows), columns)`."""
        ...


def columns(shape: Shape) -> int:
    """Return the elements of a row; 1 for a vector."""
    return shape[-1] if len(shape) > 1 else 1


@dataclass(frozen=True)
class OfNode:
    """The rows of a tensor of GGUF."""

    checkpoint: Checkpoint
    node: Node
    rotated: bool = False

    @property
    def shape(self) -> Shape:
        """The node's."""
        return self.node.shape

    def read(self, rows: Array) -> Floats:
        """Read rows."""
        if len(self.shape) == 1:
            return self._vector[rows]
        found: Floats = close_together(rows, partial(laid_out_values, self.checkpoint, self.node))
        return found

    @cached_property
    def _vector(self) -> Floats:
        if self.shape[0] > MAX_VECTOR:
            raise UnsupportedError(f"{self.node.name}: a vector of {self.shape[0]}", path=self.checkpoint.path)
        return laid_out_values(self.checkpoint, self.node, 0, 1).reshape(-1, 1)


def close_together(rows: Array, read: Callable[[int, int], Array]) -> Array:
    """Return rows (int64) of what `read(start, stop)` reads: runs of rows that lie close together as one."""
    order = np.argsort(rows, kind="stable")
    ordered, out = rows[order], None
    far = np.flatnonzero(np.diff(ordered) > 16) + 1
    for part in np.split(np.arange(len(rows)), far):
        low, high = int(ordered[part[0]]), int(ordered[part[-1]]) + 1
        found = read(low, high)
        out = np.empty((len(rows), found.shape[1]), found.dtype) if out is None else out
        out[order[part]] = found[ordered[part] - low]
    assert out is not None
    return out


@dataclass(frozen=True)
class Moved:
    """Rows in another order."""

    inner: Rows
    layout: Layout
    shape: Shape

    @property
    def rotated(self) -> bool:
        """As the rows it moves."""
        return self.inner.rotated

    def read(self, rows: Array) -> Floats:
        """Read the rows that these were."""
        return self.inner.read(self.layout.locate(rows, self.inner.shape)[1])


@dataclass(frozen=True)
class Gathered:
    """Rows from several tensors: row `i` is row `places[i]` of `parts[sources[i]]`."""

    parts: tuple[Rows, ...]
    sources: Array
    places: Array
    shape: Shape

    @property
    def rotated(self) -> bool:
        """Whether one of the parts is."""
        return any(part.rotated for part in self.parts)

    def read(self, rows: Array) -> Floats:
        """Read each part's rows."""
        out = np.empty((len(rows), columns(self.shape)), np.float32)
        for number in np.unique(self.sources[rows]):
            indices = np.flatnonzero(self.sources[rows] == number)
            out[indices] = self.parts[number].read(self.places[rows[indices]])
        return out


@dataclass(frozen=True)
class Item:
    """Consecutive rows of a tensor, from `first` on."""

    inner: Rows
    first: int
    shape: Shape

    @property
    def rotated(self) -> bool:
        """As the tensor."""
        return self.inner.rotated

    def read(self, rows: Array) -> Floats:
        """Read the rows after `first`."""
        return self.inner.read(rows + self.first)


@dataclass(frozen=True)
class Mapped:
    """Every row changed by a function of (its values, its numbers)."""

    inner: Rows
    function: Callable[[Any, Any], Any]
    shape: Shape

    @property
    def rotated(self) -> bool:
        """As the rows it changes."""
        return self.inner.rotated

    def read(self, rows: Array) -> Floats:
        """Read and change."""
        made: Floats = np.asarray(self.function(self.inner.read(rows), rows), np.float32)
        return made


@dataclass(frozen=True)
class Viewed:
    """The same values in the same order in another shape."""

    inner: Rows
    shape: Shape
    rotated: bool = False

    def read(self, rows: Array) -> Floats:
        """Read the rows where they stay whole; else hold all values of a small tensor."""
        if columns(self.shape) == columns(self.inner.shape):
            return self.inner.read(rows)
        return self._whole[rows]

    @cached_property
    def _whole(self) -> Floats:
        count = math.prod(self.inner.shape)
        if count > MAX_VECTOR:
            raise UnsupportedError(f"{count} values to be held for the shape {self.shape}")
        return self.inner.read(np.arange(row_count(self.inner.shape))).reshape(-1, columns(self.shape))


@dataclass(frozen=True)
class RotatedRows:
    """A matrix, or every matrix of a stack, transposed."""

    inner: Rows
    shape: Shape
    rotated: bool = True

    def read(self, rows: Array) -> Floats:
        """Read the matrices that the rows are columns of, a few rows at a time."""
        wide, high = self.inner.shape[-1], self.inner.shape[-2]
        item, column = np.divmod(rows, wide)
        out = np.empty((len(rows), high), np.float32)
        step = max(1, STEP // (wide * 4))
        for number in np.unique(item):
            indices = np.flatnonzero(item == number)
            for start in range(0, high, step):
                stop = min(high, start + step)
                read = self.inner.read(np.arange(start, stop) + number * high)
                out[indices, start:stop] = read[:, column[indices]].T
        return out


@dataclass(frozen=True)
class Number:
    """A tensor of one number, which GGUF keeps in a key."""

    value: float
    shape: Shape = (1,)
    rotated: bool = False

    def read(self, rows: Array) -> Floats:
        """Return it."""
        return np.full((len(rows), 1), self.value, np.float32)


def undone(rows: Rows, layout: Layout, shape: Shape) -> Rows:
    """Return the rows before one layout that takes one whole tensor, of the given shape. Raises UnsupportedError."""
    match layout:
        case Same() | Extended() | Whole():
            return rows
        case Transpose():
            return RotatedRows(rows, shape)
        case Squeeze() | Unsqueeze() | Reshape():
            return Viewed(rows, shape)
        case Scaled():
            return Mapped(rows, lambda values, at: values / _factors(layout, at, row_count(shape)), shape)
        case Columns():
            return Mapped(rows, lambda values, _: layout.inverse().apply(values), shape)
        case Elementwise():
            return Mapped(rows, lambda values, _: layout.inverse().apply(values), shape)
        case _ if layout.block_safe:
            return Moved(rows, layout.inverse(), shape)
    raise UnsupportedError(f"nothing undoes {layout}")


def _factors(layout: Scaled, rows: Array, count: int) -> Array:
    whole = layout.scaled(np.ones((count, 1), np.float32), 0)
    return whole[rows]


def columns_of(part: Rows, first: int, count: int) -> Mapped:
    """Return rows that are `count` columns of another matrix, from `first` on."""
    return Mapped(part, lambda values, rows: values[:, first : first + count], (*part.shape[:-1], count))


def interleaved(parts: Sequence[Rows], step: int, firsts: Sequence[int], shape: Shape) -> Mapped:
    """Return rows whose columns alternate between parts: part k has columns `firsts[k]`, `firsts[k] + step`, …"""

    def join(values: Any, rows: Array) -> Any:
        out = np.empty((len(rows), shape[-1]), np.float32)
        for part, first in zip(parts, firsts, strict=True):
            out[:, first::step] = part.read(rows)
        return out

    return Mapped(parts[0], join, shape)
