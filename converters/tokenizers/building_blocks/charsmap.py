"""SentencePiece's precompiled_charsmap: a double-array trie of prefixes and the texts that replace them.

Layout (sentencepiece normalizer.cc, DecodePrecompiledCharsMap): u32 size of the trie in bytes, the trie's u32 units
(Darts-clone), then NUL-terminated replacements; a leaf's value is the offset of one. All little-endian.
"""

from __future__ import annotations

import sys
from array import array

from ggferry.formats.errors import CorruptError, OutOfRangeError, TruncatedError

LABEL = (1 << 31) | 0xFF
VALUE = (1 << 31) - 1
LONGEST = 1024  # bytes that replace a prefix; NFKC's longest has 33


class Charsmap:
    """A precompiled_charsmap. Raises TruncatedError or CorruptError when the sizes do not fit."""

    def __init__(self, data: bytes) -> None:
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 or size > len(data) - 4:
            raise TruncatedError("precompiled_charsmap ends inside its trie", found=len(data), expected=size + 4)
        if size % 4 or not size:
            raise CorruptError("the trie of precompiled_charsmap is not whole units", found=size)
        self._units = array("I")
        if self._units.itemsize != 4:
            self._units = array("L")
        self._units.frombytes(data[4 : 4 + size])
        if sys.byteorder == "big":
            self._units.byteswap()
        self._texts = data[4 + size :]
        self._cache: dict[int, str] = {}

    def normalize(self, text: str) -> str:
        """Return `text` with every longest known prefix replaced, and the rest as it is."""
        data = text.encode()
        out, at = [], 0
        while at < len(data):
            piece, used = self.prefix(data, at)
            out.append(piece)
            at += used
        return "".join(out)

    def prefix(self, data: bytes, at: int) -> tuple[str, int]:
        """Return what replaces the beginning of `data` at `at`, and how many bytes that beginning has."""
        length, value = self._longest(data, at)
        if length:
            return self._text(value), length
        first = data[at]
        size = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
        return data[at : at + size].decode(), size

    def _longest(self, data: bytes, at: int) -> tuple[int, int]:
        units, count = self._units, len(self._units)
        length = value = 0
        node = _offset(units[0])
        for i in range(at, len(data)):
            byte = data[i]
            node ^= byte
            if node >= count or not byte:
                break
            unit = units[node]
            if unit & LABEL != byte:
                break
            node ^= _offset(unit)
            if unit >> 8 & 1:
                if node >= count:
                    raise OutOfRangeError("precompiled_charsmap points outside its trie", found=node)
                length, value = i - at + 1, units[node] & VALUE
        return length, value

    def _text(self, offset: int) -> str:
        known = self._cache.get(offset)
        if known is None:
            end = self._texts.find(b"\0", offset)
            if end - offset > LONGEST:
                limit = f"≤ {LONGEST} bytes"
                raise OutOfRangeError("a text of precompiled_charsmap", found=end - offset, expected=limit)
            if offset > len(self._texts) or end < 0:
                raise OutOfRangeError("precompiled_charsmap points outside its texts", found=offset)
            known = self._cache[offset] = self._texts[offset:end].decode("utf-8", "replace")
        return known


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & (1 << 9)) >> 6)
