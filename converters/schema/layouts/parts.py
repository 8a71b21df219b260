"""Layouts that cut tensors and join them, take single rows or items, or change their axes."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ggferry.converters.schema.expressions import evaluate
from ggferry.converters.schema.layouts.base import SAME, Layout, Shape, Sizes, row_count
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Split(Layout):
    """Rows `start` to `stop` (expressions over hparams) of the one input."""

    start: str | int
    stop: str | int

    def bind(self, sizes: Sizes) -> Layout:
        return Split(evaluate(self.start, sizes), evaluate(self.stop, sizes))

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        start, stop = int(self.start), int(self.stop)
        if not 0 <= start < stop <= only[0]:
            raise ValueError(f"rows {start}..{stop} of {only[0]}")
        return (stop - start, *only[1:])

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        inner = math.prod(inputs[0][1:-1]) if len(inputs[0]) > 2 else 1
        return np.zeros_like(rows), rows + int(self.start) * inner


@dataclass(frozen=True, slots=True)
class Share(Layout):
    """One of equal parts of the rows from `start` on: keys or values, where the shapes alone say how many there are.

    Attributes:
        start: The first row of all parts, an expression over hparams.
        number: Which part, from 0.
        of: How many there are.
    """

    start: str | int
    number: int
    of: int

    def bind(self, sizes: Sizes) -> Layout:
        return Share(evaluate(self.start, sizes), self.number, self.of)

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        rows = only[0] - int(self.start)
        if rows < self.of or rows % self.of:
            raise ValueError(f"{self.of} equal parts of the rows from {self.start} on of {only}")
        return (rows // self.of, *only[1:])

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        inner = math.prod(inputs[0][1:-1]) if len(inputs[0]) > 2 else 1
        first = int(self.start) + self.number * self.shape(*inputs)[0]
        return np.zeros_like(rows), rows + first * inner


@dataclass(frozen=True, slots=True)
class Pick(Layout):
    """Rows `start` to `stop` of each of `groups` equal groups, with the groups as the first axis.

    Examples are the keys or the values of every head, where a matrix holds both head by head, and one half of every
    matrix of a stack. All three numbers are expressions over hparams.

    Attributes:
        stacked: Whether a checkpoint that is written has a matrix for each group, and not one of all groups.
    """

    groups: str | int
    start: str | int
    stop: str | int
    stacked: bool = False

    def bind(self, sizes: Sizes) -> Layout:
        groups, start, stop = (evaluate(size, sizes) for size in (self.groups, self.start, self.stop))
        return Pick(groups, start, stop, self.stacked)

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        groups, start, stop = int(self.groups), int(self.start), int(self.stop)
        stacked = len(only) == 3 and only[0] == groups
        rows = row_count(only)
        if groups < 1 or not (len(only) == 2 or stacked) or rows % groups or not 0 <= start < stop <= rows // groups:
            raise ValueError(f"rows {start}..{stop} of each of {groups} groups of {only}")
        return (groups, stop - start, only[-1])

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        group, row = np.divmod(rows, int(self.stop) - int(self.start))
        return np.zeros_like(rows), group * (row_count(inputs[0]) // int(self.groups)) + int(self.start) + row


@dataclass(frozen=True, slots=True)
class Concat(Layout):
    """Inputs concatenated along the first axis.

    Attributes:
        each: How the rows of each input are ordered first, where they are not taken as they are.
        rows: Rows of each input, expressions over hparams, where they are not equally many: what an export needs.
    """

    each: tuple[Layout, ...] = ()
    rows: tuple[str | int, ...] = ()

    @property
    def block_safe(self) -> bool:
        return all(layout.block_safe for layout in self.each)

    @property
    def lossless(self) -> bool:
        return all(layout.lossless for layout in self.each)

    def bind(self, sizes: Sizes) -> Layout:
        rows = tuple(evaluate(count, sizes) for count in self.rows)
        return Concat(tuple(layout.bind(sizes) for layout in self.each), rows)

    def shape(self, *inputs: Shape) -> Shape:
        inputs = self._ordered(inputs)
        if len({shape[1:] for shape in inputs}) != 1:
            raise ValueError(f"cannot concatenate {inputs}")
        return (sum(shape[0] for shape in inputs), *inputs[0][1:])

    def _ordered(self, inputs: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """Return the shapes of the inputs once each is ordered."""
        if not self.each:
            return inputs
        return tuple(layout.shape(shape) for layout, shape in zip(self.each, inputs, strict=True))

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        ends = np.cumsum([row_count(shape) for shape in self._ordered(inputs)])
        source = np.searchsorted(ends, rows, side="right")
        within = rows - np.concatenate(([0], ends))[source]
        for number, layout in enumerate(self.each):
            mask = source == number
            within[mask] = layout.locate(within[mask], inputs[number])[1]
        return source, within

    def parts(self, *inputs: Shape) -> tuple[Split, ...]:
        """Return the splits that undo it, one for each input."""
        ends = [0]
        for shape in inputs:
            ends.append(ends[-1] + shape[0])
        return tuple(Split(a, b) for a, b in pairwise(ends))


@dataclass(frozen=True, slots=True)
class Stack(Layout):
    """Equal inputs along a new first axis (the experts of a layer, the norms of its heads)."""

    def shape(self, *inputs: Shape) -> Shape:
        if len(set(inputs)) != 1:
            raise ValueError(f"cannot stack {sorted(set(inputs))}")
        return (len(inputs), *inputs[0])

    def apply(self, *arrays: Array) -> Array:
        return np.stack(arrays)

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        source, row = np.divmod(rows, math.prod(inputs[0][:-1]))
        return source, row


@dataclass(frozen=True, slots=True)
class Unstack(Layout):
    """Item `index` of the first axis."""

    index: int

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if not 0 <= self.index < only[0]:
            raise ValueError(f"item {self.index} of {only[0]}")
        return only[1:]

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        return np.zeros_like(rows), rows + self.index * math.prod(inputs[0][1:-1])


@dataclass(frozen=True, slots=True)
class Squeeze(Layout):
    """Removes an axis of size one that is not the last."""

    axis: int

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if not 0 <= self.axis < len(only) - 1 or only[self.axis] != 1:
            raise ValueError(f"axis {self.axis} of {only} is not one")
        return only[: self.axis] + only[self.axis + 1 :]

    def apply(self, *arrays: Array) -> Array:
        return arrays[0].reshape(self.shape(arrays[0].shape))

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        return np.zeros_like(rows), rows

    def inverse(self) -> Layout:
        return Unsqueeze(self.axis)


@dataclass(frozen=True, slots=True)
class Unsqueeze(Layout):
    """Inserts an axis of size one before the last."""

    axis: int

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if not 0 <= self.axis < len(only):
            raise ValueError(f"axis {self.axis} of {only}")
        return (*only[: self.axis], 1, *only[self.axis :])

    def apply(self, *arrays: Array) -> Array:
        return arrays[0].reshape(self.shape(arrays[0].shape))

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        return np.zeros_like(rows), rows

    def inverse(self) -> Layout:
        return Squeeze(self.axis)


@dataclass(frozen=True, slots=True)
class Reshape(Layout):
    """The same values in the same order with another shape: a vector as one column, or as the rows of its groups.

    It splits and joins rows, so it works for plain element types only.

    Attributes:
        to: The new shape, expressions over hparams.
        of: The only shape it accepts, if given.
        back: The shape that a checkpoint is given on export, where `of` does not say it.
    """

    to: tuple[str | int, ...]
    of: tuple[str | int, ...] = ()
    back: tuple[str | int, ...] = ()

    @property
    def block_safe(self) -> bool:
        return False

    def bind(self, sizes: Sizes) -> Layout:
        shapes = (self.to, self.of, self.back)
        return Reshape(*(tuple(evaluate(size, sizes) for size in shape) for shape in shapes))

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        expected = tuple(int(size) for size in self.to)
        if math.prod(expected) != math.prod(only) or self.of not in ((), only):
            raise ValueError(f"{only} where {self.of or expected} is reshaped to {expected}")
        return expected

    def apply(self, *arrays: Array) -> Array:
        return arrays[0].reshape(self.shape(arrays[0].shape))


@dataclass(frozen=True, slots=True)
class Transpose(Layout):
    """Swaps the last two axes of a matrix (GPT-2's Conv1D), or of each matrix of a stack; plain element types only."""

    @property
    def block_safe(self) -> bool:
        return False

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if not 2 <= len(only) <= 3:
            raise ValueError(f"cannot transpose {only}")
        return (*only[:-2], only[-1], only[-2])

    def apply(self, *arrays: Array) -> Array:
        return np.ascontiguousarray(arrays[0].swapaxes(-1, -2))

    def inverse(self) -> Layout:
        return self


@dataclass(frozen=True, slots=True)
class Every(Layout):
    """Every `of`th row of each matrix of a stack, from row `first` on: gate or up, where their rows alternate."""

    of: int
    first: int

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if len(only) != 3 or only[1] % self.of or not 0 <= self.first < self.of:
            raise ValueError(f"every {self.of}th row of the matrices of {only}")
        return (only[0], only[1] // self.of, only[2])

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        item, row = np.divmod(rows, inputs[0][1] // self.of)
        return np.zeros_like(rows), item * inputs[0][1] + row * self.of + self.first


@dataclass(frozen=True, slots=True)
class Extended(Layout):
    """The rows of a matrix, followed by its first row again and again, up to `rows` (an expression over hparams).

    It is the embedding of tokens that have none of their own (Gemma 3n).
    """

    rows: str | int

    def bind(self, sizes: Sizes) -> Layout:
        return Extended(evaluate(self.rows, sizes))

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if len(only) != 2 or only[0] > int(self.rows):
            raise ValueError(f"{self.rows} rows of {only}")
        return (int(self.rows), only[1])

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        return np.zeros_like(rows), np.where(rows < inputs[0][0], rows, 0)


@dataclass(frozen=True, slots=True)
class BehindZeros(Layout):
    """Matrices `(items, 1, rows, columns)` as a stack behind one of zeros, the rows of each permuted by `within`.

    They are what adapters add to a matrix; the first stands for none of them (Granite Switch).
    """

    within: Layout = SAME

    @property
    def block_safe(self) -> bool:
        return False

    def bind(self, sizes: Sizes) -> Layout:
        return BehindZeros(self.within.bind(sizes))

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if len(only) != 4 or only[1] != 1 or self.within.shape(only[2:]) != only[2:]:
            raise ValueError(f"{only} as matrices behind one of zeros")
        return (only[0] + 1, *only[2:])

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        """Return where rows come from; those of zeros come from row -1."""
        (only,) = inputs
        item, row = np.divmod(rows, only[2])
        _, moved = self.within.locate(row, only[2:])
        return np.zeros_like(rows), np.where(item > 0, (item - 1) * only[2] + moved, -1)

    def apply(self, *arrays: Array) -> Array:
        (array,) = arrays
        shape = self.shape(array.shape)
        _, at = self.locate(np.arange(row_count(shape)), array.shape)
        out = array.reshape(-1, shape[-1])[at]
        out[at < 0] = 0
        return out.reshape(shape)


@dataclass(frozen=True, slots=True)
class Item(Layout):
    """Item `index` of an axis that is not the last: of the frames a convolution spans, one."""

    axis: int
    index: int

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if not 0 <= self.axis < len(only) - 1 or not 0 <= self.index < only[self.axis]:
            raise ValueError(f"item {self.index} of axis {self.axis} of {only}")
        return only[: self.axis] + only[self.axis + 1 :]

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        inner, count = math.prod(inputs[0][self.axis + 1 : -1]), inputs[0][self.axis]
        outer, within = np.divmod(rows, inner)
        return np.zeros_like(rows), (outer * count + self.index) * inner + within


@dataclass(frozen=True, slots=True)
class Row(Layout):
    """Row `index` of a matrix, an expression over hparams, as a vector: of an embedding, that of one token."""

    index: str | int

    def bind(self, sizes: Sizes) -> Layout:
        return Row(evaluate(self.index, sizes))

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if len(only) != 2 or not 0 <= int(self.index) < only[0]:
            raise ValueError(f"row {self.index} of {only}")
        return only[1:]

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        return np.zeros_like(rows), int(self.index) * inputs[0][1] + rows

    def apply(self, *arrays: Array) -> Array:
        out: Array = arrays[0][int(self.index)]
        return out
