"""OCDBT, tensorstore's key-value store: where the value of every key lies, found without reading one.

Source: tensorstore `tensorstore/kvstore/ocdbt/index.rst` (07830a3f), "Storage format", and `format/config_codec.cc` for
the kind of a manifest. Of the versions that a manifest names, the last is read. Nodes are small (at most a few MiB when
expanded); a value that is not inline is a run of bytes of a data file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from ggferry.formats.errors import (
    ChecksumError,
    CorruptError,
    DuplicateError,
    GgferryError,
    OutOfRangeError,
    TruncatedError,
    UnsupportedError,
)
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.limits import MAX_NAME, MAX_TENSORS
from ggferry.formats.packed.streams import inflated

MANIFEST = "manifest.ocdbt"
_MANIFEST, _NODE = 0x0CDB3A2A, 0x0CDB20DE
MAX_NODE = 32 << 20  # bytes of a node, expanded: tensorstore writes 8 MiB at most unless asked
MAX_TREE = 64 << 20  # bytes of all nodes as they lie: Gemma 27B has half a megabyte
MAX_HEIGHT = 32
MAX_ENTRIES = 4 * MAX_TENSORS  # keys of a store: a description and a few chunks for each array


class Place(NamedTuple):
    """Where a value lies: bytes of a file below the folder, or `data` itself where `path` is ''."""

    path: str
    offset: int
    length: int
    data: bytes = b""


class _Node(NamedTuple):
    path: str
    offset: int
    length: int
    base: str
    prefix: bytes
    height: int


def read_entries(folder: str) -> dict[str, Place]:
    """Return key → place of its value, of the store in `folder`.

    Raises UnsupportedError for a manifest of another kind or version, and every CorruptError.
    """
    return dict(_Store(folder).entries())


class _Store:
    """A store, read at the places that its nodes name."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.size, self.keys = 0, 0

    def entries(self) -> Iterator[tuple[str, Place]]:
        """Yield every key with the place of its value."""
        seen: set[str] = set()
        root = self._root()
        for key, place in () if root is None else self._inside(root):
            if key in seen:
                raise DuplicateError("two values of one key", path=os.path.join(self.folder, MANIFEST), found=key)
            seen.add(key)
            yield key, place

    def _body(self, path: str, offset: int, length: int | None, magic: int) -> _Cursor:
        """Return what is in a manifest or a node, expanded, after comparing its checksum."""
        source = open_source(os.path.join(self.folder, path), self.folder)
        try:
            size = source.size - offset if length is None else length
            if not 18 <= size <= MAX_NODE or offset + size > source.size:
                raise TruncatedError("a node of the store", path=source.path, offset=offset, found=f"{size} bytes")
            data = source.read(offset, size)
            head = _Cursor(data[:-4], source.path, offset)
            found = (int.from_bytes(head.take(4), "big"), int.from_bytes(head.take(8), "little"))
            if found != (magic, size):
                raise head.error(CorruptError, "a node of the store", found)
            if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
                raise head.error(ChecksumError, "checksum of a node of the store", data[-4:].hex())
            version, compression = head.varint(), head.varint()
            if version or compression > 1:
                raise head.error(UnsupportedError, "version of the store", f"{version}, compression {compression}")
            body = head.rest()
            if compression:
                body = _expanded(source, offset + size - 4 - len(body), offset + size - 4)
            return _Cursor(body, source.path, offset)
        finally:
            source.close()

    def _root(self) -> _Node | None:
        cursor = self._body(MANIFEST, 0, None, _MANIFEST)
        cursor.take(16)
        if (kind := cursor.varint()) != 0:
            raise cursor.error(UnsupportedError, "a store whose manifest is in several files", kind)
        cursor.varint(), cursor.varint(), cursor.take(1)
        if cursor.varint():
            cursor.take(4)
        files = self._files(cursor, "")
        count = cursor.count("versions")
        if not count:
            return None
        cursor.column(count)
        heights = cursor.take(count)
        ids, offsets, lengths = (cursor.column(count) for _ in range(3))
        if lengths[-1] == 0 or offsets[-1] == (1 << 64) - 1:  # nothing was ever written
            return None
        path, base = cursor.chosen(files, ids[-1])
        return _Node(path, offsets[-1], lengths[-1], base, b"", heights[-1])

    def _files(self, cursor: _Cursor, before: str) -> list[tuple[str, str]]:
        """Return path, and what precedes the paths of its own nodes, of each file of a table."""
        count = cursor.count("files")
        shared = [0, *cursor.column(count - 1)] if count else []
        sizes, bases = cursor.column(count), cursor.column(count)
        found, last = [], b""
        for common, size, base in zip(shared, sizes, bases, strict=True):
            if common > len(last) or common + size > MAX_NAME:
                raise cursor.error(OutOfRangeError, "path of a data file", common)
            last = last[:common] + cursor.take(size)
            text = before + cursor.text(last)
            if base > len(last) or not _is_inside(text):
                raise cursor.error(OutOfRangeError, "path of a data file", text)
            found.append((text, before + cursor.text(last[:base])))
        return found

    def _inside(self, node: _Node) -> Iterator[tuple[str, Place]]:
        self.size += node.length
        if self.size > MAX_TREE or node.height > MAX_HEIGHT:
            raise OutOfRangeError("nodes of the store", path=os.path.join(self.folder, node.path), offset=node.offset)
        cursor = self._body(node.path, node.offset, node.length, _NODE)
        height = cursor.take(1)[0]
        if height != node.height:
            raise cursor.error(CorruptError, "height of a node of the store", height)
        files, count = self._files(cursor, node.base), cursor.count("entries")
        shared, sizes = [0, *cursor.column(count - 1)] if count else [], cursor.column(count)
        below = cursor.column(count) if height else []
        keys: list[bytes] = []
        for common, size in zip(shared, sizes, strict=True):
            last = keys[-1] if keys else b""
            if common > len(last) or len(node.prefix) + common + size > MAX_NAME:
                raise cursor.error(OutOfRangeError, "a key of the store", common)
            keys.append(last[:common] + cursor.take(size))
        if not height:
            yield from self._leaf(cursor, node, files, keys)
            return
        ids, offsets, lengths = (cursor.column(count) for _ in range(3))
        for number, key in enumerate(keys):
            path, base = cursor.chosen(files, ids[number])
            prefix = node.prefix + key[: below[number]]
            yield from self._inside(_Node(path, offsets[number], lengths[number], base, prefix, height - 1))

    def _leaf(
        self, cursor: _Cursor, node: _Node, files: list[tuple[str, str]], keys: list[bytes]
    ) -> Iterator[tuple[str, Place]]:
        self.keys += len(keys)
        if self.keys > MAX_ENTRIES:
            raise cursor.error(OutOfRangeError, "keys of the store", self.keys)
        lengths, kinds = cursor.column(len(keys)), cursor.column(len(keys))
        if any(kind > 1 for kind in kinds):
            raise cursor.error(CorruptError, "kind of a value of the store", max(kinds))
        apart = sum(kinds)
        places = iter([*zip(cursor.column(apart), cursor.column(apart), strict=True)])
        for key, length, kind in zip(keys, lengths, kinds, strict=True):
            name = cursor.text(node.prefix + key)
            if kind:
                number, offset = next(places)
                yield name, Place(cursor.chosen(files, number)[0], offset, length)
            else:
                yield name, Place("", 0, length, cursor.take(length))


class _Cursor:
    """A place within the expanded bytes of a node."""

    def __init__(self, data: bytes, path: str, offset: int) -> None:
        self.data, self.at = data, 0
        self.path, self.offset = path, offset

    def error(self, kind: type[GgferryError], message: str, found: object = None) -> GgferryError:
        """Return an error in this node."""
        return kind(message, path=self.path, offset=self.offset, found=found)

    def take(self, count: int) -> bytes:
        """Return bytes. Raises TruncatedError where the node ends before them."""
        if count > len(self.data) - self.at:
            raise self.error(TruncatedError, "a node of the store ends too early", f"{len(self.data)} bytes")
        self.at += count
        return self.data[self.at - count : self.at]

    def rest(self) -> bytes:
        """Return everything that follows."""
        return self.take(len(self.data) - self.at)

    def varint(self) -> int:
        """Return a number of seven bits a byte, the lowest first. Raises CorruptError for one of more than 64."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
        if value >> 64 or shift > 63:
            raise self.error(CorruptError, "a number of the store", hex(value)[:40])
        return value

    def count(self, what: str) -> int:
        """Return a number of things of which each takes a byte. Raises OutOfRangeError."""
        value = self.varint()
        if value > len(self.data) - self.at:
            raise self.error(OutOfRangeError, f"number of {what} in the store", value)
        return value

    def column(self, count: int) -> list[int]:
        """Return numbers."""
        return [self.varint() for _ in range(count)]

    def chosen(self, files: list[tuple[str, str]], number: int) -> tuple[str, str]:
        """Return an entry of the table of files. Raises OutOfRangeError."""
        if number >= len(files):
            raise self.error(OutOfRangeError, "number of a data file", number)
        return files[number]

    def text(self, data: bytes) -> str:
        """Return a key or a path. Raises CorruptError."""
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.error(CorruptError, "a text of the store is not UTF-8", data[:40]) from None


def _expanded(source: Source, start: int, stop: int) -> bytes:
    """Return what a node expands to. Raises OutOfRangeError for more than MAX_NODE bytes."""
    body = bytearray()
    for piece in inflated(source, start, stop, "zstd", source.path):
        body += piece
        if len(body) > MAX_NODE:
            raise OutOfRangeError("size of a node of the store", path=source.path, offset=start)
    return bytes(body)


def _is_inside(path: str) -> bool:
    """Return whether a path leads to a file below the folder, on any system."""
    parts = path.replace("\\", "/").split("/")
    return "\0" not in path and ":" not in path and all(part not in ("", ".", "..") for part in parts)


@cache
def _table() -> tuple[int, ...]:
    """Return the CRC-32C of every byte."""
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli; RFC 3720, B.4) of bytes."""
    value, table = 0xFFFFFFFF, _table()
    for byte in data:
        value = table[(value ^ byte) & 255] ^ value >> 8
    return value ^ 0xFFFFFFFF
