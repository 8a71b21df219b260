"""A finished file that is open: on this machine by its descriptor, in a store pinned to the version that was found."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from ggferry.formats.files.local_files import open_file
from ggferry.service.storage.stores import Found, is_remote, place, stat
from ggferry.support.platform import here

BLOCK = 256 << 10  # bytes that every download may hold, and that a read of a local file takes
STORED = 8 << 20  # bytes of a request to a store: its first byte takes tens of milliseconds
TOTAL = 64 << 20  # bytes that all downloads together hold of blocks larger than the least
REQUESTS = 16  # to a store at a time; a store that does not answer must not keep local files waiting


class OutputReader(Protocol):
    """A finished file, read at offsets.

    Attributes:
        path: Its path or URL.
        size: Its bytes.
        stamp: Changes whenever its bytes may have.
        best: Bytes of a read that is worth its trouble.
    """

    path: str
    size: int
    stamp: str
    best: int

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset`, fewer only where the file ends. Raises ChangedError, OSError."""
        ...

    def close(self) -> None:
        """Close it; a second time is harmless."""
        ...


class LocalReader:
    """A file below `folder`, however its path leads there. Raises what `open_file` raises."""

    def __init__(self, path: str, folder: str) -> None:
        self.path, self.best, self._fd = path, BLOCK, -1
        self._fd = open_file(path, folder)
        status = os.fstat(self._fd)
        self.size = status.st_size
        times = f"{status.st_mtime_ns}:{status.st_ctime_ns}"
        self.stamp = f"{status.st_dev}:{status.st_ino}:{status.st_size}:{times}"

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file, fewer where it ends."""
        return here.pread(self._fd, size, offset)

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class StoredReader:
    """An object as it is now; no connection is held between two reads. Raises NotFoundError, AccessError."""

    def __init__(self, url: str) -> None:
        self._found: Found = stat(url)
        self.path, self.best = url, STORED
        self.size, self.stamp = self._found.bytes, self._found.version

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of that very version. Raises ChangedError where it has been replaced."""
        end = min(self.size, offset + size)
        return place(self.path).fetch(self._found, offset, end) if offset < end else b""

    def close(self) -> None:
        """Do nothing: there is nothing open."""


def open_reader(path: str, folder: str) -> OutputReader:
    """Return the reader of a path or URL; a path must lie below `folder`."""
    return StoredReader(path) if is_remote(path) else LocalReader(path, folder)


class Blocks:
    """What downloads hold in memory: large blocks while few run, the least block each where many do or stall."""

    def __init__(self) -> None:
        self._held, self._lock = 0, threading.Lock()
        self._pool = ThreadPoolExecutor(REQUESTS, "ggferry-store")

    def take(self, best: int) -> int:
        """Return the bytes of the next block of a download, and count them as held."""
        with self._lock:
            size = max(BLOCK, min(best, (TOTAL - self._held) // 4))
            self._held += size
        return size

    def give(self, size: int) -> None:
        """Count so many bytes as held no more."""
        with self._lock:
            self._held -= size

    async def read(self, reader: OutputReader, offset: int, size: int) -> bytes:
        """Return a block, read in a thread."""
        pool = self._pool if is_remote(reader.path) else None
        return await asyncio.get_running_loop().run_in_executor(pool, reader.read, offset, size)

    def close(self) -> None:
        """Begin no further request."""
        self._pool.shutdown(wait=False, cancel_futures=True)
