"""Choose which parts of tensors two readers must read alike, and digest them as ours reads them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.tensor_read import read_span_rows
from ggferry.quant.endian import swap

UNITS = 64
"""Elements, or blocks, at each end of a row that are compared."""
MANY = 8192
"""Pieces of tensors in a model beyond which fewer rows of each are compared."""

Sample = tuple[tuple[int, ...], int, int]
"""The index of a row along all axes but the last, and the range of its elements, or blocks."""


class Piece(NamedTuple):
    """A tensor, or the part of one that a file holds."""

    ref: TensorRef
    number: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis, outermost first."""
        return self.ref.spans[self.number].shape


def pieces_of(checkpoint: Checkpoint) -> list[Piece]:
    """Return all pieces of tensors, also of those that are dropped."""
    refs = (*checkpoint.tensors.values(), *(dropped.ref for dropped in checkpoint.dropped))
    return [Piece(ref, number) for ref in refs if ref.elements for number in range(len(ref.spans))]


def samples(shape: Sequence[int], elements: int, *, few: bool = False) -> Iterator[Sample]:
    """Yield the samples of a piece of this shape, whose type has blocks of so many elements."""
    *outer, columns = shape or (1,)
    count, units = math.prod(outer), columns // elements
    chosen = {0, count - 1} if few else {0, count // 3, count * 5 // 7, count - 1}
    for row in sorted(chosen):
        index = []
        for size in reversed(outer):
            row, place = divmod(row, size)
            index.append(place)
        for first, last in sorted({(0, min(units, UNITS)), (max(0, units - UNITS), units)}):
            yield tuple(reversed(index)), first, last


def digest(checkpoint: Checkpoint, piece: Piece, chosen: Sequence[Sample]) -> str:
    """Return the digest of a piece's samples, as our reader reads them.

    Raises what `tensor_read.read_span_rows` raises.
    """
    ref, shape = piece.ref, piece.shape
    found, block, kept, row = hashlib.blake2b(digest_size=16), ref.type.block_bytes, -1, b""
    for index, first, last in chosen:
        number = 0
        for place, size in zip(index, shape[:-1], strict=True):
            number = number * size + place
        if number != kept:
            data = read_span_rows(checkpoint, ref, piece.number, number, number + 1)
            kept, row = number, (swap(ref.type, data) if _swapped(checkpoint, ref) else data).tobytes()
        found.update(row[first * block : last * block])
    return found.hexdigest()


def _swapped(checkpoint: Checkpoint, ref: TensorRef) -> bool:
    """Return whether the library gives the numbers in this machine's order: torch does, gguf keeps the file's."""
    return ref.big_endian and checkpoint.container != "gguf"


_OF_A_MODULE = re.compile(r"sentence_transformers_dense\.\d+\.")


def name_in_file(ref: TensorRef) -> str:
    """Return what a tensor is called in its own file, where a model has several (`checkpoint_folder.modules`)."""
    found = _OF_A_MODULE.match(ref.name)
    return ref.name[found.end() :] if found else ref.name


def some_matrices(refs: Sequence[TensorRef]) -> list[TensorRef]:
    """Return the first, a middle and the last of the matrices whose names differ in numbers only."""
    kinds: dict[tuple[str, tuple[int, ...]], list[TensorRef]] = {}
    for ref in refs:
        kinds.setdefault((re.sub(r"\d+", "#", ref.name), ref.shape), []).append(ref)
    return [like[at] for like in kinds.values() for at in sorted({0, len(like) // 2, len(like) - 1})]
