"""HQQ of 8, 4, 3, 2 and 1 bits, as transformers saves it and as hqq's own `.pt` has it.

Source: hqq `core/quantize.py` (`Quantizer.dequantize`, `HQQLinear.state_dict`), `core/bitpack.py`. A matrix is laid out
anew as (groups × columns of a group) for axis 1, and as (rows of a group × groups) for axis 0, and that is what is
packed: in the bits of one row lie rows that are a half, a quarter, … of all rows apart, the first of them highest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import CHUNK, raw_rows, values_of
from ggferry.converters.prequantized.dequantized_rows import columns_of, reshaped
from ggferry.converters.prequantized.exact_blocks import Groups, Levels
from ggferry.converters.prequantized.schemes._common import (
    DEQUANTIZE,
    Config,
    Found,
    Matrix,
    Scheme,
    of_shape,
    of_type,
    piece,
    seen_as,
)
from ggferry.converters.prequantized.schemes._packed_rows import PACKINGS, unpacked
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import InconsistentError, MissingError, UnsupportedError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

Array = Any
SETTINGS = (
    *("nbits", "group_size", "shape", "axis", "packing", "unpack_view_dtype", "view_as_float", "quant_scale"),
    *("quant_zero", "compute_dtype", "offload_meta", "encoded_state_dict", "stores_quant_config", "channel_wise"),
    *("optimize", "round_zero"),
)
"""Ends of the names of a layer's settings, which are tensors of a number or of the letters of a word."""
MOST = 1 << 40
LONGEST = 64  # letters of a setting


@dataclass(frozen=True, slots=True)
class Hqq:
    """(q − zero) × scale.

    Attributes:
        checkpoint: Where the tensors are.
        packed: The levels, packed down the rows of `laid`.
        scale: One number for each group, as a row or a column of `laid`.
        zero: The same.
        shape: Rows and columns of the matrix.
        laid: Rows and columns of the matrix as it is laid out to be packed.
        bits: Bits of a level.
        axis: 1 where a group is a row of `laid`, 0 where it is a column.
    """

    checkpoint: Checkpoint
    packed: TensorRef
    scale: TensorRef
    zero: TensorRef
    shape: tuple[int, int]
    laid: tuple[int, int]
    bits: int
    axis: int

    def __call__(self, start: int, stop: int) -> Floats:
        columns = self.shape[1]
        found = np.empty((stop - start) * columns, np.float32)
        done = 0
        for box in boxes(start * columns, stop * columns, self.laid[1]):
            values = self._box(box).astype(np.float32)
            values -= self._numbers(self.zero, box)
            values *= self._numbers(self.scale, box)
            found[done : done + values.size] = values.reshape(-1)
            done += values.size
        return found.reshape(stop - start, columns)

    def groups(self) -> Groups | None:
        """Return what the matrix consists of: levels less whole zero points, or levels and a minimum.

        None where groups are no neighbors in a row.
        """
        size, top = self.laid[1], (1 << self.bits) - 1
        if self.axis == 0 or self.shape[1] % size:
            return None
        low, high, whole = self._zero_range()
        if whole:
            return Groups(-high, top - low, size, self._whole_levels)
        return Groups(0, top, size, self._levels, minimum=True)

    def _zero_range(self) -> tuple[int, int, bool]:
        """Return the least and the greatest zero point, and whether all are whole numbers, read in pieces."""
        low, high, step = [0], [0], max(1, CHUNK // 8)
        for start in range(0, self.zero.rows, step):
            zeros = values_of(self.checkpoint, self.zero, start, min(self.zero.rows, start + step))
            if not np.array_equal(zeros, np.rint(zeros)):  # also where one is no number
                return 0, 0, False
            low.append(int(zeros.min()))
            high.append(int(zeros.max()))
        return min(low[1:]), max(high[1:]), True

    def _whole_levels(self, start: int, stop: int, every: int) -> Levels:
        levels, scales, zeros = self._parts(start, stop)
        width = self.laid[1]
        centered = levels.reshape(len(levels), -1, width).astype(np.int16) - zeros[..., None].astype(np.int16)
        return Levels(centered.reshape(levels.shape), scales[:, self._owners(every)])

    def _levels(self, start: int, stop: int, every: int) -> Levels:
        levels, scales, zeros = self._parts(start, stop)
        owners = self._owners(every)
        return Levels(levels, scales[:, owners], -(zeros * scales)[:, owners])

    def _owners(self, every: int) -> Array:
        return np.arange(0, self.shape[1], every) // self.laid[1]

    def _parts(self, start: int, stop: int) -> tuple[Array, Floats, Floats]:
        """Return the levels of rows, whose groups are neighbors, and their scales and zeros `(rows, groups)`."""
        per = self.shape[1] // self.laid[1]
        first, last = start * per, stop * per
        levels = self._box((first, last, 0, self.laid[1])).reshape(stop - start, -1)
        scales, zeros = (
            values_of(self.checkpoint, ref, first, last).reshape(stop - start, per) for ref in (self.scale, self.zero)
        )
        return levels, scales, zeros

    def _numbers(self, ref: TensorRef, box: tuple[int, int, int, int]) -> Floats:
        top, bottom, left, right = box
        if self.axis == 1:
            return values_of(self.checkpoint, ref, top, bottom)
        return values_of(self.checkpoint, columns_of(ref, left, right), 0, 1)

    def _box(self, box: tuple[int, int, int, int]) -> Array:
        """Return the levels of a part of `laid`, uint8."""
        return unpacked(self.checkpoint, self.packed, self.bits, box)


def boxes(first: int, last: int, width: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield parts of a matrix of this width, (top, bottom, left, right), that together are elements `first:last`."""
    while first < last:
        row, column = divmod(first, width)
        rows = (last - first) // width if column == 0 else 0
        right = width if rows else min(width, column + last - first)
        yield row, row + max(1, rows), column, right
        first += max(1, rows) * (right - column)


def find(checkpoint: Checkpoint, config: Config) -> Found:
    found, kinds = Found("HQQ"), set()
    for name, packed in checkpoint.tensors.items():
        if name.endswith(".W_q"):
            base = name.removesuffix("W_q")
            inside = f"{base}meta." if f"{base}meta.scale" in checkpoint.tensors else base  # of its first versions
            made = _matrix(checkpoint, inside, packed)
            groups = made.groups()
            why = "" if groups else "a group is no run of neighbors in a row, as that of a block is"
            found.matrices[name] = Matrix(f"{base}weight", made.shape, made, "F32", why, groups, f"int{made.bits}")
            found.used |= {f"{inside}{end}" for end in ("scale", "zero", *SETTINGS)}
            kinds.add(made.bits)
    found.scheme = f"HQQ of {' and '.join(map(str, sorted(kinds)))} bits"
    return found


def _matrix(checkpoint: Checkpoint, base: str, packed: TensorRef) -> Hqq:
    settings = _Settings(checkpoint, base, packed)
    packing, axis = settings.word("packing"), settings.number("axis")
    if packing not in PACKINGS or axis not in (0, 1):
        raise UnsupportedError(
            f"packing and axis of {packed.name!r}",
            path=checkpoint.path,
            found=f"{packing}, {axis}",
            expected=f"{', '.join(PACKINGS)}; 0 or 1",
            hint=DEQUANTIZE,
        )
    scaled = [end for end in ("quant_scale", "quant_zero") if settings.number(end, 0)]
    if scaled or f"{base}zero_scale" in checkpoint.tensors:
        raise UnsupportedError(
            f"{base!r}: scales or zero points that are quantized or stored together",
            path=checkpoint.path,
            found=", ".join(scaled) or "zero_scale",
            hint=DEQUANTIZE,
        )
    kind, bits, per = PACKINGS[packing]
    rows, columns = settings.pair("shape")
    size = settings.number("group_size")
    if not 0 < size < MOST or rows * columns % size:
        raise InconsistentError(f"group_size of {packed.name!r}, {rows} × {columns}", path=checkpoint.path, found=size)
    count = rows * columns // size
    laid = (count, size) if axis == 1 else (size, count)
    if settings.number("view_as_float", 0):
        of_type(checkpoint, packed, "F16", "BF16", "F32")
        packed = seen_as(packed, kind, packed.row_bytes // (4 if kind == "I32" else 1))
    of_shape(checkpoint, of_type(checkpoint, packed, kind), base, (-(-laid[0] // per), laid[1]))
    scale, zero = (
        reshaped(
            of_shape(
                checkpoint,
                of_type(checkpoint, piece(checkpoint, f"{base}{end}", packed.name), "F16", "BF16", "F32"),
                packed.name,
                (count, 1) if axis == 1 else (1, count),
                (count,),
            ),
            (count, 1) if axis == 1 else (1, count),
        )
        for end in ("scale", "zero")
    )
    return Hqq(checkpoint, packed, scale, zero, (rows, columns), laid, bits, axis)


@dataclass(frozen=True, slots=True)
class _Settings:
    """Settings of a layer: small tensors beside it, or values of the pickle."""

    checkpoint: Checkpoint
    base: str
    packed: TensorRef

    def number(self, end: str, absent: int | None = None) -> int:
        found = self._read(end, absent)
        if isinstance(found, float) and found == math.trunc(found):
            found = int(found)
        if not isinstance(found, int):
            raise self._wrong(end, found, "a whole number")
        return int(found)

    def word(self, end: str) -> str:
        found = self._read(end, None)
        if isinstance(found, list) and all(isinstance(code, int) and 32 <= code < 127 for code in found):
            return "".join(map(chr, found))
        if not isinstance(found, str):
            raise self._wrong(end, found, "a word")
        return found

    def pair(self, end: str) -> tuple[int, int]:
        found = self._read(end, None)
        if not isinstance(found, list | tuple) or len(found) != 2 or not all(self._is_size(n) for n in found):
            raise self._wrong(end, found, "rows and columns")
        return int(found[0]), int(found[1])

    def _is_size(self, number: Any) -> bool:
        return type(number) is int and 0 < number < MOST

    def _read(self, end: str, absent: Any) -> Any:
        name = f"{self.base}{end}"
        ref = self.checkpoint.tensors.get(name)
        if ref is None:
            values = self.checkpoint.header.get("values")
            found = values.get(name, absent) if isinstance(values, Mapping) else absent
            if found is None:
                raise MissingError(f"{name!r}, a setting of {self.packed.name!r}", path=self.checkpoint.path)
            return found
        of_type(self.checkpoint, ref, "U8", "I32", "I64", "F32")
        if not 0 < ref.elements <= LONGEST or len(ref.shape) > 1:
            raise self._wrong(end, list(ref.shape), f"at most {LONGEST} numbers")
        stored = raw_rows(self.checkpoint, replace(ref, shape=ref.shape or (1,)), 0, 1)
        kind = {"U8": "u1", "I32": "<i4", "I64": "<i8", "F32": "<f4"}[ref.type.name]
        numbers: list[Any] = stored.view(kind).reshape(-1).tolist()
        return numbers if ref.shape else numbers[0]

    def _wrong(self, end: str, found: Any, expected: str) -> InconsistentError:
        return InconsistentError(
            f"{end} of {self.packed.name!r}", path=self.checkpoint.path, found=found, expected=expected
        )


SCHEME = Scheme(("hqq",), find)
