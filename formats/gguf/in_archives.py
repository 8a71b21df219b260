"""GGUF models inside archives, read in place: llamafiles, zip archives whose entries are stored, and tar archives.

A llamafile is a program with a zip archive behind it. Source: Mozilla-Ocho/llamafile, README ("Creating llamafiles")
and `llamafile/zipalign.c`: entries are stored without compression on the boundary of a page, and `.args`, a line for
each argument, names the model (`-m FILE`). Archives themselves are read by `zipfile` and `tarfile` of Python.
"""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from ggferry.formats import limits
from ggferry.formats.checkpoint import Checkpoint, Dropped, Span, TensorRef
from ggferry.formats.errors import CorruptError, MissingError, TruncatedError, UnsupportedError
from ggferry.formats.files.sources import Source, Window, open_source
from ggferry.formats.gguf.shards import shard_of
from ggferry.quant.codec import block_type
from ggferry.support.records import dataclass

MAGICS = (b"MZqFpD", b"jartsr")
"""How programs of Cosmopolitan begin that have a zip archive behind them."""
_ZIP, _TAR_BLOCK = b"PK\3\4", 512
_LOCAL = struct.Struct("<18xI4x2H")  # of a local header: compressed size, length of the name, of what follows it
_ARGUMENTS, _MODEL = ".args", ("-m", "--model")
_MAX_ARGUMENTS = 1 << 16  # bytes
_ENDING = ".gguf"
_OTHER_FILE = "another file of the archive"


class Entry(Window):
    """The bytes of a stored entry, as a file of their own that has the archive's path."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A file in an archive.

    Attributes:
        name: Its name there.
        size: Its bytes.
        start: Where they begin in the archive; None where they are not stored as they are.
        packed: Why not, in a word.
    """

    name: str
    size: int
    start: int | None
    packed: str = ""

    @property
    def is_model(self) -> bool:
        return self.name.lower().endswith(_ENDING)


class _Seekable(io.RawIOBase):
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


def kind_of_archive(head: bytes) -> str:
    """Return what archive with a GGUF file a file is that begins with `head`, in words; '' for none.

    A zip or tar archive counts whose first file, behind folders and other files that end within `head`, is one.
    """
    if head.startswith(MAGICS):
        return "llamafile"
    for kind, names in (("zip archive", _zip_names), ("tar archive", _tar_names)):
        if any(name.lower().endswith(_ENDING) for name in names(head)):
            return kind
    return ""


def _zip_names(head: bytes) -> Iterator[str]:
    at = 0
    while head[at : at + 4] == _ZIP and at + 30 <= len(head):
        size, name, extra = _LOCAL.unpack_from(head, at)
        yield head[at + 30 : at + 30 + name].decode("utf-8", "replace")
        at += 30 + name + extra + size


def _tar_names(head: bytes) -> Iterator[str]:
    at = 0
    while head[at + 257 : at + 262] == b"ustar":
        yield head[at : at + 100].rstrip(b"\0").decode("utf-8", "replace")
        digits = head[at + 124 : at + 136].strip(b"\0 ")
        size = int(digits, 8) if digits.isdigit() and not set(digits) & set(b"89") else 0
        at += _TAR_BLOCK + -(-size // _TAR_BLOCK) * _TAR_BLOCK


def open_inside(path: str, kind: str, parse: Callable[[Source], Checkpoint]) -> Checkpoint:
    """Open the model inside the archive at `path`, where it lies; `kind` is `kind_of_archive`'s.

    `parse` reads a GGUF file, and closes it when it raises. The other files of the archive are among what is dropped.

    Raises MissingError where there is none, UnsupportedError for one that is compressed or a shard, CorruptError for an
    archive that cannot be read, and what `parse` raises.
    """
    source = open_source(path)
    try:
        members, named = _tar_members(source) if kind == "tar archive" else _zip_members(source, kind)
        chosen = _chosen([one for one in members if one.is_model], named, path, kind)
        assert chosen.start is not None
        if chosen.start + chosen.size > source.size:
            raise TruncatedError(
                "the file ends inside the model",
                path=path,
                offset=chosen.start,
                found=f"{source.size - chosen.start} bytes",
                expected=f"{chosen.size} bytes",
            )
    except BaseException:
        source.close()
        raise
    found = parse(Entry(source, chosen.start, chosen.size))
    others = [one for one in members if one is not chosen and (one.is_model or kind != "llamafile")]
    dropped = tuple(Dropped(_as_tensor(one), _OTHER_FILE) for one in others)
    note = f"{chosen.name} of a {kind}, read where it lies, at byte {chosen.start:,}"
    return replace(found, notes=(*found.notes, note), dropped=(*found.dropped, *dropped))


def _as_tensor(member: _Member) -> TensorRef:
    """Return bytes of the archive as what is dropped is named in receipts; they are never read."""
    shape = (member.size,)
    return TensorRef(member.name, block_type("U8"), shape, (Span(0, 0, shape),))


def _chosen(models: Sequence[_Member], named: str, path: str, kind: str) -> _Member:
    """Return the member that is named as the model; without it, the largest that is no mmproj file."""
    if not models:
        raise MissingError(f"no model in the {kind}", path=path, expected=f"a file *{_ENDING}")
    own = [one for one in models if named and one.name.rpartition("/")[2] == named]
    texts = own or [one for one in models if "mmproj" not in one.name.lower()] or list(models)
    chosen = max(texts, key=lambda one: one.size)
    hint = "tar xf FILE" if kind == "tar archive" else "unzip FILE '*.gguf' takes it out"
    if chosen.start is None or shard_of(chosen.name):
        found = chosen.packed if chosen.start is None else "one of several shards"
        raise UnsupportedError(f"{chosen.name} of the {kind}", path=path, found=found, hint=hint)
    return chosen


def _zip_members(source: Source, kind: str) -> tuple[list[_Member], str]:
    """Return the files of a zip archive, and the name of the model where a llamafile states it."""
    try:
        archive = zipfile.ZipFile(_Seekable(source))
        listed = [entry for entry in archive.infolist() if not entry.filename.endswith("/")]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CorruptError(f"the {kind}'s directory: {error}", path=source.path) from None
    if len(listed) > limits.MAX_ZIP_ENTRIES:
        raise CorruptError(f"entries of the {kind}", path=source.path, found=len(listed))
    return [_zip_member(source, entry) for entry in listed], _named(archive)


def _zip_member(source: Source, entry: zipfile.ZipInfo) -> _Member:
    encrypted, compressed = entry.flag_bits & 1, entry.compress_type != zipfile.ZIP_STORED
    if encrypted or compressed or not entry.filename.lower().endswith(_ENDING):
        return _Member(entry.filename, entry.file_size, None, "encrypted" if encrypted else "compressed")
    return _Member(entry.filename, entry.file_size, _data_of(source, entry))


def _named(archive: zipfile.ZipFile) -> str:
    listed = {entry.filename: entry for entry in archive.infolist()}
    entry = listed.get(_ARGUMENTS)
    if entry is None or entry.file_size > _MAX_ARGUMENTS or entry.compress_size > _MAX_ARGUMENTS:
        return ""
    try:
        lines = archive.read(entry).decode("utf-8", "replace").splitlines()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError):
        return ""
    return next((value.strip().rpartition("/")[2] for option, value in pairwise(lines) if option.strip() in _MODEL), "")


def _data_of(source: Source, entry: zipfile.ZipInfo) -> int:
    """Return where the data of a stored entry begins: behind its local header, whose fields have sizes of their own."""
    head = source.read(entry.header_offset, min(30, max(0, source.size - entry.header_offset)))
    if len(head) < 30 or head[:4] != _ZIP:
        raise CorruptError("local header of the model in the archive", path=source.path, offset=entry.header_offset)
    _, name, extra = _LOCAL.unpack(head)
    return int(entry.header_offset + 30 + name + extra)


def _tar_members(source: Source) -> tuple[list[_Member], str]:
    """Return the files of a tar archive that is not compressed; no member of it is extracted."""
    found: list[_Member] = []
    try:
        with tarfile.open(fileobj=_Seekable(source), mode="r:") as archive:
            while (member := archive.next()) is not None:
                if len(found) == limits.MAX_ZIP_ENTRIES:
                    raise CorruptError("files of the tar archive", path=source.path, expected=limits.MAX_ZIP_ENTRIES)
                if member.isfile():
                    start = None if member.issparse() else member.offset_data
                    found.append(_Member(member.name, member.size, start, "sparse"))
                archive.members = []  # type: ignore[attr-defined] # which keeps all that passed
    except (tarfile.TarError, zipfile.BadZipFile, OSError, ValueError, OverflowError, EOFError) as error:
        raise CorruptError(f"the tar archive: {error}", path=source.path) from None
    return found, ""
