"""Layouts that compute: functions of every value, factors of ranges of rows, whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ggferry.converters.schema.expressions import evaluate
from ggferry.converters.schema.layouts.base import (
    SAME,
    Arithmetic,
    Elementwise,
    Layout,
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
class Halved(Elementwise):
    """Every value times 2^-times, where `times` is an expression over hparams and the block `n`.

    Exact except for the smallest numbers of the narrow types.
    """

    times: str | int

    def bind(self, sizes: Sizes) -> Layout:
        times = evaluate(self.times, sizes)
        return Halved(times) if times else SAME

    def apply(self, *arrays: Array) -> Array:
        return np.ldexp(arrays[0], -int(self.times))

    def inverse(self) -> Layout:
        return Halved(-int(self.times))


Function = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Pointwise(Elementwise):
    """A function of every value, and the function that undoes it."""

    function: Function
    undo: Function

    def apply(self, *arrays: Array) -> Array:
        out: Array = self.function(arrays[0])
        return out

    def inverse(self) -> Layout:
        return Pointwise(self.undo, self.function)

    def __repr__(self) -> str:
        return f"Pointwise({self.function.__name__})"


def neg_exp(x: Array) -> Array:
    """Return -eˣ, computed in float64 and rounded once, so that the file does not depend on the libm."""
    out: Array = (-np.exp(x.astype(np.float64))).astype(np.float32)
    return out


def log_neg(x: Array) -> Array:
    """Return ln(-x), rounded as in `neg_exp`."""
    out: Array = np.log(-x.astype(np.float64)).astype(np.float32)
    return out


def exp(x: Array) -> Array:
    """Return eˣ, rounded as in `neg_exp`."""
    out: Array = np.exp(x.astype(np.float64)).astype(np.float32)
    return out


def log(x: Array) -> Array:
    """Return ln(x), rounded as in `neg_exp`."""
    out: Array = np.log(x.astype(np.float64)).astype(np.float32)
    return out


def add_one(x: Array) -> Array:
    """Return x + 1."""
    out: Array = x + np.float32(1)
    return out


def sub_one(x: Array) -> Array:
    """Return x - 1."""
    out: Array = x - np.float32(1)
    return out


NEG_EXP = Pointwise(neg_exp, log_neg)


EXP = Pointwise(exp, log)
"""For the decay of Mamba and RWKV: trained as a logarithm, stored in GGUF as the rate."""


ADD_ONE = Pointwise(add_one, sub_one)
"""For norms whose weights the source stores as their difference from one."""


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
