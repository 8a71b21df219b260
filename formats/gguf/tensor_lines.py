"""Read the lines of a GGUF tensor table from its bytes on demand: name, dimensions, type and offset of each tensor."""

from __future__ import annotations

import struct
from typing import NamedTuple

from ggferry.formats import limits
from ggferry.formats.checkpoint import Span, TensorRef
from ggferry.formats.fields import CODES
from ggferry.formats.gguf.values import COUNT_CODES
from ggferry.quant.codec import types_by_id
from ggferry.quant.types import BlockType

LARGEST_LINE = 8 + limits.MAX_GGUF_NAME + 4 + 8 * limits.MAX_DIMS + 4 + 8  # bytes


class TensorLine(NamedTuple):
    """A line of the tensor table.

    Attributes:
        name: Name of the tensor.
        type: Block type.
        shape: Elements along each axis, outermost first.
        offset: Where its data begins, relative to the data section.
        end: Where the line ends within the bytes it was read from.
    """

    name: str
    type: BlockType
    shape: tuple[int, ...]
    offset: int
    end: int


class TensorLines:
    """The bytes of a tensor table, read line by line according to version and byte order."""

    def __init__(self, raw: bytes, version: int, big_endian: bool) -> None:
        self.raw, self.types = raw, types_by_id()
        mark, count = ">" if big_endian else "<", CODES[COUNT_CODES[version]]
        self._length = struct.Struct(f"{mark}{count}")
        self._dims = struct.Struct(f"{mark}I")
        self._rest = {n: struct.Struct(f"{mark}{n}{count}IQ") for n in range(1, limits.MAX_DIMS + 1)}

    def row(self, place: int) -> TensorLine | None:
        """Return the line at byte `place`; None unless it is valid."""
        raw = self.raw
        try:
            begin = place + self._length.size
            name_end = begin + self._length.unpack_from(raw, place)[0]
            rest = self._rest[self._dims.unpack_from(raw, name_end)[0]]
            *ne, type_id, offset = rest.unpack_from(raw, name_end + 4)
            kind = self.types[type_id]
            name = raw[begin:name_end].decode()
        except (struct.error, KeyError, UnicodeDecodeError, OverflowError):
            return None
        if not (1 <= name_end - begin <= limits.MAX_GGUF_NAME and name.isprintable()):
            return None
        if min(ne) < 1 or max(ne) > limits.MAX_DIM or ne[0] % kind.elements:
            return None
        if (ne[1] if len(ne) > 1 else 1) % kind.interleaved or (kind.whole_rows and ne[0] > limits.MAX_WHOLE_ROW):
            return None
        return TensorLine(name, kind, tuple(ne[::-1]), offset, name_end + 4 + rest.size)

    def name(self, place: int) -> str:
        """Return the name in a line that was found to be valid."""
        begin = place + self._length.size
        return self.raw[begin : begin + self._length.unpack_from(self.raw, place)[0]].decode()

    def known(self, place: int) -> TensorLine:
        """Return what `row` returns for a line that was found to be valid."""
        row = self.row(place)
        assert row is not None
        return row


def tensor_of(table: TensorLines, place: int, file: int, start: int, big_endian: bool) -> TensorRef:
    """Return the tensor of the line at byte `place`.

    The data section of file number `file` begins at byte `start`.
    """
    row = table.known(place)
    span = Span(file, start + row.offset, row.shape)
    return TensorRef(row.name, row.type, row.shape, (span,), big_endian=big_endian)
