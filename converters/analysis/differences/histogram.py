"""How the values of a tensor are distributed, counted in pieces of a few MiB."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ggferry.converters.analysis.differences.tensor_streams import values
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import NotFoundError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

BINS = 64


@dataclass(frozen=True, slots=True)
class Histogram:
    """The values of a tensor in numbers; what is not finite counts for nothing but `not_finite`.

    Attributes:
        name: The tensor.
        type: Its block type.
        shape: Elements along each axis, outermost first.
        elements: How many values it has.
        not_finite: How many of them are NaN or infinite.
        zeros: How many are zero.
        smallest: The smallest value; None where none is finite.
        largest: The largest one.
        mean: Their mean.
        deviation: Their standard deviation.
        counts: How many lie in each of `BINS` equal parts from the smallest to the largest.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    elements: int
    not_finite: int = 0
    zeros: int = 0
    smallest: float | None = None
    largest: float | None = None
    mean: float | None = None
    deviation: float | None = None
    counts: tuple[int, ...] = ()


def histogram(checkpoint: Checkpoint, name: str) -> Histogram:
    """Return how the values of a tensor are distributed; they are read twice. Raises NotFoundError, as reading does."""
    ref = checkpoint.tensors.get(name)
    if ref is None:
        raise NotFoundError("the model has no such tensor", path=checkpoint.path, found=name)

    def finite() -> Iterator[np.ndarray]:
        for piece in values(checkpoint, ref):
            yield piece[np.isfinite(piece)].astype(np.float64)

    found, zeros, low, high, total, squares = 0, 0, math.inf, -math.inf, 0.0, 0.0
    for piece in finite():
        if piece.size:
            found, zeros = found + piece.size, zeros + int(piece.size - np.count_nonzero(piece))
            low, high = min(low, float(piece.min())), max(high, float(piece.max()))
            total += float(piece.sum())
    base = Histogram(ref.name, ref.type.name, tuple(ref.shape), ref.elements, ref.elements - found, zeros)
    if not found:
        return base
    mean, counts = total / found, np.zeros(BINS, np.int64)
    for piece in finite():
        squares += float(np.square(piece - mean).sum())
        width = high - low
        place = (piece - low) / width * BINS if width else np.zeros(piece.size)
        counts += np.bincount(np.minimum(place.astype(np.int64), BINS - 1), minlength=BINS)
    return Histogram(
        base.name,
        base.type,
        base.shape,
        base.elements,
        base.not_finite,
        base.zeros,
        low,
        high,
        mean,
        math.sqrt(squares / found),
        tuple(map(int, counts)),
    )
