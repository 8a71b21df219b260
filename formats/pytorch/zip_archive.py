"""Read zip archives as byte ranges: where each stored entry's bytes are, once everything the archive states agrees.

Source: PKWARE APPNOTE 6.3.10 §4.3, and what torch's PyTorchStreamWriter (miniz) leaves: entries in order from byte 0,
each local header padded by an extra field, a data descriptor after the data, and always zip64 records.

Every byte must belong to an entry, the directory or the end records: there may be nothing before, between or after
them. A zip reader may trust the local headers or the directory; an archive in which they differ means two things, and
is refused.
"""

from __future__ import annotations

import stat
import struct
import zlib

from ggferry.formats.errors import (
    ChecksumError,
    CorruptError,
    DuplicateError,
    EncodingError,
    InconsistentError,
    OutOfRangeError,
    OverlapError,
    TrailingBytesError,
    TruncatedError,
    UnsupportedError,
)
from ggferry.formats.files.sources import Source
from ggferry.formats.limits import MAX_NAME, MAX_ZIP_DIRECTORY, MAX_ZIP_ENTRIES
from ggferry.support.records import dataclass

_LOCAL = struct.Struct("<4s5H3I2H")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_U16, _U32 = 0xFFFF, 0xFFFFFFFF  # "see the zip64 record"
_ZIP64 = 1  # id of the zip64 extra field
_ENCRYPTED, _DESCRIPTOR = 1 << 0, 1 << 3
_METHODS = {8: "deflate", 9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "zstd", 95: "xz"}
_RESAVE = "unpack it and load it where it came from, then torch.save it again: torch stores, it never compresses"


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored file.

    Attributes:
        name: Its name in the archive.
        offset: Byte at which its data begins, uncompressed.
        nbytes: Bytes of its data.
        crc32: The checksum stated for it.
        header: Byte at which its local header begins.
    """

    name: str
    offset: int
    nbytes: int
    crc32: int
    header: int


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive and its entries.

    Attributes:
        source: The file.
        entries: Entries by name, in file order.
        has_checksums: False for archives written without CRCs: torch.serialization.set_crc32_options(False) leaves 0 in
            every one.
    """

    source: Source
    entries: dict[str, Entry]
    has_checksums: bool

    def read(self, name: str) -> bytes:
        """Return the bytes of an entry small enough to hold, after checking its CRC. Raises KeyError, ChecksumError."""
        entry = self.entries[name]
        data = self.source.read(entry.offset, entry.nbytes)
        if self.has_checksums and zlib.crc32(data) != entry.crc32:
            raise ChecksumError(
                f"{name} does not have the checksum the archive states",
                path=self.source.path,
                offset=entry.offset,
                found=f"CRC-32 {zlib.crc32(data):08x}",
                expected=f"{entry.crc32:08x}",
                hint="the file was damaged after it was written: fetch it again",
            )
        return data


@dataclass(frozen=True, slots=True)
class _Directory:
    """Where the central directory is, and where the end records that follow it begin."""

    offset: int
    nbytes: int
    count: int


@dataclass(frozen=True, slots=True)
class _Listed:
    """A line of the central directory."""

    name: bytes
    flags: int
    method: int
    crc32: int
    packed: int
    nbytes: int
    header: int


def read_archive(source: Source) -> Archive:
    """Return the archive in `source`, from its directory and its local headers; no data is read.

    Raises:
        TruncatedError: There is no end record.
        TrailingBytesError: Bytes follow the end record.
        OverlapError: Bytes belong to no entry or to two.
        InconsistentError: The directory and the local headers differ.
        DuplicateError: Two entries have the same name.
        OutOfRangeError: A name leads out of the archive's folder, or a number is out of range.
        UnsupportedError: The archive is compressed, encrypted, or spans several disks.
    """
    directory = _find_directory(source)
    listed = sorted(_read_directory(source, directory), key=lambda line: line.header)
    entries: dict[str, Entry] = {}
    end = 0
    for line in listed:
        if line.header != end:
            words = "overlaps the one before" if line.header < end else "leaves unclaimed bytes before it"
            raise OverlapError(
                f"entry {_shown(line)} {words}", path=source.path, offset=line.header, found=line.header, expected=end
            )
        entry, end = _read_entry(source, line, directory.offset)
        if entry.name in entries:
            raise DuplicateError("duplicate archive entry", path=source.path, offset=entry.header, found=entry.name)
        entries[entry.name] = entry
    if end != directory.offset:
        raise OverlapError(
            "bytes between the last entry and the directory", path=source.path, offset=end, expected=directory.offset
        )
    has_checksums = any(entry.crc32 for entry in entries.values())
    return Archive(source, {name: e for name, e in entries.items() if not name.endswith("/")}, has_checksums)


def _find_directory(source: Source) -> _Directory:
    tail_at = max(0, source.size - _END.size - _U16)
    tail = source.read(tail_at, source.size - tail_at)
    place = tail.rfind(b"PK\5\6")
    if place < 0:
        raise TruncatedError("zip archive has no directory: the file was cut", path=source.path, offset=source.size)
    at = tail_at + place
    if len(tail) - place < _END.size:
        raise TruncatedError("a zip archive cut in its last record", path=source.path, offset=source.size)
    _, disk, first_disk, here, count, nbytes, offset, comment = _END.unpack_from(tail, place)
    if at + _END.size + comment > source.size:
        raise TruncatedError("a zip archive cut in its comment", path=source.path, offset=source.size)
    if at + _END.size + comment < source.size:
        raise TrailingBytesError("bytes follow the archive", path=source.path, offset=at + _END.size + comment)
    if comment and b"PK\5\6" in tail[:place]:
        raise CorruptError("two records claim to end the archive", path=source.path, offset=at)
    if disk or first_disk or here != count:
        raise UnsupportedError("archive spans several disks", path=source.path, offset=at)
    directory, end = _Directory(offset, nbytes, count), at
    if at >= _LOCATOR.size and source.read(at - _LOCATOR.size, 4) == b"PK\6\7":
        directory, end = _find_zip64(source, at - _LOCATOR.size, directory)
    if directory.offset + directory.nbytes != end:
        words = "the archive's directory is not where its end record says: bytes were put before it or cut from it"
        found, expected = directory.offset + directory.nbytes, end
        raise InconsistentError(words, path=source.path, offset=at, found=found, expected=expected)
    return directory


def _find_zip64(source: Source, at: int, short: _Directory) -> tuple[_Directory, int]:
    """Return the zip64 end record and where it begins.

    It must agree with the `short` end record, where that one states numbers.
    """
    _, disk, place, disks = _LOCATOR.unpack(source.read(at, _LOCATOR.size))
    if place + _END64.size > at:
        raise InconsistentError("zip64 end record", path=source.path, offset=at, found=place, expected=f"< {at}")
    mark, size, _, _, own, first, here, count, nbytes, offset = _END64.unpack(source.read(place, _END64.size))
    if mark != b"PK\6\6" or place + 12 + size != at:
        raise InconsistentError("zip64 end record does not reach its locator", path=source.path, offset=place)
    if disk or own or first or disks > 1 or here != count:
        raise UnsupportedError("archive spans several disks", path=source.path, offset=place)
    pairs = ((short.offset, offset, _U32), (short.nbytes, nbytes, _U32), (short.count, count, _U16))
    for found, expected, unset in pairs:
        if found not in (expected, unset):
            raise InconsistentError(
                "the two end records differ", path=source.path, offset=at, found=found, expected=expected
            )
    return _Directory(offset, nbytes, count), place


def _read_directory(source: Source, directory: _Directory) -> list[_Listed]:
    path, at = source.path, directory.offset
    if directory.count > MAX_ZIP_ENTRIES or directory.nbytes > MAX_ZIP_DIRECTORY:
        limit = f"≤ {MAX_ZIP_ENTRIES} entries in ≤ {MAX_ZIP_DIRECTORY} bytes"
        raise OutOfRangeError("size of the directory", path=path, offset=at, found=directory.count, expected=limit)
    if directory.count * _ENTRY.size > directory.nbytes:
        raise TruncatedError(
            f"a directory of {directory.count} entries", path=path, offset=at, found=f"{directory.nbytes} bytes"
        )
    data = source.read(at, directory.nbytes)
    listed, place = [], 0
    for number in range(directory.count):
        if len(data) - place < _ENTRY.size:
            raise TruncatedError(f"the directory ends inside entry {number}", path=path, offset=at + place)
        fields = _ENTRY.unpack_from(data, place)
        mark, made_by, _, flags, method, _, _, crc, packed, nbytes, name_size, extra_size, comment, disk = fields[:14]
        attributes, header = fields[15:]
        if mark != b"PK\1\2":
            raise CorruptError(f"entry {number} of the directory", path=path, offset=at + place, found=mark)
        begin, place = place, place + _ENTRY.size + name_size + extra_size + comment
        if place > len(data):
            raise TruncatedError(f"the directory ends inside entry {number}", path=path, offset=at + begin)
        name = data[begin + _ENTRY.size : begin + _ENTRY.size + name_size]
        extra = data[begin + _ENTRY.size + name_size : place - comment]
        sizes = _widen(extra, (nbytes, packed, header), path, at + begin)
        if disk:
            raise UnsupportedError("archive spans several disks", path=path, offset=at + begin)
        if made_by >> 8 == 3 and stat.S_ISLNK(attributes >> 16):
            raise OutOfRangeError("archive entry is a symlink", path=path, offset=at + begin, found=name)
        listed.append(_Listed(name, flags, method, crc, sizes[1], sizes[0], sizes[2]))
    if place != len(data):
        raise TrailingBytesError("bytes follow the directory's last entry", path=path, offset=at + place)
    return listed


def _widen(extra: bytes, values: tuple[int, int, int], path: str, offset: int) -> tuple[int, ...]:
    """Return unpacked size, packed size and header offset, taken from the zip64 extra field where they refer to it."""
    if _U32 not in values:
        return values
    place = 0
    while place + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, place)
        if kind == _ZIP64:
            wide = [int.from_bytes(extra[i : i + 8], "little") for i in range(place + 4, place + 4 + size - 7, 8)]
            if place + 4 + size <= len(extra) and len(wide) >= values.count(_U32):
                queue = iter(wide)
                return tuple(next(queue) if value == _U32 else value for value in values)
        place += 4 + size
    raise InconsistentError("archive entry lacks its zip64 field", path=path, offset=offset)


def _read_entry(source: Source, line: _Listed, limit: int) -> tuple[Entry, int]:
    """Return the entry of a line of the directory, and the byte after it; `limit` is where the directory begins."""
    path, at = source.path, line.header
    if at + _LOCAL.size + len(line.name) > limit:
        raise TruncatedError(f"entry {_shown(line)} has no room before the directory", path=path, offset=at)
    head = source.read(at, _LOCAL.size + len(line.name))
    mark, _, flags, method, _, _, crc, packed, nbytes, name_size, extra_size = _LOCAL.unpack_from(head)
    if mark != b"PK\3\4":
        raise CorruptError(f"local header of {_shown(line)}", path=path, offset=at, found=mark, expected=b"PK\3\4")
    if name_size != len(line.name) or head[_LOCAL.size :] != line.name:
        local = source.read(at + _LOCAL.size, min(name_size, limit - at - _LOCAL.size))
        raise InconsistentError(
            "an entry has two different names", path=path, offset=at, found=local, expected=line.name
        )
    if line.flags & _ENCRYPTED or flags & _ENCRYPTED:
        raise UnsupportedError(f"entry {_shown(line)} is encrypted", path=path, offset=at)
    name = _name(line, path)
    if method != line.method or (flags ^ line.flags) & _DESCRIPTOR:
        raise InconsistentError(f"the two headers of {name}", path=path, offset=at, found=(method, flags))
    if method:
        how = _METHODS.get(method, f"method {method}")
        raise UnsupportedError(f"entry {name} is compressed", path=path, offset=at, found=how, hint=_RESAVE)
    if line.packed != line.nbytes:
        sizes = (line.packed, line.nbytes)
        raise InconsistentError(f"the two sizes of {name}, which is stored", path=path, offset=at, found=sizes)
    data = at + _LOCAL.size + name_size + extra_size
    if data + line.nbytes > limit:
        raise TruncatedError(f"{name} does not fit before the directory", path=path, offset=data, found=line.nbytes)
    late = bool(flags & _DESCRIPTOR)  # sizes and CRC may follow the data instead
    agreed = {line.nbytes, _U32} | ({0} if late else set())
    if packed not in agreed or nbytes not in agreed or crc not in ({line.crc32, 0} if late else {line.crc32}):
        found, expected = (crc, packed, nbytes), (line.crc32, line.packed, line.nbytes)
        raise InconsistentError(f"CRC and sizes of {name}", path=path, offset=at, found=found, expected=expected)
    end = data + line.nbytes
    return Entry(name, data, line.nbytes, line.crc32, at), end + (_descriptor(source, line, end, limit) if late else 0)


def _descriptor(source: Source, line: _Listed, at: int, limit: int) -> int:
    """Return the length of the data descriptor at `at`, in bytes.

    It may have a signature or none, and sizes of 4 or 8 bytes (APPNOTE 4.3.9).
    """
    found = source.read(at, min(24, limit - at))
    for mark in (b"PK\7\x08", b""):
        for size in (4, 8):
            if size == 4 and line.nbytes > _U32:
                continue
            length = line.nbytes.to_bytes(size, "little")
            expected = mark + line.crc32.to_bytes(4, "little") + length + length
            if found.startswith(expected):
                return len(expected)
    raise InconsistentError(
        f"the record behind {_shown(line)} differs from the directory", path=source.path, offset=at, found=found
    )


def _name(line: _Listed, path: str) -> str:
    """Return the entry's name, if it stays inside the archive's folder on every system."""
    try:
        name = line.name.decode("utf-8")  # torch's miniz set the flag that says so only later
    except UnicodeDecodeError:
        raise EncodingError("name of an entry", path=path, offset=line.header, found=line.name) from None
    parts = name.removesuffix("/").split("/")
    if (
        not 0 < len(line.name) <= MAX_NAME
        or any(part in ("", ".", "..") for part in parts)
        or "\\" in name
        or "\0" in name
        or name[1:2] == ":"
    ):
        raise OutOfRangeError(
            "archive entry leads out of its archive", path=path, offset=line.header, found=name, expected="folder/name"
        )
    if name.endswith("/") and line.nbytes:
        raise InconsistentError("archive folder has data", path=path, offset=line.header, found=name)
    return name


def _shown(line: _Listed) -> str:
    return repr(line.name[:MAX_NAME])[1:]
