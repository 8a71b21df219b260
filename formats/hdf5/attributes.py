"""Texts that h5py keeps as attributes of a dataset, and the heap of the file in which these lie.

Source: the HDF5 File Format Specification 3.0, IV.A.2.m (attribute message, versions 1 to 3) and III.E (global heap).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

_FIXED, _VARIABLE = 3, 9  # classes of types: a text in place, one of any length in the heap
_MOST = 64  # bytes of a text: those of more name no type
_HEAP_OBJECTS = 1 << 12  # that are passed to find one

Take = Callable[[int, int, str], bytes]
"""Return so many bytes at a place of the file, of which the words say what they are; raises where there are none."""


def text_of(data: bytes, name: str, take: Take) -> str | None:
    """Return the text under the name `name` of an attribute's message; None for another attribute, or no short text.

    Raises struct.error or ValueError where the message is cut, and as `take`.
    """
    version, _, names, types, spaces = struct.unpack_from("<BBHHH", data)
    if version not in (1, 2, 3):
        return None
    at = 9 if version == 3 else 8
    parts = []
    for size in (names, types, spaces):
        parts.append(data[at : at + size])
        at += -(-size // 8) * 8 if version == 1 else size
    if parts[0].rstrip(b"\0") != name.encode() or not parts[1]:
        return None
    kind, value = parts[1][0] & 15, data[at:]
    if kind == _VARIABLE:
        length, heap, number = struct.unpack_from("<IQI", value)
        found = _in_heap(heap, number, take) if length <= _MOST else b""
        return found[:length].decode("utf-8", "replace")
    return value[:_MOST].rstrip(b"\0 ").decode("utf-8", "replace") if kind == _FIXED else None


def _in_heap(at: int, number: int, take: Take) -> bytes:
    """Return the first bytes of an object of the heap at `at`; b"" where it has none of that number."""
    what = "the heap of texts"
    head = take(at, 16, what)
    (size,) = struct.unpack_from("<Q", head, 8)
    if head[:5] != b"GCOL\1":
        return b""
    place, end = at + 16, at + size
    for _ in range(_HEAP_OBJECTS):
        if place + 16 > end:
            break
        own, _, _, length = struct.unpack("<HHIQ", take(place, 16, what))
        if own == number:
            return take(place + 16, min(length, _MOST), what)
        if own == 0:  # what is left of the heap
            break
        place += 16 + -(-length // 8) * 8
    return b""
