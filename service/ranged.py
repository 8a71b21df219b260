"""A remote file as a `formats.sources.Source`: read by ranges, pinned to what was listed, cached in bounded space.

Every byte that passes is fetched at most once while the cache has room: a conversion reads its source several times
(digest, write, proof), and a store charges for each. The cache is a sparse file; what does not fit is fetched again.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from ggferry.formats.errors import ChangedError, GgferryError, TruncatedError, UnsupportedError
from ggferry.service.stores import VERSIONS, Found, _failure, check_unchanged, reach

HEADER_BLOCK, DATA_BLOCK = 256 << 10, 8 << 20
MOST_AT_ONCE = 32 << 20  # bytes of one request


class RangedFile:
    """`found.path` read by ranges of whole blocks of `block` bytes; up to `room` bytes are kept in a file in `folder`.

    Raises ChangedError when the file is not, or no longer, the one that was listed, and UnsupportedError for a
    store without ranges.
    """

    def __init__(self, found: Found, folder: str, *, block: int = DATA_BLOCK, room: int = 1 << 40) -> None:
        self.path, self.size, self.fetched = found.path, found.bytes, 0
        self._found, self._block, self._room = found, block, room
        self._local, self._lock = threading.local(), threading.Lock()
        self._held: set[int] = set()
        if found.bytes < 0:
            raise UnsupportedError("the server does not say how long it is", path=found.path)
        check_unchanged(found)
        self._fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)

    def read(self, offset: int, size: int) -> bytes:
        data = bytearray(size) if size >= 0 else bytearray()
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        size = len(buffer)
        if offset < 0 or offset + size > self.size:
            raise TruncatedError(f"{size} bytes wanted, the file ends at {self.size:#x}", path=self.path, offset=offset)
        while buffer:
            count = self._some(offset, buffer)
            buffer, offset = buffer[count:], offset + count

    def check(self) -> None:
        """Raises ChangedError when the file has changed meanwhile."""
        check_unchanged(self._found)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> RangedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _some(self, offset: int, buffer: memoryview) -> int:
        """Fill the front of `buffer` from one run of blocks that are all held, or all absent; how much was filled."""
        first, last = offset // self._block, (offset + len(buffer) - 1) // self._block
        held = first in self._held
        stop = first
        while stop <= last and (stop in self._held) == held and (held or (stop - first) * self._block < MOST_AT_ONCE):
            stop += 1
        end = min(stop * self._block, offset + len(buffer))
        if held:
            os.preadv(self._fd, [buffer[: end - offset]], offset)
            return end - offset
        start = first * self._block
        data = self._fetch(start, min(stop * self._block, self.size))
        self._keep(first, data)
        buffer[: end - offset] = data[offset - start : end - start]
        return end - offset

    def _keep(self, first: int, data: bytes) -> None:
        with self._lock:
            self.fetched += len(data)
            if (len(self._held) + 1) * self._block + len(data) > self._room + self._block:
                return
            os.pwrite(self._fd, data, first * self._block)
            self._held.update(range(first, first + -(-len(data) // self._block)))

    def _fetch(self, start: int, end: int) -> bytes:
        try:
            handle = self._handle()
            handle.seek(start)
            data = handle.read(end - start)
        except Exception as error:
            raise self._read_failure(error) from None
        if len(data) != end - start:
            raise TruncatedError("the store sent less than it promised", path=self.path, offset=start + len(data))
        return bytes(data)

    def _handle(self) -> Any:
        """One handle a thread: fsspec's are not safe to share. s3fs sends the ETag along (If-Match)."""
        handle = getattr(self._local, "handle", None)
        if handle is None:
            system, name = reach(self.path)
            try:
                handle = system.open(name, "rb", cache_type="none")
            except TypeError:  # the memory file system takes no cache
                handle = system.open(name, "rb")
            details = getattr(handle, "details", None)
            version = next((str(details[k]) for k in VERSIONS if details.get(k)), "") if details else ""
            if version and version != self._found.version:
                raise ChangedError("changed since it was listed", path=self.path, hint="plan again")
            if not handle.seekable():
                raise UnsupportedError("the server does not serve ranges", path=self.path)
            self._local.handle = handle
        return handle

    def _read_failure(self, error: Exception) -> Exception:
        """A store refuses a range of a file that was replaced (S3: If-Match); whatever it says, look."""
        try:
            self.check()
        except GgferryError as changed:
            return changed
        return _failure(error, self.path)
