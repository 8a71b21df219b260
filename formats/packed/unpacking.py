"""Unpack a file once into a temporary file without a name, which is gone with the process, however that ends."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from ggferry.formats.errors import RefusedError, TruncatedError, of_os
from ggferry.formats.files.sources import Source, Window
from ggferry.formats.packed.holding import USUAL
from ggferry.support.platform import here
from ggferry.support.progress import Stage
from ggferry.support.records import dataclass

ALWAYS, RATIO = 1 << 30, 100
"""Bytes that anything may expand to, and how many times its size beyond: weights shrink by a half at most."""
ROOM = 64 << 20
"""Bytes that stay free on the disk."""
CHECKED = 64 << 20
"""Bytes that are written between two looks at the free space."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where files are unpacked, and how that is shown.

    Attributes:
        stage: Opens a progress display.
        folder: A folder on whose disk there is room, such as the output's; None: the system's for temporary files.
    """

    stage: Stage
    folder: str | None = None


_AROUND: ContextVar[Surroundings | None] = ContextVar("unpacking", default=None)


def around() -> Surroundings:
    """Return where files are unpacked now, and how that is shown."""
    return _AROUND.get() or Surroundings(USUAL[0])


@contextmanager
def unpacking(stage: Stage | None = None, folder: str | None = None) -> Iterator[None]:
    """Unpack in this way within the context; None leaves as it is what is set already."""
    now = around()
    token = _AROUND.set(replace(now, stage=stage or now.stage, folder=folder or now.folder))
    try:
        yield
    finally:
        _AROUND.reset(token)


class _Nameless:
    """A file without a name; closed with the last who reads it."""

    def __init__(self) -> None:
        self.fd, self.folder = -1, ""
        import tempfile  # few commands need it

        folder = around().folder
        for self.folder in ([folder] if folder else []) + [tempfile.gettempdir()]:
            try:
                self.fd = here.nameless_file(self.folder)
                return
            except OSError as error:
                failed = error
        raise of_os(failed, "no temporary file can be made", self.folder)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Unpacked(Window):
    """What a file holds that is compressed, as a file of its own that has the path of `whole`."""

    def __init__(self, whole: Source, room: _Nameless, size: int) -> None:
        super().__init__(whole, 0, size)
        self._room = room

    def over(self, whole: Source) -> Unpacked:
        """Return the same bytes, of which `whole` is what is compressed."""
        return Unpacked(whole, self._room, self.size)

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`. Raises TruncatedError when they are not there."""
        data = bytearray(max(0, size))
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`. Raises as `read`."""
        self._check(offset, len(buffer))
        while buffer:
            try:
                count = here.pread_into(self._room.fd, buffer, offset)
            except OSError as error:
                raise of_os(error, "what was unpacked cannot be read", self.path, offset) from None
            if not count:
                raise TruncatedError("the unpacked file is cut short", path=self.path, offset=offset)
            buffer, offset = buffer[count:], offset + count


def unpack(whole: Source, pieces: Iterable[bytes], packed: int, hint: str) -> Unpacked:
    """Write the pieces that something in `whole` expands to into a file without a name, and return it.

    Args:
        whole: The file that is packed.
        pieces: What it expands to.
        packed: How many bytes that takes there.
        hint: How a person unpacks it.

    Raises RefusedError where it expands beyond all measure or the disk has no room for it, and what `pieces` raise.
    """
    room, size, checked = _Nameless(), 0, 0
    most = max(ALWAYS, RATIO * packed)
    for piece in pieces:
        if size + len(piece) > most:
            raise RefusedError(
                "the file expands to far more than weights can be compressed to",
                path=whole.path,
                found=f"more than {most:,} bytes of {packed:,}",
                hint=f"if it is a model all the same, unpack it: {hint}",
            )
        if size + len(piece) > checked:
            _check_room(room.folder, whole.path, hint)
            checked = size + CHECKED
        _write(room, size, piece, whole.path, hint)
        size += len(piece)
    return Unpacked(whole, room, size)


def _write(room: _Nameless, at: int, piece: bytes, path: str, hint: str) -> None:
    view = memoryview(piece)
    while view:
        try:
            count = here.pwrite(room.fd, view, at)
            if not count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _no_room(room.folder, path, hint, error.strerror or "") from None
            raise of_os(error, "cannot be unpacked", room.folder) from None
        view, at = view[count:], at + count


def _check_room(folder: str, path: str, hint: str) -> None:
    try:
        free = here.free_bytes(folder)
    except OSError:
        return  # the write says what is wrong
    if free < ROOM + CHECKED:
        raise _no_room(folder, path, hint, f"{free:,} bytes free")


def _no_room(folder: str, path: str, hint: str, found: str) -> RefusedError:
    return RefusedError(
        f"no room in {folder} for what is unpacked",
        path=path,
        found=found,
        hint=f"TMPDIR names another folder for temporary files; or unpack it: {hint}",
    )
