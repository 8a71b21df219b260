"""Permutation as data: how tensors of a source dialect become tensors of GGUF.

Every layout is a frozen value over *rows* (the last axis is the row, as in ggml). Block-safe layouts move whole rows
and never look inside one, so they only gather bytes, and are exact for every block type. Sizes are names of hparams,
which `bind` replaces by their values. Streaming needs one thing only: for any output rows, which rows of which input
they are (`locate`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


Shape = tuple[int, ...]


Sizes = Mapping[str, int]


def row_count(shape: Shape) -> int:
    """Return the number of rows of a tensor: the product of all axes but the last.

    A vector counts as a column of one-element rows, so that layouts permute the elements of a bias as they permute the
    rows of its matrix.
    """
    return shape[0] if len(shape) == 1 else math.prod(shape[:-1])


@dataclass(frozen=True, slots=True)
class Layout:
    """Base of all layouts."""

    @property
    def block_safe(self) -> bool:
        """Whether it moves whole rows only."""
        return True

    @property
    def lossless(self) -> bool:
        """Whether it moves values and changes none."""
        return True

    @property
    def widens(self) -> bool:
        """Whether it makes values that the source's type may not hold; they are kept in float32."""
        return False

    @property
    def integers(self) -> str:
        """The type in which GGUF has its values, where they are whole numbers; else ''."""
        return ""

    @property
    def formula(self) -> str:
        """What it computes of several tensors, in words, where a receipt says so; '' for what needs none."""
        return ""

    def bind(self, sizes: Sizes) -> Layout:
        """Return the layout with every named size replaced by its value. Raises KeyError for an unknown size."""
        return self

    def shape(self, *inputs: Shape) -> Shape:
        """Return the shape of the output. Raises ValueError for inputs that do not fit."""
        raise NotImplementedError

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        """Return where output rows (int64) come from: (input number, row within that input), both int64."""
        raise NotImplementedError

    def apply(self, *arrays: Array) -> Array:
        """Return the whole output, for tensors small enough to hold (tests, vectors)."""
        shapes = tuple(array.shape for array in arrays)
        shape = self.shape(*shapes)
        source, row = self.locate(np.arange(row_count(shape)), *shapes)
        tables = [array.reshape(row_count(array.shape), -1) for array in arrays]
        out = np.empty((len(row), tables[0].shape[1]), arrays[0].dtype)
        for number, table in enumerate(tables):
            mask = source == number
            out[mask] = table[row[mask]]
        return out.reshape(shape)

    def inverse(self) -> Layout:
        """Return the layout that undoes this one."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Same(Layout):
    """The tensor as it is."""

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        return only

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        return np.zeros_like(rows), rows

    def inverse(self) -> Layout:
        return self


@dataclass(frozen=True, slots=True)
class Rowwise(Layout):
    """Makes every output row from the input row in the same place by changing its inside; plain element types only."""

    @property
    def block_safe(self) -> bool:
        return False

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        return only


@dataclass(frozen=True, slots=True)
class Arithmetic(Layout):
    """Base of those that compute new values, which the source's type may not hold."""

    @property
    def block_safe(self) -> bool:
        return False

    @property
    def lossless(self) -> bool:
        return False

    @property
    def widens(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Elementwise(Rowwise):
    """Changes every value by itself and moves none. Needs float values."""

    @property
    def lossless(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Then(Layout):
    """`first`, then `second` on its output."""

    first: Layout
    second: Layout

    @property
    def block_safe(self) -> bool:
        return self.first.block_safe and self.second.block_safe

    @property
    def lossless(self) -> bool:
        return self.first.lossless and self.second.lossless

    def bind(self, sizes: Sizes) -> Layout:
        return Then(self.first.bind(sizes), self.second.bind(sizes))

    def shape(self, *inputs: Shape) -> Shape:
        return self.second.shape(self.first.shape(*inputs))

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        _, middle = self.second.locate(rows, self.first.shape(*inputs))
        return self.first.locate(middle, *inputs)

    def apply(self, *arrays: Array) -> Array:
        return self.second.apply(self.first.apply(*arrays))

    def inverse(self) -> Layout:
        return Then(self.second.inverse(), self.first.inverse())


SAME = Same()
