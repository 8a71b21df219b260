"""GGUF models inside llamafiles, read in place: a program with a zip archive behind it, whose entries are stored.

Source: Mozilla-Ocho/llamafile, README ("Creating llamafiles") and `llamafile/zipalign.c`: entries are stored without
compression on the boundary of a page, and `.args`, a line for each argument, names the model (`-m FILE`). The zip's own
reading is `zipfile`'s, of Python.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from ggferry.formats import limits
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import CorruptError, MissingError, TruncatedError, UnsupportedError
from ggferry.formats.files.sources import Source, Window, open_source

MAGICS = (b"MZqFpD", b"jartsr")
"""How programs of Cosmopolitan begin that have a zip archive behind them."""
_LOCAL = struct.Struct("<26x2H")
_ARGUMENTS, _MODEL = ".args", ("-m", "--model")
_MAX_ARGUMENTS = 1 << 16  # bytes
_HINT = "unzip FILE '*.gguf' takes it out"


class Entry(Window):
    """The bytes of a stored entry, as a file of their own that has the program's path."""


class _Seekable(io.RawIOBase):
    """What `zipfile` reads; at most as much at once as a directory may have."""

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


def is_llamafile(head: bytes) -> bool:
    """Return whether a file that begins with `head` is a program that may hold a model."""
    return head.startswith(MAGICS)


def open_llamafile(path: str, parse: Callable[[Source], Checkpoint]) -> Checkpoint:
    """Open the model inside the llamafile at `path`, where it lies.

    `parse` reads a GGUF file, and closes it when it raises. Raises MissingError where there is none, UnsupportedError
    for a compressed one, CorruptError for an archive that cannot be read, and what `parse` raises.
    """
    source = open_source(path)
    try:
        archive, entries = _entries(source)
        chosen = _chosen(archive, entries, path)
        start = _data_of(source, chosen)
    except BaseException:
        source.close()
        raise
    found = parse(Entry(source, start, chosen.file_size))
    others = [entry.filename for entry in entries if entry is not chosen]
    notes = [f"{chosen.filename} of a llamafile, read where it lies, at byte {start:,}"]
    if others:
        notes.append(f"not read of the llamafile: {', '.join(others[:8])} ({_HINT})")
    return replace(found, notes=(*found.notes, *notes))


def _entries(source: Source) -> tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]:
    try:
        archive = zipfile.ZipFile(_Seekable(source))
        listed = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CorruptError(f"the llamafile's zip archive: {error}", path=source.path) from None
    if len(listed) > limits.MAX_ZIP_ENTRIES:
        raise CorruptError("entries of the llamafile", path=source.path, found=len(listed))
    return archive, [entry for entry in listed if entry.filename.lower().endswith(".gguf")]


def _chosen(archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo], path: str) -> zipfile.ZipInfo:
    """Return the entry that `.args` names as the model; without it, the largest that is no mmproj file."""
    if not entries:
        raise MissingError("no model in the llamafile", path=path, expected="a .gguf entry of its zip archive")
    named = _named(archive)
    own = [entry for entry in entries if entry.filename.rpartition("/")[2] == named]
    models = own or [entry for entry in entries if "mmproj" not in entry.filename.lower()] or entries
    chosen = max(models, key=lambda entry: entry.file_size)
    if chosen.compress_type != zipfile.ZIP_STORED or chosen.flag_bits & 1:
        found = "encrypted" if chosen.flag_bits & 1 else "compressed"
        raise UnsupportedError(f"{chosen.filename} of the llamafile", path=path, found=found, hint=_HINT)
    return chosen


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
    if len(head) < 30 or head[:4] != b"PK\3\4":
        raise CorruptError("local header of the model in the archive", path=source.path, offset=entry.header_offset)
    name, extra = _LOCAL.unpack(head)
    start = entry.header_offset + 30 + name + extra
    if start + entry.file_size > source.size:
        found, expected = f"{source.size - start} bytes", f"{entry.file_size} bytes"
        raise TruncatedError(
            "the file ends inside the model", path=source.path, offset=start, found=found, expected=expected
        )
    return int(start)
