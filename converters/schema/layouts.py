"""Permutation as data: how tensors of a source dialect become tensors of GGUF.

Every layout is a frozen value over *rows* (the last axis is the row, as in ggml). Block-safe layouts move whole rows
and never look inside one, so they only gather bytes, and are exact for every block type. Sizes are names of hparams,
which `bind` replaces by their values. Streaming needs one thing only: for any output rows, which rows of which input
they are (`locate`).

Patterns are einops' notation for merged axes: '(h two d) -> (h d two)'.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ggferry.converters.schema.expressions import evaluate
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
class Rearrange(Layout):
    """Permutes rows: '(h two d) -> (h d two)' with all sizes but one given.

    Attributes:
        pattern: The axes before and after; the row itself (the last axis) is not written.
        sizes: (axis, size) pairs; a size is an hparam's name, an expression or an integer.
    """

    pattern: str
    sizes: tuple[tuple[str, str | int], ...] = ()

    def bind(self, sizes: Sizes) -> Layout:
        return replace(self, sizes=tuple((axis, evaluate(value, sizes)) for axis, value in self.sizes))

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        _row_permutation(self.pattern, self.sizes, row_count(only))
        return only

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        permutation = _row_permutation(self.pattern, self.sizes, row_count(inputs[0]))
        return np.zeros_like(rows), permutation[rows]

    def inverse(self) -> Layout:
        left, right = self.pattern.split("->")
        return Rearrange(f"{right.strip()} -> {left.strip()}", self.sizes)


@lru_cache(maxsize=16)
def _row_permutation(pattern: str, sizes: tuple[tuple[str, str | int], ...], rows: int) -> Array:
    left, right = ([re.findall(r"\w+", side)] for side in pattern.split("->"))
    before, after = left[0], right[0]
    if sorted(before) != sorted(after):
        raise ValueError(f"{pattern!r} does not name the same axes on both sides")
    known = {axis: int(value) for axis, value in sizes}
    free = [axis for axis in before if axis not in known]
    fixed = math.prod(known[axis] for axis in before if axis in known)
    if len(free) > 1 or fixed == 0 or rows % fixed or (not free and fixed != rows):
        raise ValueError(f"{rows} rows do not split as {pattern!r} with {known}")
    if free:
        known[free[0]] = rows // fixed
    index = np.arange(rows).reshape([known[axis] for axis in before])
    return np.ascontiguousarray(index.transpose([before.index(axis) for axis in after]).reshape(rows))


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
class Regroup(Layout):
    """Regroups rows: from group by group to part by part.

    Each group consists of parts of `widths` rows; the result has the first parts of all groups, then all second parts,
    and so on. GPT-NeoX, BLOOM and Falcon store queries, key and value for each group of heads; the result is all
    queries, all keys, all values.

    Attributes:
        groups: Number of groups, an expression over hparams.
        widths: Rows of each part of a group, expressions over hparams.
        back: Whether to go from part by part to group by group.
    """

    groups: str | int
    widths: tuple[str | int, ...]
    back: bool = False

    def bind(self, sizes: Sizes) -> Layout:
        groups = evaluate(self.groups, sizes)
        if groups == 1:
            return SAME
        return replace(self, groups=groups, widths=tuple(evaluate(width, sizes) for width in self.widths))

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        groups, widths = int(self.groups), [int(width) for width in self.widths]
        if groups < 1 or min(widths) < 1 or row_count(only) != groups * sum(widths):
            raise ValueError(f"{row_count(only)} rows are not {groups} groups of {widths}")
        return only

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        groups, widths = int(self.groups), np.array([int(width) for width in self.widths])
        ends = np.cumsum(widths)
        if self.back:
            group, within = np.divmod(rows, ends[-1])
            part = np.searchsorted(ends, within, side="right")
            return np.zeros_like(rows), (ends - widths)[part] * (groups - 1) + group * widths[part] + within
        part = np.searchsorted(ends * groups, rows, side="right")
        group, within = np.divmod(rows - (ends - widths)[part] * groups, widths[part])
        return np.zeros_like(rows), group * ends[-1] + (ends - widths)[part] + within

    def inverse(self) -> Layout:
        return replace(self, back=not self.back)


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
NEG_EXP = Pointwise(neg_exp, log_neg)
EXP = Pointwise(exp, log)
"""For the decay of Mamba and RWKV: trained as a logarithm, stored in GGUF as the rate."""
ADD_ONE = Pointwise(add_one, sub_one)
"""For norms whose weights the source stores as their difference from one."""


def heads_to_qkv(groups: str) -> Regroup:
    """Return the layout from fused rows, group by group, to all queries, all keys, all values.

    A group is the queries of a group of heads, its key and its value; `groups` names the hparam that counts them. With
    one group, the rows are in that order already.
    """
    return Regroup(groups, (f"n_head / {groups} * head_dim", "head_dim", "head_dim"))


def heads_halves_to_pairs(heads: str) -> Rearrange:
    """Return the layout from Hugging Face's rotate-half order of Q/K rows to interleaved pairs.

    Meta, GGML and GGUF's `llama` have interleaved pairs. `heads` names the hparam: the K rows of a grouped-query model
    have n_head_kv heads (TinyLlama#24).
    """
    return Rearrange("(h two d) -> (h d two)", (("h", heads), ("two", 2)))
