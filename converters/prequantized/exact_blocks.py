"""Which GGUF blocks hold the values of a quantized matrix exactly, and their bytes.

A scheme says what its groups are (`Groups`): integers, their range, and scales for runs of neighboring columns. All
else is decided here: a block takes a matrix whose levels it can hold and whose groups never end within a block. The
scale of a block is a float16; a bfloat16 is one from 2^-17 up, a float32 seldom. Where it is none, it is rounded, which
is the grade `rescaled` (docs/decisions/exact-carrying.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ggferry.formats.errors import BadValueError
from ggferry.quant.codec import block_type
from ggferry.quant.pack_levels import PACKINGS, pack
from ggferry.quant.types import BlockError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

Array = Any


class Levels(NamedTuple):
    """Rows as integers times scales.

    Attributes:
        levels: Integers `(rows, columns)`, zero points subtracted.
        scales: float32 `(rows, blocks)`, or 1 in place of a size along which they do not change.
        minima: The same of what is added to level × scale; None for nothing.
    """

    levels: Array
    scales: Floats
    minima: Floats | None = None


@dataclass(frozen=True, slots=True)
class Groups:
    """What a quantized matrix consists of.

    Attributes:
        low: The least level that may occur, zero points subtracted.
        high: The greatest.
        size: Columns that share a scale: groups begin at multiples of it only.
        read: `read(start, stop, every)` returns rows `start:stop`, with the scale of every `every`-th column.
        minimum: Whether a minimum is added to level × scale.
        ordered: Whether columns of a group lie apart (act-order), which is why `size` is small.
    """

    low: int
    high: int
    size: int
    read: Callable[[int, int, int], Levels]
    minimum: bool = False
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class ScaledBlocks:
    """Blocks that GGUF has, beside which stands a float32 by which all their values are multiplied.

    Attributes:
        kind: Type of the blocks.
        rows: Makes rows of them.
        scales: The number, float32 `(1,)`; of a stack, one for each matrix.
        inputs: The same for activations, which no program needs; None where the source has none.
        exact: Whether the number is the source's own, not its reciprocal rounded.
    """

    kind: str
    rows: Callable[[int, int], Bytes]
    scales: Floats
    inputs: Floats | None = None
    exact: bool = True


def exact_types(groups: Groups | ScaledBlocks, columns: int) -> tuple[tuple[str, ...], str]:
    """Return the types whose blocks hold such a matrix exactly, the preferred first; where there is none, also why."""
    if isinstance(groups, ScaledBlocks):
        whole_rows = columns % block_type(groups.kind).elements == 0
        return ((groups.kind,), "") if whole_rows else ((), f"rows of {columns} are not whole blocks")
    fitting = [
        name
        for name, packing in PACKINGS.items()
        if packing.minimum == groups.minimum and packing.low <= groups.low and groups.high <= packing.high
    ]
    if not fitting:
        if groups.minimum:
            return (), f"no block of GGUF has a minimum and {groups.high + 1} levels"
        return (), "no block of GGUF holds levels that may lie outside −128 to 127"
    whole = [name for name in fitting if columns % block_type(name).elements == 0]
    if not whole:
        return (), f"rows of {columns} are not whole blocks"
    found = tuple(name for name in whole if groups.size % block_type(name).elements == 0 or groups.size >= columns)
    if found:
        return found, ""
    if groups.ordered:
        return (), "act-order: neighboring columns do not share a scale, as those of a block do"
    return (), f"groups of {groups.size} are not whole blocks"


@dataclass(frozen=True, slots=True)
class ExactBlocks:
    """Make rows of blocks of one type.

    Attributes:
        name: Name of the matrix.
        path: Path of its checkpoint.
        groups: What it consists of.
        kind: Name of the type.
    """

    name: str
    path: str
    groups: Groups
    kind: str

    def __call__(self, start: int, stop: int) -> Bytes:
        every = block_type(self.kind).elements
        found = self.groups.read(start, stop, every)
        shape = (stop - start, found.levels.shape[1] // every)
        scales = self._as_float16(start, found.scales, shape)
        minima = None if found.minima is None else self._as_float16(start, found.minima, shape)
        try:
            return pack(self.kind, found.levels, scales, minima)
        except BlockError as error:
            raise BadValueError(
                f"{self.name!r}, from row {start}: {error}", path=self.path, hint="--dequantize"
            ) from None

    def _as_float16(self, start: int, numbers: Floats, shape: tuple[int, int]) -> Array:
        halves = numbers.astype(np.float16)
        beyond = np.isinf(halves) & np.isfinite(numbers)
        if beyond.any():
            raise BadValueError(
                f"{self.name!r}, from row {start}: a scale beyond float16, which blocks of {self.kind} have",
                path=self.path,
                found=float(numbers[beyond][0]),
                expected="at most 65504",
                hint="--dequantize",
            )
        return np.broadcast_to(halves, shape)


def run_length(groups: Array) -> int:
    """Return the largest number such that the group of columns, int `(columns,)`, changes at its multiples only."""
    changes = np.flatnonzero(groups[1:] != groups[:-1]) + 1
    return math.gcd(*changes.tolist()) if len(changes) else len(groups)


def is_shuffled(groups: Array) -> bool:
    """Return whether columns of one group lie apart."""
    return bool((groups[1:] < groups[:-1]).any())
