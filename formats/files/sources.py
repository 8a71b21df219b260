"""Where bytes come from: one `read(offset, size)` for every kind of file.

Local files are read by `pread`, never mapped, because mapped pages count as memory. A remote model is read through a
folder that mirrors it (`mount`): sidecar files are there in full, and of the weights only their first bytes, for the
probes. Everything that opens a path to read tensors calls `open_source`, which takes the bytes from where they are.
Opening such a file in any other way shows it ending early, never wrong bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Protocol

from ggferry.formats.errors import TruncatedError, of_os
from ggferry.formats.files.local_files import open_file
from ggferry.formats.files.opened_files import note
from ggferry.support.platform import here


class Source(Protocol):
    """A named sequence of `size` bytes, readable at any offset from any thread."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`. Raises TruncatedError when they are not there."""
        ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`. Raises TruncatedError when the bytes are not there."""
        ...

    def close(self) -> None: ...


CANNOT_BE_READ = "cannot be read"
Opener = Callable[[str], Source | None]
"""Path below a mounted folder → its bytes; None for a file that is there in full."""
_MOUNTS: dict[str, Opener] = {}
_NAMES: dict[str, Callable[[str], str]] = {}


def mount(folder: str, opener: Opener, name: Callable[[str], str] | None = None) -> None:
    """Open files below `folder` by `opener` from now on; `name`: what people know such a file by (`known_by`)."""
    place = os.path.join(os.path.abspath(folder), "")
    _MOUNTS[place] = opener
    if name is not None:
        _NAMES[place] = name


def unmount(folder: str) -> None:
    """Undo `mount`."""
    place = os.path.join(os.path.abspath(folder), "")
    _MOUNTS.pop(place, None)
    _NAMES.pop(place, None)


def known_by(path: str) -> str:
    """Return what to call a file before people: its URL, if it stands for one, else its path as it is."""
    whole = os.path.abspath(path) if _NAMES else path
    return next((name(whole) for folder, name in list(_NAMES.items()) if whole.startswith(folder)), path)


def open_source(path: str | os.PathLike[str], root: str | None = None) -> Source:
    """Open the file at `path`, wherever its bytes are. `root` and the errors are those of `local_files.open_file`."""
    whole = os.path.abspath(path)
    for folder, opener in list(_MOUNTS.items()):
        if whole.startswith(folder) and (source := opener(whole)) is not None:
            return source
    return LocalFile(path, root)


class LocalFile:
    """A file on disk, opened once (`local_files.open_file`) and read by `pread`; safe to use from any thread."""

    _fd = -1
    _close = staticmethod(os.close)  # at the end of Python, when files that were left open go, `os` may be gone

    def __init__(self, path: str | os.PathLike[str], root: str | None = None) -> None:
        self.path = os.fspath(path)
        self._fd = open_file(path, root)
        self.size = os.fstat(self._fd).st_size
        note(self.path, self._fd)

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`.

        Raises TruncatedError when they are not there, and what `of_os` makes of a disk that cannot give them.
        """
        if offset < 0 or size < 0 or offset + size > self.size:
            raise TruncatedError(f"{size} bytes wanted, the file ends at {self.size:#x}", path=self.path, offset=offset)
        data = self._pread(size, offset)
        while len(data) < size:  # pread stops at 2^31-1 bytes and at signals
            more = self._pread(size - len(data), offset + len(data))
            if not more:
                raise TruncatedError("the file shrank while it was read", path=self.path, offset=offset + len(data))
            data += more
        return data

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            return here.pread(self._fd, size, offset)
        except OSError as error:
            raise of_os(error, CANNOT_BE_READ, self.path, offset) from None

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`. Raises as `read`."""
        if offset < 0 or offset + len(buffer) > self.size:
            raise TruncatedError(
                f"{len(buffer)} bytes wanted, the file ends at {self.size:#x}", path=self.path, offset=offset
            )
        done = 0
        while done < len(buffer):
            try:
                count = here.pread_into(self._fd, buffer[done:], offset + done)
            except OSError as error:
                raise of_os(error, CANNOT_BE_READ, self.path, offset + done) from None
            if not count:
                raise TruncatedError("the file shrank while it was read", path=self.path, offset=offset + done)
            done += count

    def fileno(self) -> int:
        """Return the descriptor of the open file."""
        return self._fd

    def close(self) -> None:
        """Close the file; doing so twice is allowed."""
        if self._fd >= 0:
            self._close(self._fd)
            self._fd = -1

    def __enter__(self) -> LocalFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Window:
    """`size` bytes of the file `whole` from `offset`, as a file that has the same path."""

    def __init__(self, whole: Source, offset: int, size: int) -> None:
        self.path, self.size, self.offset = whole.path, size, offset
        self.whole = whole

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`. Raises TruncatedError when they are not there."""
        self._check(offset, size)
        return self.whole.read(self.offset + offset, size)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`. Raises as `read`."""
        self._check(offset, len(buffer))
        self.whole.read_into(self.offset + offset, buffer)

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            words = f"{size} bytes wanted, what the archive has of it ends at {self.size:#x}"
            raise TruncatedError(words, path=self.path, offset=self.offset + offset)

    def over(self, whole: Source) -> Window:
        """Return the same bytes of the same file, read as `whole`."""
        return type(self)(whole, self.offset, self.size)

    def close(self) -> None:
        """Close the file."""
        self.whole.close()


def wholes_of(files: Iterable[Source]) -> list[Source]:
    """Return the files that hold these, each once: an archive, of several that are read in it."""
    return [*{id(whole): whole for whole in map(whole_of, files)}.values()]


def whole_of(file: Source) -> Source:
    """Return the file that a `Window` shows a part of; any other as it is."""
    while isinstance(file, Window):
        file = file.whole
    return file
