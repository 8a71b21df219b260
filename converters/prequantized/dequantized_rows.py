"""Compute rows of weights that a checkpoint keeps quantized, at the time they are read.

A quantized matrix is several tensors (packed integers, scales, zero points). `Dequantized` presents all such matrices
of a model as one virtual file of rows, so everything that reads bytes reads them like any other. Arithmetic is float32,
in the order of the schemes' own: (q − zero) × scale.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import CHUNK, raw_rows, values_of
from ggferry.converters.prequantized.exact_blocks import (
    ExactBlocks,
    Groups,
    Levels,
    ScaledBlocks,
    is_shuffled,
    run_length,
)
from ggferry.formats.checkpoint import Checkpoint, Derivation, Span, TensorRef
from ggferry.formats.errors import OutOfRangeError, TruncatedError
from ggferry.quant.codec import block_type
from ggferry.quant.codecs.packed import WORD_BITS, unit, unpack, unpack_down, unpack_stream
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

Array = Any
Rows = Callable[[int, int], "Floats | Bytes"]
"""Computes rows `start:stop` of a matrix or a stack of them: float32 `(stop - start, columns)`, or uint8 blocks."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Numbers (scales or zero points), each of which holds for a patch of a matrix.

    Attributes:
        ref: The tensor that holds the numbers.
        tall: Rows of a patch; 0 for all rows.
        wide: Columns of a patch; 0 for all columns.
        bits: Bits of each number where words hold those of consecutive rows, signed by an offset; 0 where each number
            is an element.
        dense: Whether packed numbers continue across the ends of words.
        run: Rows after which patches begin anew, as the last one before may be lower; 0 for never.
    """

    ref: TensorRef
    tall: int = 0
    wide: int = 0
    bits: int = 0
    dense: bool = False
    run: int = 0

    def range(self, checkpoint: Checkpoint, rows: int) -> tuple[int, int]:
        """Return the least and the greatest of integers, for a matrix of so many rows; they are read in pieces."""
        height = -(-rows // (self.tall or rows)) if self.bits else self.ref.rows
        step = max(1, CHUNK // (4 * self.ref.columns))
        lows, highs = [], []
        for start in range(0, height, step):
            stop = min(height, start + step)
            if self.bits:
                found = self._unpacked(checkpoint, np.arange(start, stop))
            else:
                found = values_of(checkpoint, self.ref, start, stop)
            lows.append(found.min())
            highs.append(found.max())
        return int(min(lows)), int(max(highs))

    def _patches(self, rows: Array) -> Array:
        """Return the row of patches that each row belongs to."""
        if not self.tall:
            return np.zeros_like(rows)
        if not self.run:
            return rows // self.tall
        return rows // self.run * -(-self.run // self.tall) + rows % self.run // self.tall

    def _unpacked(self, checkpoint: Checkpoint, rows: Array) -> Floats:
        """Return the numbers at these ascending places along the first axis, of those that words hold."""
        low, high = int(rows[0]), int(rows[-1]) + 1
        per, size = unit(self.bits) if self.dense else (WORD_BITS // self.bits, 1)
        last = min(self.ref.rows, -(-high // per) * size)
        words = raw_rows(checkpoint, self.ref, low // per * size, last).view("<u4")
        if self.dense:
            columns = np.ascontiguousarray(words.T).view(np.uint8)
            stored = unpack_stream(columns, self.bits, len(words) * WORD_BITS // self.bits).T
        else:
            stored = unpack_down(words, self.bits)
        found: Floats = stored[rows - low // per * per].astype(np.float32)
        found -= np.float32(1 << self.bits - 1)
        return found

    def over(self, checkpoint: Checkpoint, start: int, stop: int, columns: Array) -> Floats:
        """Return the numbers of rows `start:stop`, spread over the columns of the matrix.

        Args:
            checkpoint: Where `ref` is.
            start: First row.
            stop: Row after the last.
            columns: The group of each column, `(columns,)`.

        Returns float32 `(rows, columns)`, with 1 in place of a size along which the numbers do not change.
        """
        ref = self.ref
        if ref.elements == 1:
            return values_of(checkpoint, ref, 0, 1).reshape(1, 1)
        if len(ref.shape) == 1:
            column: Floats = values_of(checkpoint, ref, 0, 1).reshape(-1, 1)[start:stop]
            return column
        rows = self._patches(np.arange(start, stop))
        low, high = int(rows[0]), int(rows[-1]) + 1
        if self.bits:
            found = self._unpacked(checkpoint, rows)
        else:
            found = values_of(checkpoint, ref, low, high)[rows - low]
        spread: Floats = found if found.shape[1] == 1 else found[:, columns]
        return spread


@dataclass(frozen=True, slots=True)
class Scaled:
    """A matrix of FP8 or of integers, with its scales and zero points.

    Attributes:
        checkpoint: Where its tensors are.
        weight: The values as they are, or packed along the rows into words.
        columns: Columns of the matrix.
        scale: What the values are multiplied by.
        zero: What is subtracted before; None for nothing.
        bits: Bits of a packed value, signed by an offset; 0 where the values are not packed.
    """

    checkpoint: Checkpoint
    weight: TensorRef
    columns: int
    scale: Grid
    zero: Grid | None = None
    bits: int = 0
    order: TensorRef | None = None
    """The group of each column, `(columns,)` (weight_g_idx); if None, or if it holds −1, neighbors form the groups."""
    dense: bool = False
    """Whether packed values continue across the ends of words."""
    stored: int = 8
    """Bits that values which are not packed have, of the eight of an int8."""

    def __call__(self, start: int, stop: int) -> Floats:
        values, groups = self._values(start, stop), self._groups()
        if self.zero is not None:
            values -= self.zero.over(self.checkpoint, start, stop, groups)
        values *= self.scale.over(self.checkpoint, start, stop, groups)
        return values

    def _values(self, start: int, stop: int) -> Floats:
        """Return the stored numbers, as float32."""
        if self.bits:
            packed = raw_rows(self.checkpoint, self.weight, start, stop)
            found = (
                unpack_stream(packed, self.bits, self.columns)
                if self.dense
                else unpack(packed.view("<u4"), self.bits)[:, : self.columns]
            )
            values: Floats = found.astype(np.float32)
            values -= np.float32(1 << self.bits - 1)
            return values
        return values_of(self.checkpoint, self.weight, start, stop)

    def groups(self) -> Groups | None:
        """Return what the matrix consists of; None where its numbers or zero points are no integers."""
        if not self.bits and self.weight.type.name != "I8":
            return None
        if self.zero is not None and self.zero.ref.type.name not in ("I8", "I32"):
            return None
        least = -(1 << (self.bits or self.stored) - 1)
        low, high = (0, 0) if self.zero is None else self.zero.range(self.checkpoint, self.weight.rows)
        columns = self._groups()
        size, ordered = run_length(columns), is_shuffled(columns)
        return Groups(least - high, -1 - least - low, size, self._levels, ordered=ordered)

    def _levels(self, start: int, stop: int, every: int) -> Levels:
        values, groups = self._values(start, stop), self._groups()
        if self.zero is not None:
            values -= self.zero.over(self.checkpoint, start, stop, groups)
        scales = self.scale.over(self.checkpoint, start, stop, groups[::every])
        return Levels(values.astype(np.int16), scales)

    def _groups(self) -> Array:
        if self.order is not None:
            found = indices(self.checkpoint, self.order)
            if not (found == -1).any():
                return in_range(self.checkpoint, self.order, found, self.scale.ref.columns)
        return np.arange(self.columns) // (self.scale.wide or self.columns)


def columns_of(ref: TensorRef, start: int, stop: int) -> TensorRef:
    """Return columns `start:stop` of a matrix as a tensor of its own."""
    (span,) = ref.spans
    strides = span.strides or (ref.columns, 1)
    shape = (ref.rows, stop - start)
    offset = span.offset + start * strides[1] * ref.type.block_bytes
    return TensorRef(ref.name, ref.type, shape, (Span(span.file, offset, shape, strides),), 0, ref.big_endian)


def reshaped(ref: TensorRef, shape: tuple[int, ...]) -> TensorRef:
    """Return the same elements in another shape; the tensor must be one whole piece."""
    (span,) = ref.spans
    return replace(ref, shape=shape, spans=(replace(span, shape=shape),))


def raw_columns(checkpoint: Checkpoint, ref: TensorRef, start: int, stop: int) -> Array:
    return raw_rows(checkpoint, columns_of(ref, start, stop), 0, ref.rows)


def indices(checkpoint: Checkpoint, ref: TensorRef) -> Array:
    """Read a vector of I32 or I64 as int64."""
    size = ref.type.block_bytes
    return raw_rows(checkpoint, ref, 0, 1).view(f"<i{size}").reshape(-1).astype(np.int64)


def in_range(checkpoint: Checkpoint, ref: TensorRef, found: Array, groups: int) -> Array:
    """Return `found`. Raises OutOfRangeError when an index lies outside `groups`."""
    bad = np.flatnonzero((found < 0) | (found >= groups))
    if len(bad):
        span = ref.spans[0]
        raise OutOfRangeError(
            f"{ref.name!r}: the group of column {bad[0]}",
            path=checkpoint.files[span.file].path,
            offset=span.offset,
            found=int(found[bad[0]]),
            expected=f"0 to {groups - 1}",
        )
    return found


@dataclass(frozen=True, slots=True)
class Held:
    """Rows that are held: a few numbers."""

    values: Floats

    def __call__(self, start: int, stop: int) -> Floats:
        return self.values[start:stop]


class Dequantized:
    """Matrices computed on demand: a `formats.files.sources.Source` of their rows, one matrix after the other."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self._starts: list[int] = []
        self._matrices: list[tuple[Rows, int, int]] = []
        self._groups: dict[int, tuple[TensorRef, Groups | ScaledBlocks]] = {}
        """What a matrix consists of that GGUF has blocks for, by the offset of its values."""
        self._carried: dict[tuple[int, str], TensorRef] = {}
        """Matrices as blocks, by the offset of their values and the type."""

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: Rows,
        file: int,
        derived: Derivation,
        kind: str = "F32",
        groups: Groups | ScaledBlocks | None = None,
    ) -> TensorRef:
        """Add a matrix, or a stack of them, and return it as a tensor.

        Args:
            name: Name of the tensor.
            shape: Elements along each axis, outermost first.
            rows: Computes its rows.
            file: The number that this source will have among the checkpoint's files.
            derived: How its values are computed, in words and types.
            kind: What `rows` returns: 'F32' for float32, else the block type of its bytes.
            groups: What it consists of, where `derived` names types of blocks that hold it.
        """
        ref = TensorRef(name, block_type(kind), shape, (Span(file, self.size, shape),), derived=derived)
        if groups is not None and derived.exact:
            self._groups[self.size] = ref, groups
        self._matrices.append((rows, ref.rows, ref.row_bytes))
        self._starts.append(self.size)
        self.size += ref.nbytes
        return ref

    def as_blocks(self, ref: TensorRef, kind: str) -> TensorRef | None:
        """Return a matrix of values, whole and in its rows' order, as one of blocks that hold them exactly.

        None where `ref` is no such matrix, or blocks of `kind` do not hold it.
        """
        span, derived = ref.spans[0], ref.derived
        if not self.holds(ref, kind) or derived is None:
            return None
        whole, groups = self._groups[span.offset]
        key = span.offset, kind
        if key not in self._carried:
            rows: Rows
            if isinstance(groups, ScaledBlocks):
                rows = groups.rows
            else:
                rows = ExactBlocks(ref.name, self.path, groups, kind)
            self._carried[key] = self.add(whole.name, whole.shape, rows, span.file, derived, kind)
        return replace(self._carried[key], name=ref.name, shape=ref.shape)

    def holds(self, ref: TensorRef, kind: str) -> bool:
        """Return whether `as_blocks` has blocks of a type for a matrix of values."""
        (span, *more), derived = ref.spans, ref.derived
        if span.offset not in self._groups or derived is None or kind not in derived.exact:
            return False
        whole, _ = self._groups[span.offset]
        return not more and not span.strides and (ref.elements, ref.columns) == (whole.elements, whole.columns)

    def own_scale(self, ref: TensorRef) -> ScaledBlocks | None:
        """Return the blocks and the scale of a matrix of values that has one of its own; None where it has none."""
        _, groups = self._groups.get(ref.spans[0].offset, (None, None))
        return groups if isinstance(groups, ScaledBlocks) else None

    def numbers(self, name: str, values: Floats, file: int, derived: Derivation) -> TensorRef:
        """Add a vector whose values are held, and return it as a tensor."""
        return self.add(name, values.shape, Held(values.reshape(1, -1)), file, derived)

    def read(self, offset: int, size: int) -> bytes:
        out = bytearray(size)
        self.read_into(offset, memoryview(out))
        return bytes(out)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if offset < 0 or offset + len(buffer) > self.size:
            raise TruncatedError(f"{len(buffer)} bytes wanted of {self.size}", path=self.path, offset=offset)
        target, done = np.frombuffer(buffer, np.uint8), 0
        while done < len(target):
            at = bisect_right(self._starts, offset + done) - 1
            rows, count, row_bytes = self._matrices[at]
            within = offset + done - self._starts[at]
            first = within // row_bytes
            last = min(count, -(-(within + len(target) - done) // row_bytes), first + max(1, CHUNK // row_bytes))
            with np.errstate(all="ignore"):  # values that are not finite are found by whoever reads them
                made = rows(first, last)
            found = (made if made.dtype == np.uint8 else made.astype("<f4", copy=False)).reshape(-1).view(np.uint8)
            found = found[within - first * row_bytes :][: len(target) - done]
            target[done : done + len(found)] = found
            done += len(found)

    def close(self) -> None:
        """Do nothing: no file is open."""
