"""Compute rows of a base's tensor with adapters merged into it: W + scale · B·A, or DoRA's magnitudes of that.

Products are summed in float64, one rank after the other, so that every row has the same bits whichever rows are asked
for with it and on whichever machine; the sum with the base is rounded to float32 once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from ggferry.converters.model_graph.graph import Node
from ggferry.converters.model_graph.rows import CHUNK, laid_out_values, values_of
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import OutOfRangeError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

Array = Any
_BLOCK = 1 << 17
"""Elements of a product that are summed at once: what the cache of a core holds."""


def finite(checkpoint: Checkpoint, ref: TensorRef, found: Array) -> Array:
    """Return numbers of an adapter. Raises OutOfRangeError where one is NaN or infinite."""
    if not np.isfinite(found).all():
        raise OutOfRangeError(
            f"{ref.name!r} of the adapter holds NaN or infinity",
            path=checkpoint.path,
            offset=ref.spans[0].offset,
            found=float(found[~np.isfinite(found)].flat[0]),
            expected="finite numbers",
        )
    return found


def summed(left: Array, right: Array) -> Array:
    """Return left · right, one rank after the other."""
    total = np.zeros((left.shape[0], right.shape[1]))
    step = max(1, _BLOCK // right.shape[1])
    for first in range(0, left.shape[0], step):
        part, rows = total[first : first + step], left[first : first + step]
        term = np.empty_like(part)
        for rank in range(right.shape[0]):
            np.multiply(rows[:, rank : rank + 1], right[rank], out=term)
            part += term
    return total


@dataclass(frozen=True, slots=True)
class Factor:
    """One of the two matrices of a product, in the order of the merged tensor.

    Attributes:
        checkpoint: The adapter.
        node: The matrix with its layout.
    """

    checkpoint: Checkpoint
    node: Node

    def rows(self, start: int, stop: int) -> Array:
        """Return rows as float64. Raises OutOfRangeError for numbers that are not finite."""
        found = laid_out_values(self.checkpoint, self.node, start, stop).reshape(stop - start, -1)
        return finite(self.checkpoint, self.node.inputs[0], found).astype(np.float64)

    def all(self) -> Array:
        """Return all rows."""
        return self.rows(0, self.node.shape[0])


@dataclass(frozen=True, slots=True)
class Product:
    """`scale` · left · right.

    Attributes:
        left: `(rows, r)`.
        right: `(r, columns)`.
        scale: What the product is multiplied by.
        magnitude: DoRA's magnitudes, a column for rows of the tensor, or a row for its columns; None without DoRA.
        of_columns: Whether the magnitudes belong to columns.
    """

    left: Factor
    right: Factor
    scale: float
    magnitude: Factor | None = None
    of_columns: bool = False

    def delta(self, start: int, stop: int) -> Array:
        """Return rows of the change, float64."""
        total = summed(self.left.rows(start, stop), self.right.all())
        total *= self.scale
        return total


@dataclass(frozen=True, slots=True)
class Bias:
    """`scale` · a vector, which is added.

    Attributes:
        vector: One row.
        scale: What it is multiplied by.
    """

    vector: Factor
    scale: float


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of single tokens, which take the place of the base's.

    Attributes:
        rows: The adapter's rows, one for each token.
        tokens: Their tokens.
    """

    rows: Factor
    tokens: tuple[int, ...]

    def put(self, found: Array, start: int) -> None:
        """Put into rows of the tensor from `start` on, float64, those of the tokens among them."""
        for number, token in enumerate(self.tokens):
            if start <= token < start + len(found):
                found[token - start] = self.rows.rows(number, number + 1)[0]


class Delta(Protocol):
    """A change that is computed row by row."""

    def delta(self, start: int, stop: int) -> Array:
        """Return rows of the change, float64."""
        ...


Change = Product | Bias | TokenRows | Delta
Rows = Callable[[int, int], Any]


@dataclass(frozen=True, slots=True)
class Merged:
    """Rows of a tensor after the changes of several adapters, in order.

    Attributes:
        base: Rows of the base's tensor, float32.
        count: Number of its rows.
        columns: Elements of a row.
        changes: What is done to it.
    """

    base: Rows
    count: int
    columns: int
    changes: tuple[Change, ...]
    norms: dict[int, Array] = field(default_factory=dict)
    """Norms of all columns, by the number of the change: they need one pass over all rows."""
    lock: Any = field(default_factory=threading.Lock)

    def __call__(self, start: int, stop: int) -> Floats:
        base = self.base(start, stop).astype(np.float64)
        found: Array = base
        for number, change in enumerate(self.changes):
            if isinstance(change, Bias):
                found = found + change.vector.rows(0, 1) * change.scale
            elif isinstance(change, TokenRows):
                found = found.copy()  # DoRA's norms are those of the base
                change.put(found, start)
            elif isinstance(change, Product) and change.magnitude is not None:
                found = self._dora(number, change, base, found, start, stop)
            else:
                found = found + change.delta(start, stop)
        with np.errstate(over="ignore"):  # values that are not finite are found by whoever reads them
            merged: Floats = found.astype(np.float32)
        return merged

    def _dora(self, number: int, change: Product, base: Array, found: Array, start: int, stop: int) -> Array:
        """Return m · (W + ΔW) / ‖W₀ + ΔW‖, W₀ being the base's own values, as PEFT has it."""
        assert change.magnitude is not None
        delta = change.delta(start, stop)
        if change.of_columns:
            return (found + delta) * (change.magnitude.all() / self._norms(number, change))
        norms = np.sqrt(np.square(base + delta).sum(axis=1, keepdims=True))
        return (found + delta) * (change.magnitude.rows(start, stop) / norms)

    def _norms(self, number: int, change: Product) -> Array:
        with self.lock:
            if number not in self.norms:
                total, step = np.zeros((1, self.columns)), max(1, CHUNK // (8 * self.columns))
                for start in range(0, self.count, step):
                    stop = min(self.count, start + step)
                    total += np.square(self.base(start, stop) + change.delta(start, stop)).sum(axis=0)
                self.norms[number] = np.sqrt(total)
            return self.norms[number]


@dataclass(frozen=True, slots=True)
class LaidOut:
    """Rows of an adapter's own tensor in the order of a GGUF model.

    Attributes:
        checkpoint: The adapter.
        node: The tensor with its layout.
    """

    checkpoint: Checkpoint
    node: Node

    def __call__(self, start: int, stop: int) -> Floats:
        return laid_out_values(self.checkpoint, self.node, start, stop).reshape(stop - start, -1)


@dataclass(frozen=True, slots=True)
class Stored:
    """Rows of a tensor as its checkpoint holds them.

    Attributes:
        checkpoint: Where it is.
        ref: The tensor.
    """

    checkpoint: Checkpoint
    ref: TensorRef

    def __call__(self, start: int, stop: int) -> Floats:
        return values_of(self.checkpoint, self.ref, start, stop)
