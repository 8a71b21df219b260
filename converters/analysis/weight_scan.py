"""Damage that can be seen in weights without knowing what they should be: NaN, infinities, zeros, constants."""

from __future__ import annotations

from collections.abc import Iterator

from ggferry.converters.analysis.differences.tensor_streams import decoded, in_short_rows, pieces
from ggferry.converters.write.watch_weights import suspicious
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.quant.types import BlockError
from ggferry.support.heavy import np
from ggferry.support.progress import Progress
from ggferry.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Odd:
    """A tensor with odd values.

    Attributes:
        name: The tensor.
        not_finite: Index of its first NaN or infinity; None where all are finite.
        constant: The one value that all elements have, for a tensor of two axes or more; None where they differ.
    """

    name: str
    not_finite: int | None = None
    constant: float | None = None


def odd_tensors(checkpoint: Checkpoint, progress: Progress) -> Iterator[Odd]:
    """Yield the tensors with odd values. Raises what reading raises."""
    for ref in checkpoint.tensors.values():
        found = _odd(checkpoint, ref, progress)
        if found is not None:
            yield found


def _odd(checkpoint: Checkpoint, ref: TensorRef, progress: Progress) -> Odd | None:
    """Look at one tensor. Pieces are decoded only while all values may still be one, or one may not be finite."""
    at, only = 0, True
    columns = in_short_rows(ref).columns
    value: float | None = None
    for piece in pieces(checkpoint, ref):
        progress(piece.nbytes)
        flat = piece.reshape(-1)
        maybe_bad = ref.type.whole_rows or suspicious(ref.type, flat)
        if maybe_bad or only:
            try:
                found = decoded(ref, piece)
            except BlockError:
                return Odd(ref.name, not_finite=at)
            if maybe_bad and not np.isfinite(found).all():
                return Odd(ref.name, not_finite=at + int(np.flatnonzero(~np.isfinite(found))[0]))
            value = float(found[0]) if value is None else value
            only = only and bool((found == np.float32(value)).all())
        at += len(piece) * columns
    matrix = len([size for size in ref.shape if size > 1]) > 1
    return Odd(ref.name, constant=value) if only and matrix and value is not None else None
