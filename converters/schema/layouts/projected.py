"""Rows of embeddings that are computed of the source's rows: GGUF has what comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ggferry.converters.schema.expressions import evaluate
from ggferry.converters.schema.layouts.base import Arithmetic, Layout, Shape, Sizes
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
    Read = Callable[[int, int, int], Array]
    """Returns rows `start:stop` of input `number`, float32: `read(number, start, stop)`."""

TABLE, BELOW, UP, UP_BIAS, DOWN, DOWN_BIAS = range(6)
"""The inputs of `Projected`, in order."""
TILE = 128
"""Rows that are computed together. Where they begin is a multiple of it, and there are always so many: a sum of floats
depends on how many rows stand beside it."""
STEP = 256
"""Rows of a matrix that are held at once."""


@dataclass(frozen=True, slots=True)
class ComputedRows(Arithmetic):
    """Base of those that compute rows of embeddings in float64, whichever are asked for, and round them to float32."""

    def apply(self, *arrays: Array) -> Array:
        shapes = tuple(array.shape for array in arrays)
        stacked = [array.reshape(-1, array.shape[-1]) for array in arrays]
        return self.rows(lambda number, start, stop: stacked[number][start:stop], shapes, 0, self.shape(*shapes)[0])

    def rows(self, read: Read, shapes: tuple[Shape, ...], start: int, stop: int) -> Array:
        """Return rows `start:stop` of the result, float32; of the inputs no more than a few rows are held."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class WithLatent(ComputedRows):
    """A table, rows of the same width as they are, and behind them what a matrix makes of a vector.

    Pocket TTS: the row before a voice, where it has one, and the latent with which sound begins, which enters the model
    through a matrix. The inputs are the table, such rows, the matrix, the vector.
    """

    @property
    def formula(self) -> str:
        """What is computed, for receipts, by the numbers of the inputs from the last one."""
        return "the rows of the tensors but for the last two, then the last but one times the last"

    def shape(self, *inputs: Shape) -> Shape:
        table, *between, matrix, vector = inputs
        width = table[-1]
        single = all(math.prod(shape) == width == shape[-1] for shape in between)
        if len(table) != 2 or not single or (matrix, len(vector)) != ((width, *vector), 1):
            raise ValueError(f"a table of embeddings, single rows, a matrix and a vector of {inputs}")
        return table[0] + len(between) + 1, width

    def rows(self, read: Read, shapes: tuple[Shape, ...], start: int, stop: int) -> Array:
        count, last = shapes[TABLE][0], len(shapes) - 2
        parts = [read(TABLE, start, min(stop, count))] if start < count else []
        parts += [read(at, 0, 1) for at in range(1, last) if start < count + at <= stop]
        if stop == count + last:
            latent = read(last + 1, 0, 1)[0].astype(np.float64)
            steps = (read(last, *step).astype(np.float64) @ latent for step in _steps(shapes[last][0]))
            parts.append(np.concatenate([*steps])[None].astype(np.float32))
        return np.concatenate(parts).astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True)
class Projected(ComputedRows):
    """Rows of a table through two matrices with biases, SiLU between them; then rows of another table as they are.

    Row i of the first becomes W₂·silu(W₁·x + b₁) + b₂ (Qwen3-TTS: texts have embeddings of another width than codes).
    It is computed in float64 and rounded once to float32.

    Attributes:
        first: Rows and columns of the first table, expressions over hparams.
        below: Rows and columns of the second, likewise; the result has the latter.
    """

    first: tuple[str | int, str | int]
    below: tuple[str | int, str | int]

    @property
    def formula(self) -> str:
        """What is computed, for receipts, by the numbers of the inputs."""
        return "rows of [0] as [4]·silu([2]·x + [3]) + [5], then the rows of [1]"

    def bind(self, sizes: Sizes) -> Layout:
        first, below = ((evaluate(rows, sizes), evaluate(columns, sizes)) for rows, columns in (self.first, self.below))
        return replace(self, first=first, below=below)

    def shape(self, *inputs: Shape) -> Shape:
        (rows, width), (more, columns), inner = self.first, self.below, inputs[UP][0]
        expected = ((rows, width), (more, columns), (inner, width), (inner,), (columns, inner), (columns,))
        if inputs != expected:
            raise ValueError(f"tables and network of {inputs} where the configuration says {expected}")
        return int(rows) + int(more), int(columns)

    def rows(self, read: Read, shapes: tuple[Shape, ...], start: int, stop: int) -> Array:
        count = shapes[TABLE][0]
        out = np.empty((stop - start, shapes[BELOW][1]), np.float32)
        low = start - start % TILE
        for at in range(low, min(stop, count), TILE):
            first, last = max(at, start), min(at + TILE, stop, count)
            tile = np.zeros((TILE, shapes[TABLE][1]), np.float64)
            found = read(TABLE, at, min(at + TILE, count))
            tile[: len(found)] = found
            out[first - start : last - start] = self._projected(tile, read, shapes)[first - at : last - at]
        if stop > count:
            first = max(start, count)
            out[first - start :] = read(BELOW, first - count, stop - count)
        return out

    def _projected(self, tile: Array, read: Read, shapes: tuple[Shape, ...]) -> Array:
        inner = _through(tile, read, UP, UP_BIAS, shapes[UP][0])
        with np.errstate(over="ignore"):  # e to the power of a large number is infinity, its reciprocal the right 0
            inner /= 1 + np.exp(-inner)
        return _through(inner, read, DOWN, DOWN_BIAS, shapes[DOWN][0])


def _through(x: Array, read: Read, matrix: int, bias: int, rows: int) -> Array:
    """Return x through a matrix and its bias, float64 `(len(x), rows)`."""
    parts = [x @ read(matrix, at, stop).astype(np.float64).T for at, stop in _steps(rows)]
    out: Array = np.concatenate(parts, axis=1) + read(bias, 0, 1).astype(np.float64)
    return out


def _steps(rows: int) -> Iterator[tuple[int, int]]:
    return ((at, min(rows, at + STEP)) for at in range(0, rows, STEP))
