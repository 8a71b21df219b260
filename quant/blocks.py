"""Blocks as arrays: the only place where the field table of a block type meets numpy.

A codec family states how the fields of a block become values (`Unpack`), for any number of blocks at once. The
functions here cut rows into tiles that stay in the cache and return the fields as views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from ggferry.quant.types import BlockError, BlockType, Field
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

Array = Any
Parts = dict[str, Array]
"""Field name → array `(rows, blocks, count)` of the field's little-endian dtype (`bf16`: its bits as uint16)."""

Unpack = Callable[[Parts, Array], None]
"""Fills float32 `(rows, blocks, elements)` from the fields."""

Tile = tuple[slice, slice]

TILE_ELEMENTS = 1 << 18
"""256 KiB of float32: with its scratch arrays a tile stays in a core's second-level cache."""


def dtype_of(kind: BlockType) -> Any:
    """Return the structured little-endian dtype of one block."""
    return _members(kind.fields)


@cache
def _members(fields: tuple[Field, ...]) -> Any:
    return np.dtype([(f.name, _item(f.dtype), (f.count,)) for f in fields])


def _item(dtype: str) -> str:
    return "<" + ("u2" if dtype == "bf16" else dtype)


def check_rows(kind: BlockType, rows: Bytes, columns: int) -> None:
    """Raise BlockError unless `rows` is uint8 `(R, row_bytes(columns))`."""
    found = (rows.dtype.str, rows.ndim, rows.shape[-1] if rows.ndim else 0)
    if found != ("|u1", 2, kind.row_bytes(columns)):
        expected = f"uint8 (R, {kind.row_bytes(columns)})"
        raise BlockError(f"{kind.name} rows of {columns} elements are {expected}, not {rows.dtype} {rows.shape}")


def check_values(kind: BlockType, values: Floats) -> None:
    """Raise BlockError unless `values` is float32 `(R, columns)` with whole blocks."""
    if values.dtype != np.float32 or values.ndim != 2:
        raise BlockError(f"{kind.name} is encoded from float32 (R, columns), not {values.dtype} {values.shape}")
    kind.row_bytes(values.shape[1])


class ValueRefused(BlockError):
    """A value that cannot be encoded.

    `row` and `column` count from the first of the values given to the encoder; `why` is the sentence without the place.
    """

    def __init__(self, row: int, column: int, why: str) -> None:
        super().__init__(f"row {row}, column {column}: {why}")
        self.row, self.column, self.why = row, column, why


def refuse_nonfinite(kind: BlockType, values: Floats) -> None:
    """Raise ValueRefused for the first NaN or infinity of float32 `(R, columns)`."""
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        raise ValueRefused(row, column, f"{values[row, column]!s} cannot be stored as {kind.name}")


def as_blocks(kind: BlockType, rows: Bytes) -> Parts:
    """Return the fields of `rows`, uint8 `(R, row bytes)`, C-contiguous, as views of the same memory.

    The views are writable if `rows` is. Where rows may be cut anywhere, they come as one long row, `(1, R × blocks,
    count)`, because blocks do not depend on row borders; of interleaved rows, each group is one. Members that come once
    a row are `(R, 1, count)`.
    """
    if not kind.whole_rows:
        blocks = rows.reshape(1, rows.size // kind.block_bytes, kind.block_bytes).view(dtype_of(kind))[..., 0]
        return {field.name: blocks[field.name] for field in kind.fields}
    if not kind.planar:
        return _headed(kind, rows)
    count, parts, start = rows.shape[1] // kind.block_bytes, {}, 0
    for field in kind.fields:
        plane = rows[:, start : start + count * field.nbytes].view(_item(field.dtype))
        parts[field.name] = plane.reshape(len(rows), count, field.count)
        start += count * field.nbytes
    return parts


def _headed(kind: BlockType, rows: Bytes) -> Parts:
    """Return what `as_blocks` does of rows, or groups of rows, that have members before their blocks."""
    groups = rows.reshape(len(rows) // kind.interleaved, kind.interleaved * rows.shape[1])
    size, head = kind.interleaved * kind.block_bytes, kind.interleaved * kind.header_bytes
    strides, count = (groups.strides[0], size), (groups.shape[1] - head) // size
    parts: Parts = {}
    for fields, start, shape in ((kind.header, 0, (len(groups), 1)), (kind.fields, head, (len(groups), count))):
        if fields:
            whole = np.ndarray(shape, _members(fields), groups, start if groups.size else 0, strides)
            parts |= {field.name: whole[field.name] for field in fields}
    return parts


def tiles(kind: BlockType, count: int, columns: int) -> Iterator[Tile]:
    """Yield index pairs of about TILE_ELEMENTS values each that cover what `as_blocks` returns for `count` rows."""
    blocks = columns // kind.elements
    if not kind.whole_rows:
        count, blocks = 1, count * blocks
    width = min(max(1, TILE_ELEMENTS // kind.elements), max(1, blocks))
    height = max(1, TILE_ELEMENTS // (width * kind.elements))
    for row in range(0, count, height):
        for block in range(0, blocks, width):
            yield slice(row, row + height), slice(block, block + width)


def cut(parts: Parts, tile: Tile) -> Parts:
    """Return the fields of the blocks of one tile, with those of their rows."""
    return {name: array[tile if array.shape[1] > 1 else tile[0]] for name, array in parts.items()}


def by_block(kind: BlockType, values: Floats) -> Array:
    """Return `(R, columns)` values in the shape of `as_blocks`.

    That is `(1, R × blocks, elements)` or `(R, blocks, elements)`.
    """
    rows = len(values) if kind.whole_rows else 1
    return values.reshape(rows, values.size // (kind.elements * rows) if rows else 0, kind.elements)


@dataclass(frozen=True, slots=True)
class Decoder:
    """A `Codec.decode` that unpacks tile by tile: the reference that compiled decoders are held against.

    Attributes:
        kind: The type.
        unpack: How the fields of its blocks become values.
    """

    kind: BlockType
    unpack: Unpack

    def __call__(self, rows: Bytes, columns: int) -> Floats:
        """Return the values of uint8 `(R, row bytes)` as float32 `(R, columns)`."""
        check_rows(self.kind, rows, columns)
        values = np.empty((len(rows), columns), np.float32)
        parts, target = as_blocks(self.kind, np.ascontiguousarray(rows)), by_block(self.kind, values)
        with np.errstate(all="ignore"):  # infinite and NaN scales decode to what they are
            for tile in tiles(self.kind, len(rows), columns):
                self.unpack(cut(parts, tile), target[tile])
        return values


def decoder(kind: BlockType, unpack: Unpack) -> Callable[[Bytes, int], Floats]:
    """Return the decoder of a type whose blocks `unpack` makes values of."""
    return Decoder(kind, unpack)


def as_items(array: Array) -> Array:
    """Return `(…, n)` as `(…)`, with items as large as n elements.

    numpy copies such an item at once; a loop of length n would cost several times as much.
    """
    return array.view(f"V{array.itemsize * array.shape[-1]}")[..., 0]


def words_of(packed: Array) -> Array:
    """Return the bytes of uint8 `(…, n)` as uint64 `(words,)`, for arithmetic on eight bytes at a time.

    They are copied and padded.
    """
    items = as_items(packed)
    words = np.empty(-(-packed.size // 8), np.uint64)
    words.view(np.uint8)[: packed.size].view(items.dtype).reshape(items.shape)[...] = items
    return words


def bytes_of(words: Array, shape: tuple[int, ...]) -> Array:
    """Return a view of uint64 words, which hold at least that many bytes, as uint8 of `shape`."""
    return words.view(np.uint8)[: math.prod(shape)].reshape(shape)


def every_byte(value: int) -> Any:
    """Return the uint64 in which every byte is `value`."""
    return np.uint64(value * 0x0101010101010101)


def planes(packed: Array, width: int, at: int = 0) -> Array:
    """Unpack `width`-bit fields: uint8 `(…, n)` → `(…, 8 / width, n)`.

    Plane k holds, for every byte, the bits from `k·width` on, moved to bit `at`.
    """
    words, mask = words_of(packed), every_byte((1 << width) - 1 << at)
    out = np.empty((*packed.shape[:-1], 8 // width, packed.shape[-1]), np.uint8)
    items = as_items(out)
    for plane in range(8 // width):
        down = plane * width - at
        bits = words >> np.uint64(down) if down >= 0 else words << np.uint64(-down)
        bits &= mask
        items[..., plane] = as_items(bytes_of(bits, packed.shape))
    return out


def split_nibbles(packed: Array) -> Array:
    """Unpack nibbles: uint8 `(…, n)` → `(…, 2n)`, all low ones, then all high ones."""
    return planes(packed, 4).reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def translate(codes: Array, levels: bytes) -> Array:
    """Return int8 `levels[code]` for each of uint8 `codes`, in the same shape; `levels` holds 256 signed bytes."""
    return np.frombuffer(codes.tobytes().translate(levels), np.int8).reshape(codes.shape)


@dataclass(frozen=True, slots=True)
class Affine:
    """An Unpack for value = level × scale, or level × scale + shift, in that order and in float32.

    Attributes:
        levels: Gives 8-bit integers `(R, B, …)` in the order of the elements.
        coefficients: Gives the scales and, where there are any, the shifts: float32 `(R, B, groups)`, each for a group
            of elements / groups neighbors.
    """

    levels: Callable[[Parts], Array]
    coefficients: Callable[[Parts], tuple[Array, ...]]

    def __call__(self, parts: Parts, out: Array) -> None:
        """Fill float32 `(R, B, elements)`."""
        np.copyto(out, self.levels(parts).reshape(out.shape))
        scale, *shift = self.coefficients(parts)
        out *= spread(scale, out.shape[-1])
        if shift:
            out += spread(shift[0], out.shape[-1])


def affine(levels: Callable[[Parts], Array], coefficients: Callable[[Parts], tuple[Array, ...]]) -> Unpack:
    """Return the `Affine` of these levels and coefficients."""
    return Affine(levels, coefficients)


def spread(groups: Array, elements: int) -> Array:
    """Repeat each value: `(…, groups)` → `(…, elements)`.

    This copy and one long loop take half the time of broadcasting, whose loops are as short as a group (measured with
    numpy 2.4, groups of 32).
    """
    return groups.repeat(elements // groups.shape[-1], axis=-1)


def floats(*fields: str) -> Callable[[Parts], tuple[Array, ...]]:
    """Return a function that gives the float fields of these names as float32."""
    return lambda parts: tuple(parts[field].astype(np.float32) for field in fields)
