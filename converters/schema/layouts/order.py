"""Layouts that permute rows: rotary orders of heads, groups of heads, parts of them.

Patterns are einops' notation for merged axes: '(h two d) -> (h d two)'.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ggferry.converters.schema.expressions import evaluate
from ggferry.converters.schema.layouts.base import SAME, Layout, Shape, Sizes, row_count
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


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
class TailPairs(Layout):
    """Moves the last rows of each head, all behind its first `start`, from two halves to pairs of neighbors.

    Attributes:
        heads: Number of heads, an expression over hparams.
        start: Rows of a head that stay where they are.
        halves: 1 where the source has halves; with 0 it has pairs, and no row moves.
        back: Whether to go from pairs to halves.
    """

    heads: str | int
    start: str | int
    halves: str | int
    back: bool = False

    def bind(self, sizes: Sizes) -> Layout:
        if not evaluate(self.halves, sizes):
            return SAME
        return replace(self, heads=evaluate(self.heads, sizes), start=evaluate(self.start, sizes), halves=1)

    def shape(self, *inputs: Shape) -> Shape:
        (only,) = inputs
        heads, start, rows = int(self.heads), int(self.start), row_count(only)
        if heads < 1 or rows % heads or not 0 <= start < rows // heads or (rows // heads - start) % 2:
            raise ValueError(f"{rows} rows are not {heads} heads of {start} rows and two halves")
        return only

    def locate(self, rows: Array, *inputs: Shape) -> tuple[Array, Array]:
        width, start = row_count(inputs[0]) // int(self.heads), int(self.start)
        head, within = np.divmod(rows, width)
        half, behind = (width - start) // 2, within - start
        moved = behind % half * 2 + behind // half if self.back else behind % 2 * half + behind // 2
        return np.zeros_like(rows), head * width + np.where(behind < 0, within, start + moved)

    def inverse(self) -> Layout:
        return replace(self, back=not self.back)


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
