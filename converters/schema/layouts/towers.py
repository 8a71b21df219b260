"""Layouts of vision and audio towers: folded batch norms, kernels of pixels, tables of places, positive factors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ggferry.converters.schema.expressions import evaluate
from ggferry.converters.schema.layouts.base import Arithmetic, Layout, Rowwise, Shape, Sizes, Then, row_count
from ggferry.converters.schema.layouts.columns import Columns
from ggferry.converters.schema.layouts.order import Rearrange
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.layouts.values import Pointwise
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Joined(Arithmetic):
    """Makes one vector of several equally long ones, value by value; vectors are small and held whole."""

    def shape(self, *inputs: Shape) -> Shape:
        if len(set(inputs)) != 1 or len(inputs[0]) != 1:
            raise ValueError(f"{inputs} are not vectors of one length")
        return inputs[0]


EPS = 1e-5
"""Epsilon of a batch norm: torch's default, which every conformer here has."""


@dataclass(frozen=True, slots=True)
class NormFactor(Joined):
    """What a batch norm multiplies by: the weight over the deviation that training left (inputs: weight, variance)."""

    def apply(self, *arrays: Array) -> Array:
        weight, variance = (array.astype(np.float64) for array in arrays)
        out: Array = (weight / np.sqrt(variance + EPS)).astype(np.float32)
        return out


@dataclass(frozen=True, slots=True)
class NormShift(Joined):
    """What a batch norm adds after that (inputs: bias, weight, mean, variance)."""

    def apply(self, *arrays: Array) -> Array:
        bias, weight, mean, variance = (array.astype(np.float64) for array in arrays)
        out: Array = (bias - mean * weight / np.sqrt(variance + EPS)).astype(np.float32)
        return out


@dataclass(frozen=True, slots=True)
class Product(Joined):
    """The product of two vectors, value by value, of which each may be a matrix of one row."""

    def shape(self, *inputs: Shape) -> Shape:
        ends = {shape[-1:] for shape in inputs}
        if len(ends) != 1 or any(math.prod(shape) != shape[-1] for shape in inputs):
            raise ValueError(f"{inputs} are not vectors of one length")
        return ends.pop()

    def apply(self, *arrays: Array) -> Array:
        one, other = (array.reshape(1, -1).astype(np.float32) for array in arrays)
        out: Array = one * other
        return out.reshape(1, -1)


def pixels_to_planes(width: str, patch: str) -> Then:
    """Return the layout from rows of pixels, red, green and blue of each, to a kernel of three planes.

    It makes `(width, patch · patch · 3)` into `(width, 3, patch, patch)`; both sizes are names of hparams.
    """
    planes = Columns(Rearrange("(pixels colors) -> (colors pixels)", (("colors", 3),)))
    return Then(planes, Reshape((width, 3, patch, patch)))


@dataclass(frozen=True, slots=True)
class Summed(Rowwise):
    """The sum of `of` equal parts of every row: of the frames a patch spans, all, where a picture has one."""

    of: int

    @property
    def lossless(self) -> bool:
        return False

    @property
    def widens(self) -> bool:
        return True

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if only[-1] % self.of:
            raise ValueError(f"{self.of} equal parts of the rows of {only}")
        return (*only[:-1], only[-1] // self.of)

    def apply(self, *arrays: Array) -> Array:
        (array,) = arrays
        out: Array = array.reshape(*array.shape[:-1], self.of, -1).astype(np.float32).sum(-2)
        return out


@dataclass(frozen=True, slots=True)
class Resampled(Arithmetic):
    """A square table of places made one of `side` by `side`, each row of up to four: bilinear, corners not aligned.

    Definition: torch `interpolate(mode="bilinear", align_corners=False)`, whose weights are computed in float32.
    """

    side: str | int

    def bind(self, sizes: Sizes) -> Layout:
        return Resampled(evaluate(self.side, sizes))

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if math.isqrt(row_count(only)) ** 2 != row_count(only):
            raise ValueError(f"the rows of {only} are no square of places")
        return (int(self.side) ** 2, only[-1])

    def corners(self, rows: Array, count: int) -> list[tuple[Array, Array]]:
        """Return, for output rows, four times which of `count` input rows they are made of, and its float32 weights."""
        before, after = math.isqrt(count), int(self.side)
        downs, acrosses = (_between(place, before, after) for place in np.divmod(rows, after))
        return [(y * before + x, down * across) for y, down in downs for x, across in acrosses]

    def apply(self, *arrays: Array) -> Array:
        table = arrays[0].reshape(row_count(arrays[0].shape), -1).astype(np.float32)
        found = [
            weights[:, None] * table[at] for at, weights in self.corners(np.arange(int(self.side) ** 2), len(table))
        ]
        out: Array = sum(found[1:], found[0])
        return out


def _between(places: Array, before: int, after: int) -> list[tuple[Array, Array]]:
    """Return the two places of `before` that each of `after` lies between, with the weight of either."""
    scale = np.float32(before) / np.float32(after)
    exact = np.maximum(scale * (places.astype(np.float32) + np.float32(0.5)) - np.float32(0.5), np.float32(0))
    low = exact.astype(np.int64)
    share = exact - low.astype(np.float32)
    return [(low, np.float32(1) - share), (np.minimum(low + 1, before - 1), share)]


@dataclass(frozen=True, slots=True)
class Swap(Layout):
    """Exchanges the first two of three axes."""

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        if len(only) != 3:
            raise ValueError(f"{only} has not three axes")
        return (only[1], only[0], only[2])

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        (only,) = inputs
        outer, inner = np.divmod(rows, only[0])
        return np.zeros_like(rows), inner * only[1] + outer

    def inverse(self) -> Layout:
        return self


def softplus(x: Array) -> Array:
    """Return ln(1 + eˣ), computed in float64 and rounded once."""
    wide = x.astype(np.float64)
    out: Array = (np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide)))).astype(np.float32)
    return out


def before_softplus(x: Array) -> Array:
    """Return ln(eˣ - 1), computed in float64 and rounded once."""
    wide = x.astype(np.float64)
    out: Array = (wide + np.log(-np.expm1(-wide))).astype(np.float32)
    return out


SOFTPLUS = Pointwise(softplus, before_softplus)
"""For factors that are trained without bounds and used as positive numbers."""
