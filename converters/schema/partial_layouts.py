"""Layouts of a part of a tensor: the rows after a place, the first rows of every head, single rows, all columns.

`Scaled` multiplies ranges of rows by factors.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ggferry.converters.schema.expressions import evaluate
from ggferry.converters.schema.layouts import (
    SAME,
    Arithmetic,
    Elementwise,
    Layout,
    Rearrange,
    Rowwise,
    Shape,
    Sizes,
    row_count,
)
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class TrailingBlocks(Layout):
    """Rows from `start` (an expression over hparams) on, permuted among themselves by `layout`; those before stay."""

    start: str | int
    layout: Layout

    @property
    def block_safe(self) -> bool:
        return self.layout.block_safe

    def bind(self, sizes: Sizes) -> Layout:
        inner = self.layout.bind(sizes)
        return inner if inner == SAME else TrailingBlocks(evaluate(self.start, sizes), inner)

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if not 0 <= int(self.start) < only[0] or self.layout.shape(self._rest(only)) != self._rest(only):
            raise ValueError(f"rows from {self.start} on of {only}")
        return only

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        (only,) = inputs
        rest = self._rest(only)
        first = row_count(only) - row_count(rest)
        _, moved = self.layout.locate(np.maximum(rows - first, 0), rest)
        return np.zeros_like(rows), np.where(rows < first, rows, moved + first)

    def inverse(self) -> Layout:
        return replace(self, layout=self.layout.inverse())

    def _rest(self, shape: Shape) -> Shape:
        return (shape[0] - int(self.start), *shape[1:])


@dataclass(frozen=True, slots=True)
class Heads(Layout):
    """The first `width` rows of each of `groups` equal groups, permuted by `layout`; the other rows stay.

    A head that is rotated only in part needs this. Both numbers are expressions over hparams.
    """

    groups: str | int
    width: str | int
    layout: Layout

    @property
    def block_safe(self) -> bool:
        return self.layout.block_safe

    def bind(self, sizes: Sizes) -> Layout:
        return Heads(evaluate(self.groups, sizes), evaluate(self.width, sizes), self.layout.bind(sizes))

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        groups, width = int(self.groups), int(self.width)
        if groups < 1 or row_count(only) % groups or not 0 < width <= row_count(only) // groups:
            raise ValueError(f"{width} rows of each of {groups} groups of {only}")
        self.layout.shape((width, 1))
        return only

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        (only,) = inputs
        row = np.mod(rows, row_count(only) // int(self.groups))
        _, moved = self.layout.locate(np.minimum(row, int(self.width) - 1), (int(self.width), 1))
        return np.zeros_like(rows), rows + np.where(row < int(self.width), moved - row, 0)

    def inverse(self) -> Layout:
        return replace(self, layout=self.layout.inverse())


@dataclass(frozen=True, slots=True)
class Reordered(Layout):
    """As many equal groups of rows as `order` has numbers, in that order: first the group of its first number."""

    order: tuple[int, ...]

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if sorted(self.order) != list(range(len(self.order))) or row_count(only) % len(self.order):
            raise ValueError(f"{len(self.order)} groups of rows of {only}")
        return only

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        width = row_count(inputs[0]) // len(self.order)
        group, row = np.divmod(rows, width)
        return np.zeros_like(rows), np.array(self.order)[group] * width + row

    def inverse(self) -> Layout:
        return Reordered(tuple(self.order.index(n) for n in range(len(self.order))))


def rotary_halves_to_pairs(heads: str) -> Heads:
    """Return the layout `heads_halves_to_pairs` for heads of which only the first `n_rot` rows are rotated."""
    return Heads(heads, "n_rot", Rearrange("(two d) -> (d two)", (("two", 2),)))


def rotary_pairs_to_halves(heads: str) -> Heads:
    """Return the layout that undoes `rotary_halves_to_pairs`."""
    return Heads(heads, "n_rot", Rearrange("(d two) -> (two d)", (("two", 2),)))


@dataclass(frozen=True, slots=True)
class Chosen(Layout):
    """Single rows of the one input, in this order: numbers, or expressions over hparams."""

    rows: tuple[str | int, ...]

    def bind(self, sizes: Sizes) -> Layout:
        return Chosen(tuple(evaluate(row, sizes) for row in self.rows))

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if len(only) != 2 or not all(0 <= int(row) < only[0] for row in self.rows):
            raise ValueError(f"rows {self.rows} of {only}")
        return (len(self.rows), only[1])

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        return np.zeros_like(rows), np.array([int(row) for row in self.rows], np.int64)[rows]


@dataclass(frozen=True, slots=True)
class Columns(Rowwise):
    """The columns of every row, in the order that `layout` gives to rows."""

    layout: Layout

    def bind(self, sizes: Sizes) -> Layout:
        inner = self.layout.bind(sizes)
        return inner if inner == SAME else Columns(inner)

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        self.layout.shape((only[-1],))
        return only

    def apply(self, *arrays: Array) -> Array:
        (array,) = arrays
        _, order = self.layout.locate(np.arange(array.shape[-1]), (array.shape[-1],))
        return np.ascontiguousarray(array[..., order])

    def inverse(self) -> Layout:
        return Columns(self.layout.inverse())


@dataclass(frozen=True, slots=True)
class Scaled(Arithmetic):
    """Every value multiplied by hparams, one after another, in float32.

    Falcon-H1 multiplies activations by them, and GGUF has them in the weights.

    Attributes:
        factors: Names of the factors for each range of rows; 'name[i]' is an item of a list.
        widths: Rows of the ranges, as expressions over hparams; empty for one range of all rows.
    """

    factors: tuple[tuple[str | float, ...], ...]
    widths: tuple[str | int, ...] = ()

    def bind(self, sizes: Sizes) -> Layout:
        factors = tuple(tuple(_number(name, sizes) for name in names) for names in self.factors)
        if all(factor == 1 for numbers in factors for factor in numbers):
            return SAME
        return Scaled(factors, tuple(evaluate(width, sizes) for width in self.widths))

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if self.widths and sum(int(width) for width in self.widths) != row_count(only):
            raise ValueError(f"{self.widths} rows of {only}")
        return only

    def apply(self, *arrays: Array) -> Array:
        (array,) = arrays
        return self.scaled(array.reshape(row_count(array.shape), -1), 0).reshape(array.shape)

    def scaled(self, rows: Array, start: int) -> Array:
        """Return rows, float32 `(rows, columns)`, scaled; the first of them is row `start` of the tensor."""
        ends = np.cumsum([int(width) for width in self.widths]) if self.widths else np.array([start + len(rows)])
        part = np.searchsorted(ends, np.arange(start, start + len(rows)), side="right")
        out = rows.astype(np.float32)
        for number in range(max(map(len, self.factors))):
            column = [names[number] if number < len(names) else 1.0 for names in self.factors]
            out = out * np.array(column, np.float32)[part][:, None]
        return out

    def inverse(self) -> Layout:
        inverse = tuple(tuple(1 / float(factor) for factor in reversed(numbers)) for numbers in self.factors)
        return replace(self, factors=inverse)


@dataclass(frozen=True, slots=True)
class NegatedHalves(Scaled):
    """The second half of the rows of each head negated, by which a rotation backward becomes one forward (Talkie).

    Attributes:
        heads: How many heads there are, an expression over hparams.
        width: Rows of half a head, likewise.
    """

    factors: tuple[tuple[str | float, ...], ...] = ((1.0,), (-1.0,))
    heads: str | int = 1
    width: str | int = "head_dim / 2"

    @property
    def lossless(self) -> bool:
        return True

    @property
    def widens(self) -> bool:
        return False

    def bind(self, sizes: Sizes) -> Layout:
        heads, width = evaluate(self.heads, sizes), evaluate(self.width, sizes)
        return replace(self, factors=self.factors * heads, widths=(width, width) * heads, heads=1)


@dataclass(frozen=True, slots=True)
class UnitRows(Rowwise):
    """Every row divided by its Euclidean length, where the hparam `when` is true, else the rows as they are.

    Baichuan 2 does so each time it uses its output matrix. The result does not hold the lengths.
    """

    when: str

    @property
    def lossless(self) -> bool:
        return False

    @property
    def widens(self) -> bool:
        return True

    def bind(self, sizes: Sizes) -> Layout:
        return self if sizes[self.when] else SAME

    def apply(self, *arrays: Array) -> Array:
        (array,) = arrays
        rows = array.astype(np.float64)
        lengths = np.sqrt(np.square(rows).sum(-1, keepdims=True))
        out: Array = (rows / np.maximum(lengths, 1e-12)).astype(np.float32)
        return out


def _number(name: str | float, sizes: Sizes) -> float:
    """Return the hparam of that name, or an item of a list, by default that of the block `n`. Raises KeyError."""
    if not isinstance(name, str):
        return name
    listed, _, item = name.partition("[")
    found: Any = sizes[listed]
    if isinstance(found, tuple) and not item:
        return float(found[sizes["n"]])
    return float(found[int(item.removesuffix("]"))] if item else found)


@dataclass(frozen=True, slots=True)
class Plus(Elementwise):
    """Every value plus a number, in float32 (norms whose weights are stored as the difference from it)."""

    number: float

    def apply(self, *arrays: Array) -> Array:
        out: Array = arrays[0] + np.float32(self.number)
        return out

    def inverse(self) -> Layout:
        return Plus(-self.number)


@dataclass(frozen=True, slots=True)
class Counted(Rowwise):
    """Every whole number of a vector plus its place: offsets become ids; `back` from ids to offsets.

    Exact up to 2²⁴, as numbers pass through float32.
    """

    back: bool = False

    @property
    def integers(self) -> str:
        return "I64"

    def apply(self, *arrays: Array) -> Array:
        (array,) = arrays
        places = np.arange(array.shape[-1], dtype=np.float32)
        out: Array = array - places if self.back else array + places
        return out

    def inverse(self) -> Layout:
        return Counted(not self.back)


@dataclass(frozen=True, slots=True)
class Whole(Rowwise):
    """Whole numbers as they are, in so many bits; exact up to 2²⁴, as numbers pass through float32."""

    bits: int

    @property
    def integers(self) -> str:
        return f"I{self.bits}"

    def apply(self, *arrays: Array) -> Array:
        return arrays[0]

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
class EveryColumn(Rowwise):
    """Every `of`th column, from column `first` on: as `Every`, for the biases of a stack (one row for each matrix)."""

    of: int
    first: int

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if only[-1] % self.of or not 0 <= self.first < self.of:
            raise ValueError(f"every {self.of}th column of {only}")
        return (*only[:-1], only[-1] // self.of)

    def apply(self, *arrays: Array) -> Array:
        out: Array = np.ascontiguousarray(arrays[0][..., self.first :: self.of])
        return out


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
