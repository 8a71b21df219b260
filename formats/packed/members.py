"""The files of a zip or tar archive: where each lies, and its bytes.

Nothing is extracted under a name that an archive states. Archives are listed by `zipfile` and `tarfile` of Python.
"""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator

from ggferry.formats import limits
from ggferry.formats.errors import ChecksumError, CorruptError, TruncatedError, UnsupportedError
from ggferry.formats.files.sources import Source, Window
from ggferry.formats.packed.kinds import COMMANDS, ZIP
from ggferry.formats.packed.streams import inflated
from ggferry.formats.packed.unpacking import around, unpack
from ggferry.support.progress import Phase, Progress
from ggferry.support.records import dataclass

_LOCAL = struct.Struct("<4s22x2H")  # of a local header: its magic, the lengths of the name and of what follows it
_METHODS = {zipfile.ZIP_DEFLATED: "deflate", zipfile.ZIP_BZIP2: "bzip2", 93: "zstd"}  # APPNOTE.TXT, 4.4.5
_STORED = "stored"


@dataclass(frozen=True, slots=True)
class Member:
    """A file in an archive.

    Attributes:
        name: Its name there.
        size: Its bytes, as the archive states them.
        method: How they are stored: 'stored', what `inflated` knows, or in words what is not read.
        start: Where they are in the archive; of a zip archive, where their local header is.
        packed: How many bytes they take there.
        crc32: Their checksum, where the archive states one.
    """

    name: str
    size: int
    method: str
    start: int
    packed: int
    crc32: int | None = None

    @property
    def is_unread(self) -> bool:
        """Whether it cannot be expanded: encrypted, or by a method that is not read."""
        return self.method not in (_STORED, *_METHODS.values())

    @property
    def is_stored(self) -> bool:
        """Whether its bytes lie in the archive as they are."""
        return self.method == _STORED


class Seekable(io.RawIOBase):
    """What `zipfile` and `tarfile` read; at most as much at once as a directory may have."""

    def __init__(self, source: Source) -> None:
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size}[whence]
        if start + offset < 0:
            raise OSError("before the beginning")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._source.size - self._at)
        size = left if size < 0 else min(size, left)
        if size > limits.MAX_ZIP_DIRECTORY:
            raise zipfile.BadZipFile(f"{size} bytes of a directory")
        data = self._source.read(self._at, size)
        self._at += size
        return data


def zip_directory(source: Source, kind: str = ZIP) -> zipfile.ZipFile:
    """Return the directory of a zip archive, which people know as `kind`. Raises CorruptError."""
    try:
        archive = zipfile.ZipFile(Seekable(source))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CorruptError(f"the {kind}'s directory: {error}", path=source.path) from None
    if len(archive.infolist()) > limits.MAX_ZIP_ENTRIES:
        raise CorruptError(f"entries of the {kind}", path=source.path, found=len(archive.infolist()))
    return archive


def members_of(source: Source, kind: str) -> list[Member]:
    """Return the files of an archive, without folders, links and devices. Raises CorruptError."""
    if kind == ZIP:
        listed = zip_directory(source).infolist()
        return [of_zip(entry) for entry in listed if not entry.filename.endswith("/")]
    return list(_of_tar(source))


def of_zip(entry: zipfile.ZipInfo) -> Member:
    """Return a line of a zip archive's directory as a file of it."""
    method = _STORED if entry.compress_type == zipfile.ZIP_STORED else _METHODS.get(entry.compress_type, "")
    method = "encrypted" if entry.flag_bits & 1 else method or f"compressed by method {entry.compress_type}"
    return Member(entry.filename, entry.file_size, method, entry.header_offset, entry.compress_size, entry.CRC)


def _of_tar(source: Source) -> Iterator[Member]:
    count = 0
    try:
        with tarfile.open(fileobj=Seekable(source), mode="r:") as archive:
            while (member := archive.next()) is not None:
                count += 1
                if count > limits.MAX_ZIP_ENTRIES:
                    raise CorruptError("files of the tar archive", path=source.path, expected=limits.MAX_ZIP_ENTRIES)
                if member.isfile():
                    method = "sparse" if member.issparse() else _STORED
                    yield Member(member.name, member.size, method, member.offset_data, member.size)
                archive.members = []  # type: ignore[attr-defined] # which keeps all that passed
    except (tarfile.TarError, zipfile.BadZipFile, OSError, ValueError, OverflowError, EOFError) as error:
        raise CorruptError(f"the tar archive: {error}", path=source.path) from None


def start_of(source: Source, member: Member) -> int:
    """Return where the bytes of a file of a zip archive begin: its local header has fields with sizes of their own."""
    head = source.read(member.start, min(30, max(0, source.size - member.start)))
    if len(head) < 30 or head[:4] != b"PK\3\4":
        raise CorruptError("local header of the model in the archive", path=source.path, offset=member.start)
    _, name, extra = _LOCAL.unpack(head)
    return int(member.start + 30 + name + extra)


class Inside(Window):
    """The bytes of a file in an archive, where they lie, as a file of their own that has the archive's path."""


def stored(source: Source, member: Member, kind: str) -> Inside:
    """Return a file that is stored as it is, where it lies. Raises TruncatedError."""
    start = start_of(source, member) if kind == ZIP else member.start
    if start + member.size > source.size:
        raise TruncatedError(
            f"the archive ends inside {member.name}",
            path=source.path,
            offset=start,
            found=f"{source.size - start} bytes",
            expected=f"{member.size} bytes",
        )
    return Inside(source, start, member.size)


def open_member(source: Source, member: Member, kind: str, path: str) -> Window:
    """Return a file of an archive: where it lies, or, where it is compressed, unpacked.

    Args:
        source: The archive.
        member: The file.
        kind: What kind of archive it is: TAR or ZIP.
        path: How the archive is called in errors.

    Raises UnsupportedError for an encrypted one and others that are not read, CorruptError where it is not what the
    archive states, and what `unpack` raises.
    """
    if member.method == _STORED:
        return stored(source, member, kind)
    if member.method not in _METHODS.values():
        hint = f"unpack it: {COMMANDS[kind]}"
        raise UnsupportedError(f"{member.name} of the {kind}", path=path, found=member.method, hint=hint)
    with around().stage(Phase.UNPACKING, member.size) as progress:
        pieces = checked(source, member, path, progress)
        return unpack(source, pieces, member.packed, COMMANDS[ZIP])


def start_bytes(source: Source, member: Member, kind: str, path: str, count: int) -> bytes:
    """Return the first bytes of a file of an archive; none of one that cannot be expanded. Raises CorruptError."""
    if member.method == _STORED:
        found = stored(source, member, kind)
        return found.read(0, min(count, found.size))
    if member.method not in _METHODS.values():
        return b""
    data = b""
    for piece in _expansion(source, member, path):
        data += piece[: count - len(data)]
        if len(data) >= count:
            break
    return data


def whole_bytes(source: Source, member: Member, kind: str, path: str) -> bytes:
    """Return all bytes of a small file of an archive. Raises as `open_member`."""
    if member.method == _STORED:
        return stored(source, member, kind).read(0, member.size)
    if member.method not in _METHODS.values():
        hint = f"unpack it: {COMMANDS[kind]}"
        raise UnsupportedError(f"{member.name} of the {kind}", path=path, found=member.method, hint=hint)
    return b"".join(checked(source, member, path))


def _expansion(source: Source, member: Member, path: str) -> Iterator[bytes]:
    start = start_of(source, member)
    return inflated(source, start, min(start + member.packed, source.size), member.method, path)


def checked(source: Source, member: Member, path: str, progress: Progress = lambda count: None) -> Iterator[bytes]:
    """Yield what a compressed file expands to; raise CorruptError where it is not what the archive states."""
    size, crc = 0, 0
    for piece in _expansion(source, member, path):
        size, crc = size + len(piece), zlib.crc32(piece, crc)
        if size > member.size:
            message = f"{member.name} expands to more than the archive states"
            raise CorruptError(message, path=path, found=f"{size} bytes", expected=f"{member.size} bytes")
        progress(len(piece))
        yield piece
    if size < member.size:
        message = f"{member.name} expands to less than the archive states"
        raise TruncatedError(message, path=path, found=f"{size} bytes", expected=f"{member.size} bytes")
    if member.crc32 is not None and crc != member.crc32:
        message = f"{member.name} is not what the archive's checksum says"
        raise ChecksumError(message, path=path, found=f"{crc:08x}", expected=f"{member.crc32:08x}")
