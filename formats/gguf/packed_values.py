"""Arrays and long texts of a GGUF header, kept as their bytes in the file and unpacked when they are asked for.

A one-byte number takes eight bytes as the address of a Python object, a token of two letters sixty as a str, so values
that nobody looks at stay bytes. For each class here, `len` is the number of items (of a text: bytes), `all()` returns
what `Value.data` holds, and `first(count)` the first `count` items of that.
"""

from __future__ import annotations

import struct
from codecs import getincrementaldecoder
from collections.abc import Iterator
from dataclasses import field
from itertools import islice

from ggferry.formats.fields import CODES, size_of
from ggferry.support.records import dataclass

WINDOW = 1 << 20  # bytes that are decoded at a time to see whether they are UTF-8


def is_utf8(raw: bytes) -> bool:
    """Return whether `raw` is UTF-8, without holding it decoded.

    A single character beyond the BMP would make a str of it four times as large.
    """
    if raw.isascii():
        return True
    decoder = getincrementaldecoder("utf-8")()
    try:
        for begin in range(0, len(raw), WINDOW):
            decoder.decode(raw[begin : begin + WINDOW])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of type `code` (`formats.fields`), packed in `raw`."""

    raw: bytes = field(repr=False)
    code: str
    big_endian: bool

    def __len__(self) -> int:
        return len(self.raw) // size_of(self.code)

    def first(self, count: int) -> tuple[int | float, ...]:
        mark, few = ">" if self.big_endian else "<", min(count, len(self))
        return struct.unpack_from(f"{mark}{few}{CODES[self.code]}", self.raw)

    def all(self) -> tuple[int | float, ...]:
        return self.first(len(self))


@dataclass(frozen=True, slots=True)
class Flags:
    """Booleans, a byte each."""

    raw: bytes = field(repr=False)

    def __len__(self) -> int:
        return len(self.raw)

    def first(self, count: int) -> tuple[bool, ...]:
        return tuple(map(bool, self.raw[:count]))

    def all(self) -> tuple[bool, ...]:
        return tuple(map(bool, self.raw))


@dataclass(frozen=True, slots=True)
class Text:
    """One string."""

    raw: bytes = field(repr=False)

    def __len__(self) -> int:
        return len(self.raw)

    def first(self, count: int) -> str:
        """Return the text of the first `count` bytes; the last character may be cut."""
        return self.raw[:count].decode(errors="surrogateescape")

    def all(self) -> str:
        return self.raw.decode(errors="surrogateescape")


@dataclass(frozen=True, slots=True)
class Texts:
    """`count` strings, each after its length, a number of type `code` (`formats.fields`)."""

    raw: bytes = field(repr=False)
    count: int
    code: str
    big_endian: bool

    def __len__(self) -> int:
        return self.count

    def pieces(self) -> Iterator[bytes]:
        prefix = struct.Struct((">" if self.big_endian else "<") + CODES[self.code])
        raw, ahead, length, begin = self.raw, prefix.size, prefix.unpack_from, 0
        for _ in range(self.count):
            end = begin + ahead + length(raw, begin)[0]
            yield raw[begin + ahead : end]
            begin = end

    def are_utf8(self, short: bool) -> bool:
        """Return whether every string is UTF-8.

        Where every string is `short` (under 128 bytes), the lengths are themselves ASCII, and one check of all bytes is
        enough: no character can extend across a length.
        """
        if short:
            return is_utf8(self.raw)
        return all(map(is_utf8, self.pieces()))

    def first(self, count: int) -> tuple[str, ...]:
        return tuple(piece.decode(errors="surrogateescape") for piece in islice(self.pieces(), count))

    def all(self) -> tuple[str, ...]:
        try:
            return tuple(piece.decode() for piece in self.pieces())
        except UnicodeDecodeError:
            return tuple(piece.decode(errors="surrogateescape") for piece in self.pieces())


PACKED = (Numbers, Flags, Text, Texts)
