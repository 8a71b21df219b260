"""Layouts of columns: each row is changed inside, all rows alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggferry.converters.schema.layouts.base import SAME, Layout, Rowwise, Shape, Sizes
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


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
class SideBySide(Rowwise):
    """Matrices of equally many rows beside each other: every row is the rows of all of them in that place."""

    def shape(self, *inputs: Shape) -> Shape:
        if len({shape[:-1] for shape in inputs}) != 1 or len(inputs[0]) < 2:
            raise ValueError(f"{inputs} do not stand side by side")
        return (*inputs[0][:-1], sum(shape[-1] for shape in inputs))

    def apply(self, *arrays: Array) -> Array:
        return np.concatenate(arrays, axis=-1)


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
