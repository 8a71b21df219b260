"""Matrices of integers of 4 or 8 bits, in the orders that AutoAWQ and AMD Quark store them: (q − z) × scale.

`Integers` needs of a layout only levels, zero points and scales by rows of the matrix; the functions below it return
them from tensors that are stored as columns × rows (AutoAWQ's GEMM, Quark's groups), as rows × columns, or interleaved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import CHUNK, raw_rows, values_of
from ggferry.converters.prequantized.dequantized_rows import columns_of, raw_columns
from ggferry.converters.prequantized.exact_blocks import Groups, Levels
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.quant.codecs.packed import unpack
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

Array = Any
Read = Callable[[int, int], Array]
"""Numbers of rows `start:stop` of the matrix, `(stop - start, columns or groups)`."""

BITS, PER_WORD = 4, 8
GEMM = (0, 4, 1, 5, 2, 6, 3, 7)
"""The nibble of a word, from its lowest bits, that holds each of its eight numbers: the inverse of AutoAWQ's order."""
IN_ORDER = tuple(range(PER_WORD))


@dataclass(frozen=True, slots=True)
class Integers:
    """(q − z) × scale.

    Attributes:
        shape: Rows and columns.
        group: Columns that share a scale.
        low: The least level that can be stored.
        high: The greatest.
        levels: The levels as stored, int16 `(rows, columns)`.
        scales: float32 `(rows, groups)`.
        zeros: Zero points, int16 `(rows, groups)`; None where all are 0.
    """

    shape: tuple[int, int]
    group: int
    low: int
    high: int
    levels: Read
    scales: Read
    zeros: Read | None = None

    def __call__(self, start: int, stop: int) -> Floats:
        groups = self._groups()
        values: Floats = self._centered(start, stop, groups).astype(np.float32)
        values *= self.scales(start, stop)[:, groups]
        return values

    def groups(self) -> Groups:
        """What the matrix consists of; its zero points are read for that."""
        low, high = self._zero_range()
        return Groups(self.low - high, self.high - low, self.group, self._levels)

    def _zero_range(self) -> tuple[int, int]:
        if self.zeros is None:
            return 0, 0
        rows, columns = self.shape
        step = max(PER_WORD, CHUNK // (4 * -(-columns // self.group)) // PER_WORD * PER_WORD)
        found = [self.zeros(start, min(rows, start + step)) for start in range(0, rows, step)]
        return int(min(part.min() for part in found)), int(max(part.max() for part in found))

    def _groups(self) -> Array:
        return np.arange(self.shape[1]) // self.group

    def _centered(self, start: int, stop: int, groups: Array) -> Array:
        levels = self.levels(start, stop)
        return levels if self.zeros is None else levels - self.zeros(start, stop)[:, groups]

    def _levels(self, start: int, stop: int, every: int) -> Levels:
        groups = self._groups()
        return Levels(self._centered(start, stop, groups), self.scales(start, stop)[:, groups[::every]])


def signed(nibbles: Array) -> Array:
    """Return codes of four bits as numbers from −8 to 7."""
    return (nibbles ^ 8) - 8


@dataclass(frozen=True, slots=True)
class NibblesOfColumns:
    """Nibbles of words that lie as `(columns, rows / 8)`, read by rows.

    Attributes:
        checkpoint: Where the words are.
        ref: The words, I32.
        places: The nibble that holds each of eight neighboring rows.
        negative: Whether codes are numbers from −8 to 7.
    """

    checkpoint: Checkpoint
    ref: TensorRef
    places: tuple[int, ...] = GEMM
    negative: bool = False

    def __call__(self, start: int, stop: int) -> Array:
        low = start // PER_WORD
        words = raw_columns(self.checkpoint, self.ref, low, -(-stop // PER_WORD)).view("<u4")
        found = unpack(words, BITS).reshape(self.ref.rows, -1, PER_WORD)[..., list(self.places)]
        codes = found.reshape(self.ref.rows, -1)[:, start - low * PER_WORD :][:, : stop - start].T.astype(np.int16)
        return signed(codes) if self.negative else codes


@dataclass(frozen=True, slots=True)
class NibblesOfRows:
    """The same of words that lie as `(rows, columns / 8)`; `columns`: those that count, the rest is padding."""

    checkpoint: Checkpoint
    ref: TensorRef
    columns: int
    places: tuple[int, ...] = IN_ORDER
    negative: bool = False

    def __call__(self, start: int, stop: int) -> Array:
        found = unpack(raw_rows(self.checkpoint, self.ref, start, stop).view("<u4"), BITS)
        codes = found.reshape(stop - start, -1, PER_WORD)[..., list(self.places)].reshape(stop - start, -1)
        whole = codes[:, : self.columns].astype(np.int16)
        return signed(whole) if self.negative else whole


@dataclass(frozen=True, slots=True)
class NumbersOfColumns:
    """Numbers that lie as `(columns or groups, rows)`, read by rows: float32, or int16 where `whole`.

    Attributes:
        checkpoint: Where they are.
        ref: The numbers.
        whole: Whether they are integers.
        count: How many of the first axis count, the rest being padding; 0 for all.
    """

    checkpoint: Checkpoint
    ref: TensorRef
    whole: bool = False
    count: int = 0

    def __call__(self, start: int, stop: int) -> Array:
        part = columns_of(self.ref, start, stop)
        found = values_of(self.checkpoint, part, 0, self.count or part.rows).T
        return found.astype(np.int16) if self.whole else found


@dataclass(frozen=True, slots=True)
class NumbersOfRows:
    """Numbers that lie as `(rows, columns or groups)`, as `(rows,)`, or one for all; `count`: those that count."""

    checkpoint: Checkpoint
    ref: TensorRef
    whole: bool = False
    count: int = 0

    def __call__(self, start: int, stop: int) -> Array:
        if self.ref.elements == 1:
            found = np.broadcast_to(values_of(self.checkpoint, self.ref, 0, 1).reshape(1, 1), (stop - start, 1))
        elif len(self.ref.shape) == 1:
            found = values_of(self.checkpoint, self.ref, 0, 1).reshape(-1, 1)[start:stop]
        else:
            found = values_of(self.checkpoint, self.ref, start, stop)[:, : self.count or self.ref.columns]
        return found.astype(np.int16) if self.whole else found
