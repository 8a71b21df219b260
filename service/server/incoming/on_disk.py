"""Uploads on this server's disk: a folder in quarantine while they come, another when they were inspected."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.formats.errors import BusyError, NotFoundError
from ggferry.formats.files.partial_files import sync_folder
from ggferry.service.server.incoming.pieces import BLOCK, Sink
from ggferry.service.server.settings import Settings
from ggferry.support.platform import here


class OnDisk:
    """The files of uploads on this disk."""

    shared = False
    """Whether another server has them, too."""

    def __init__(self, settings: Settings) -> None:
        self._quarantine, self._uploads = settings.quarantine, settings.uploads

    def make(self, key: str, listed: Sequence[Mapping[str, Any]]) -> None:
        """Make the files of a new upload, empty."""
        folder = os.path.join(self._quarantine, key)
        os.mkdir(folder, 0o700)
        for each in listed:
            path = os.path.join(folder, each["name"])
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            made = here.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | here.NOFOLLOW | here.CLOEXEC, 0o600)
            os.close(made)
        for place, _, _ in os.walk(folder):
            sync_folder(os.path.join(place, ""))
        sync_folder(os.path.join(self._quarantine, ""))

    def open(self, key: str, number: int, name: str, start: int) -> OpenedFile:
        """Open a file from where it ends. Raises NotFoundError on another server, and BusyError."""
        path = os.path.join(self._quarantine, key, name)
        try:
            fd = here.open_file(path, os.O_RDWR | here.NOFOLLOW | here.CLOEXEC)
        except FileNotFoundError:
            hint = "send to the server that it was announced to, or start all with --uploads s3://…"
            raise NotFoundError("the upload is not on this server", found=key, hint=hint) from None
        try:
            here.lock(fd)
        except OSError:
            os.close(fd)
            raise BusyError("another request is sending this file", hint="wait until it has ended") from None
        try:
            os.ftruncate(fd, start)  # what was never acknowledged is not trusted
        except OSError:
            os.close(fd)  # and with it the lock, else nobody could send the rest
            raise
        return OpenedFile(fd, start)

    def whole(self, key: str, listed: Sequence[Mapping[str, Any]]) -> str | None:
        """Return the folder of an upload that is to be inspected; None where this server has none."""
        folder = os.path.join(self._quarantine, key)
        return folder if os.path.isdir(folder) else None

    def moved(self, key: str) -> str | None:
        """Return the folder of an upload that was inspected, whether that is recorded or not; its move is flushed."""
        folder = os.path.join(self._uploads, key)
        if not os.path.isdir(folder):
            return None
        self._flush_move()
        return folder

    def accept(self, key: str, listed: Sequence[Mapping[str, Any]]) -> None:
        """Move an upload out of the quarantine. Raises OSError of the server's disk."""
        os.rename(os.path.join(self._quarantine, key), os.path.join(self._uploads, key))
        self._flush_move()

    def _flush_move(self) -> None:
        sync_folder(os.path.join(self._uploads, ""))
        sync_folder(os.path.join(self._quarantine, ""))

    def source(self, key: str) -> str:
        """Return the folder of an accepted upload."""
        return os.path.join(self._uploads, key)

    def forget(self, key: str) -> None:
        """Remove the files of an upload."""
        for place in (self._uploads, self._quarantine):
            shutil.rmtree(os.path.join(place, key), ignore_errors=True)

    def remove_pieces(self, key: str) -> None:
        """Do nothing: what was refused is kept for a day where it is."""


class OpenedFile(Sink):
    """A file that is locked, and written from where it ended."""

    objects: tuple[tuple[str, int], ...] = ()

    def __init__(self, fd: int, start: int) -> None:
        self._fd, self._start = fd, start

    def read(self, size: int, at: int) -> bytes:
        """Return bytes of the file."""
        return here.pread(self._fd, min(BLOCK, size), at)

    def write(self, data: memoryview, at: int) -> int:
        """Write bytes."""
        return here.pwrite(self._fd, data, at)

    def keep(self) -> None:
        """Put them on the disk."""
        os.fsync(self._fd)

    def drop(self) -> None:
        """Cut the file off where it ended."""
        os.ftruncate(self._fd, self._start)

    def close(self) -> None:
        """Close the file, which ends its lock."""
        os.close(self._fd)
